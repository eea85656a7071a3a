/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of an MPI job that make collective calls as ./bench orders (control.h). "dtype" is the
 * call: ar, ag, rs or a2a. "bytes" is what a rank has of it at its larger end: the result of an
 * all_gather, the input of the others. Elements are f32.
 */
#include <mpi.h>

#include "control.h"

typedef enum call { kAllReduce, kAllGather, kReduceScatter, kAllToAll } call;

typedef struct job {
  call what;
  int part; /* Elements that each rank gives to each, or gets of each. */
  int size;
  float* in;
  float* out;
} job;

static call call_of(bench_control* control, const char* name) {
  if (strcmp(name, "ar") == 0) return kAllReduce;
  if (strcmp(name, "ag") == 0) return kAllGather;
  if (strcmp(name, "rs") == 0) return kReduceScatter;
  if (strcmp(name, "a2a") != 0) bench_fail(control, "there is no call '%s'", name);
  return kAllToAll;
}

static void round_of(const job* work) {
  switch (work->what) {
    case kAllReduce:
      MPI_Allreduce(MPI_IN_PLACE, work->out, work->part * work->size, MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
      break;
    case kAllGather:
      MPI_Allgather(work->in, work->part, MPI_FLOAT, work->out, work->part, MPI_FLOAT,
                    MPI_COMM_WORLD);
      break;
    case kReduceScatter:
      MPI_Reduce_scatter_block(work->in, work->out, work->part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case kAllToAll:
      MPI_Alltoall(work->in, work->part, MPI_FLOAT, work->out, work->part, MPI_FLOAT,
                   MPI_COMM_WORLD);
      break;
  }
}

/* Rank r gives r + 1 everywhere. */
static void check(bench_control* control, const job* work) {
  const int is_sum = work->what == kAllReduce || work->what == kReduceScatter;
  const int parts = work->what == kReduceScatter ? 1 : work->size;
  for (int part = 0; part < parts; ++part) {
    const float expected = is_sum ? (float)(work->size * (work->size + 1) / 2) : (float)(part + 1);
    const int places[3] = {0, work->part / 2, work->part - 1};
    for (int j = 0; j < 3; ++j) {
      const float value = work->out[(size_t)part * (size_t)work->part + (size_t)places[j]];
      if (value != expected) bench_fail(control, "part %d is %g, not %g", part, value, expected);
    }
  }
}

/* New buffers, and one round that is known to be right. */
static void prepare(bench_control* control, const bench_order* order, job* work, int rank) {
  const size_t whole = order->total_bytes / sizeof(float) / (size_t)work->size * (size_t)work->size;
  const size_t bytes = (whole * sizeof(float) + 4095) / 4096 * 4096;
  free(work->in);
  free(work->out);
  work->what = call_of(control, order->dtype);
  work->part = (int)(whole / (size_t)work->size);
  work->in = aligned_alloc(4096, bytes);
  work->out = aligned_alloc(4096, bytes);
  if (work->in == NULL || work->out == NULL || work->part == 0) {
    bench_fail(control, "no memory for %s, or too little for its ranks", order->text);
  }
  for (size_t i = 0; i < whole; ++i) work->in[i] = work->out[i] = (float)(rank + 1);
  round_of(work);
  check(control, work);
  memset(work->out, 0, bytes);
}

int main(int argc, char** argv) {
  bench_control control;
  bench_order order = {0};
  job work = {0};
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &work.size);
  bench_connect(&control, rank);
  while (bench_next_order(&control, &order)) {
    if (!order.is_same) prepare(&control, &order, &work, rank);
    for (int i = 0; i < order.warm_up_rounds; ++i) round_of(&work);
    if (!bench_wait_for_go(&control)) break;
    uint64_t now_ns = order.begin_ns = bench_now_ns();
    for (int i = 0; i < order.rounds; ++i) {
      round_of(&work);
      order.end_ns = bench_now_ns();
      order.round_ns[i] = order.end_ns - now_ns;
      now_ns = order.end_ns;
    }
    bench_report(&control, &order);
  }
  MPI_Finalize();
  return 0;
}
