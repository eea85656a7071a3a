/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of an MPI job that all-reduce as ./bench orders (control.h): MPI_Allreduce in place,
 * for a list of tensors one MPI_Iallreduce each. MPI 3 has no bf16, so that is a user-defined
 * operation over 16-bit words, summed in f32 and rounded to nearest even, written to be vectorised.
 */
#include <mpi.h>

#include "control.h"

static void sum_bf16(void* in, void* inout, int* count, MPI_Datatype* type) {
  const uint16_t* restrict a = in;
  uint16_t* restrict b = inout;
  (void)type;
  for (int i = 0; i < *count; ++i) {
    union {
      uint32_t bits;
      float value;
    } x = {(uint32_t)a[i] << 16}, y = {(uint32_t)b[i] << 16}, sum;
    sum.value = x.value + y.value;
    b[i] = (uint16_t)((sum.bits + 0x7fffu + ((sum.bits >> 16) & 1)) >> 16);
  }
}

typedef struct job {
  MPI_Datatype type;
  MPI_Op op;
  MPI_Op bf16_op;
  char** data;
  MPI_Request* requests;
} job;

static void fill(const bench_order* order, job* work, int rank) {
  const float value = (float)(rank + 1);
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  for (int i = 0; i < order->tensor_count; ++i) {
    const uint64_t count = order->tensor_bytes[i] / order->element_bytes;
    for (uint64_t j = 0; j < count; ++j) {
      if (order->element_bytes == 4) {
        ((float*)work->data[i])[j] = value;
      } else {
        ((uint16_t*)work->data[i])[j] = (uint16_t)(bits >> 16);
      }
    }
  }
}

static void check(bench_control* control, const bench_order* order, const job* work, int size) {
  const float expected = (float)(size * (size + 1) / 2);
  for (int i = 0; i < order->tensor_count; ++i) {
    const uint64_t count = order->tensor_bytes[i] / order->element_bytes;
    const uint64_t places[3] = {0, count / 2, count - 1};
    for (int j = 0; j < 3; ++j) {
      float value;
      if (order->element_bytes == 4) {
        value = ((const float*)work->data[i])[places[j]];
      } else {
        const uint32_t bits = (uint32_t)((const uint16_t*)work->data[i])[places[j]] << 16;
        memcpy(&value, &bits, sizeof value);
      }
      if (value != expected) bench_fail(control, "the sum is %g, not %g", value, expected);
    }
  }
}

static void round_of(const bench_order* order, const job* work) {
  if (order->tensor_count == 1) {
    MPI_Allreduce(MPI_IN_PLACE, work->data[0], (int)(order->tensor_bytes[0] / order->element_bytes),
                  work->type, work->op, MPI_COMM_WORLD);
    return;
  }
  for (int i = 0; i < order->tensor_count; ++i) {
    MPI_Iallreduce(MPI_IN_PLACE, work->data[i],
                   (int)(order->tensor_bytes[i] / order->element_bytes), work->type, work->op,
                   MPI_COMM_WORLD, &work->requests[i]);
  }
  MPI_Waitall(order->tensor_count, work->requests, MPI_STATUSES_IGNORE);
}

/* New buffers, and one round that is known to be right; returns how many buffers there are. */
static int prepare(bench_control* control, const bench_order* order, job* work, int held, int rank,
                   int size) {
  for (int i = 0; i < held; ++i) free(work->data[i]);
  free(work->data);
  free(work->requests);
  held = order->tensor_count;
  work->type = order->element_bytes == 4 ? MPI_FLOAT : MPI_UINT16_T;
  work->op = order->element_bytes == 4 ? MPI_SUM : work->bf16_op;
  work->data = calloc((size_t)held, sizeof(char*));
  work->requests = calloc((size_t)held, sizeof(MPI_Request));
  for (int i = 0; i < held; ++i) {
    work->data[i] = aligned_alloc(4096, (order->tensor_bytes[i] + 4095) / 4096 * 4096);
    if (work->data[i] == NULL) bench_fail(control, "no memory for %s", order->text);
  }
  fill(order, work, rank);
  round_of(order, work);
  check(control, order, work, size);
  fill(order, work, 0);
  return held;
}

int main(int argc, char** argv) {
  bench_control control;
  bench_order order = {0};
  job work = {0};
  int rank, size, held = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Op_create(sum_bf16, 1, &work.bf16_op);
  bench_connect(&control, rank);
  while (bench_next_order(&control, &order)) {
    if (!order.is_same) held = prepare(&control, &order, &work, held, rank, size);
    for (int i = 0; i < order.warm_up_rounds; ++i) round_of(&order, &work);
    if (!bench_wait_for_go(&control)) break;
    uint64_t now_ns = order.begin_ns = bench_now_ns();
    for (int i = 0; i < order.rounds; ++i) {
      round_of(&order, &work);
      order.end_ns = bench_now_ns();
      order.round_ns[i] = order.end_ns - now_ns;
      now_ns = order.end_ns;
    }
    bench_report(&control, &order);
  }
  MPI_Finalize();
  return 0;
}
