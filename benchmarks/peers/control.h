/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TALWEG_BENCHMARKS_PEERS_CONTROL_H_
#define TALWEG_BENCHMARKS_PEERS_CONTROL_H_

/*
 * A worker's side of ./bench: how the harness tells every process of every contender what to
 * measure next. Lines over a Unix socket, so that it works across network namespaces and costs
 * nothing while the clock runs:
 *
 *   worker                               harness
 *   hello CONTENDER RANK PID         ->
 *                                    <-  prepare DTYPE WARM_UP ROUNDS BYTES[,BYTES...]
 *   ready                            ->                                (after the warm-up rounds)
 *                                    <-  go
 *   done BEGIN_NS END_NS NS,NS,...   ->            (CLOCK_MONOTONIC; the time of each round)
 *                                    <-  quit
 *
 * and "failed TEXT" from the worker instead of an answer. A round is one all-reduce of every tensor
 * of the list, in that order; it ends when the results lie in the caller's own buffers. C, because
 * mpicc compiles it too; a program includes it once.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { kBenchTensorsMax = 65536 };

typedef struct bench_order {
  char dtype[8]; /* "f32" or "bf16" */
  size_t element_bytes;
  int warm_up_rounds;
  int rounds;
  int tensor_count;
  uint64_t total_bytes;
  uint64_t* tensor_bytes;
  char* text;  /* The line. */
  int is_same; /* As the last one: its buffers serve again. */
  /* The times of the rounds go here. */
  uint64_t begin_ns;
  uint64_t end_ns;
  uint64_t* round_ns;
} bench_order;

typedef struct bench_control {
  FILE* in;
  FILE* out;
  char* line;
  size_t line_bytes;
} bench_control;

static inline uint64_t bench_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Tells the harness, which then ends everything, and ends. */
static inline void bench_fail(bench_control* control, const char* format, ...) {
  va_list arguments;
  char text[512];
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "bench: %s\n", text);
  if (control->out != NULL) {
    fprintf(control->out, "failed %s\n", text);
    fflush(control->out);
  }
  _exit(1);
}

/* Connects to $TALWEG_BENCH_CONTROL and says hello as $TALWEG_BENCH_CONTENDER. */
static inline void bench_connect(bench_control* control, int rank) {
  const char* path = getenv("TALWEG_BENCH_CONTROL");
  const char* contender = getenv("TALWEG_BENCH_CONTENDER");
  struct sockaddr_un address;
  int fd;
  memset(control, 0, sizeof *control);
  memset(&address, 0, sizeof address);
  if (path == NULL || contender == NULL || strlen(path) >= sizeof address.sun_path) {
    bench_fail(control, "this program is started by ./bench: TALWEG_BENCH_CONTROL is not set");
  }
  address.sun_family = AF_UNIX;
  strcpy(address.sun_path, path);
  fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (struct sockaddr*)&address, sizeof address) != 0) {
    bench_fail(control, "cannot connect to %s: %s", path, strerror(errno));
  }
  control->in = fdopen(fd, "r");
  control->out = fdopen(dup(fd), "w");
  fprintf(control->out, "hello %s %d %d\n", contender, rank, (int)getpid());
  fflush(control->out);
}

static inline int bench_read_line(bench_control* control) {
  ssize_t length = getline(&control->line, &control->line_bytes, control->in);
  if (length <= 0) return 0;
  if (control->line[length - 1] == '\n') control->line[length - 1] = '\0';
  return strcmp(control->line, "quit") != 0;
}

/* Waits for what to prepare; 0 when there is nothing more to do. `order` starts as zeros; what this
 * fills in belongs to it, and is freed by the next call. */
static inline int bench_next_order(bench_control* control, bench_order* order) {
  char* sizes;
  int used = 0;
  if (!bench_read_line(control)) return 0;
  if (order->text != NULL && strcmp(order->text, control->line) == 0) {
    order->is_same = 1;
    return 1;
  }
  free(order->tensor_bytes);
  free(order->text);
  free(order->round_ns);
  memset(order, 0, sizeof *order);
  order->text = strdup(control->line);
  if (sscanf(control->line, "prepare %7s %d %d %n", order->dtype, &order->warm_up_rounds,
             &order->rounds, &used) != 3 ||
      used == 0 || order->rounds < 1) {
    bench_fail(control, "not an order: '%.100s'", control->line);
  }
  order->element_bytes = strcmp(order->dtype, "bf16") == 0 ? 2 : 4;
  order->tensor_bytes = (uint64_t*)calloc(kBenchTensorsMax, sizeof(uint64_t));
  order->round_ns = (uint64_t*)calloc((size_t)order->rounds, sizeof(uint64_t));
  for (sizes = control->line + used; *sizes != '\0' && order->tensor_count < kBenchTensorsMax;) {
    const uint64_t bytes = strtoull(sizes, &sizes, 10);
    order->tensor_bytes[order->tensor_count++] = bytes;
    order->total_bytes += bytes;
    if (*sizes == ',') ++sizes;
  }
  if (order->total_bytes == 0) bench_fail(control, "no sizes: '%.100s'", order->text);
  return 1;
}

/* Says that all is warm and waits for the start; 0 when there is none. */
static inline int bench_wait_for_go(bench_control* control) {
  fputs("ready\n", control->out);
  fflush(control->out);
  return bench_read_line(control);
}

static inline void bench_report(bench_control* control, const bench_order* order) {
  int i;
  fprintf(control->out, "done %" PRIu64 " %" PRIu64 " ", order->begin_ns, order->end_ns);
  for (i = 0; i < order->rounds; ++i) {
    fprintf(control->out, "%s%" PRIu64, i == 0 ? "" : ",", order->round_ns[i]);
  }
  fputc('\n', control->out);
  fflush(control->out);
}

#endif /* TALWEG_BENCHMARKS_PEERS_CONTROL_H_ */
