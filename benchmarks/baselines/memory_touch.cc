// SPDX-License-Identifier: Apache-2.0
//
// Measures the lowest cost of summing among the ranks of one node. Each rank's gradient is read
// once, and each rank's result is written once, in place, by all ranks at the same time. No rank
// waits for another, and nothing is summed. ./bench divides by the speed that this reaches.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "benchmarks/baselines/each_cpu.h"
#include "benchmarks/peers/control.h"

namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

// Reads and writes every byte once, and does nothing else.
TALWEG_FOR_EACH_CPU void Touch(float* data, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) data[i] += 1.0f;
}

void TouchAll(const bench_order& order, float* data) {
  Touch(data, order.total_bytes / sizeof(float));
  // This keeps the compiler from merging the next round with this one.
  __asm__ volatile("" : : "r"(data) : "memory");
}

}  // namespace

int main(int argc, char** argv) {
  bench_control control;
  bench_order order = {};
  float* data = nullptr;
  bench_connect(&control, argc > 1 ? std::atoi(argv[1]) : 0);
  while (bench_next_order(&control, &order) != 0) {
    if (order.is_same == 0) {
      std::free(data);
      const size_t bytes =
          (order.total_bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
      data = static_cast<float*>(std::aligned_alloc(kHugePageBytes, bytes));
      if (data == nullptr) bench_fail(&control, "no memory for %s", order.text);
      madvise(data, bytes, MADV_HUGEPAGE);
      std::memset(data, 0, bytes);
    }
    for (int i = 0; i < order.warm_up_rounds; ++i) TouchAll(order, data);
    if (bench_wait_for_go(&control) == 0) break;
    uint64_t now_ns = order.begin_ns = bench_now_ns();
    for (int i = 0; i < order.rounds; ++i) {
      TouchAll(order, data);
      order.end_ns = bench_now_ns();
      order.round_ns[i] = order.end_ns - now_ns;
      now_ns = order.end_ns;
    }
    bench_report(&control, &order);
  }
  std::free(data);
  return 0;
}
