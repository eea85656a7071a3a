// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_BENCHMARKS_BASELINES_ORDERS_H_
#define TALWEG_BENCHMARKS_BASELINES_ORDERS_H_

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/peers/control.h"

// A gradient of a baseline's worker, in f32. The sum ends where the contribution was.
struct Tensor {
  float* data = nullptr;
  uint64_t count = 0;
};

// Carries out ./bench's orders. `reduce` replaces all tensors by their sums over all workers.
// Checks the first round when `worker_count` is known (not 0). Returns main()'s status.
inline int ServeOrders(int rank, const std::function<void(const std::vector<Tensor>&)>& reduce,
                       int worker_count = 0) {
  bench_control control;
  bench_order order = {};
  std::vector<std::vector<float>> buffers;
  std::vector<Tensor> tensors;
  const auto fill = [&buffers](float value) {
    for (std::vector<float>& buffer : buffers) std::fill(buffer.begin(), buffer.end(), value);
  };
  bench_connect(&control, rank);
  while (bench_next_order(&control, &order) != 0) {
    if (order.is_same == 0) {
      if (order.element_bytes != sizeof(float)) bench_fail(&control, "sums f32 only");
      buffers.clear();
      tensors.clear();
      for (int i = 0; i < order.tensor_count; ++i) {
        buffers.emplace_back(order.tensor_bytes[i] / sizeof(float));
      }
      fill(static_cast<float>(rank + 1));
      for (std::vector<float>& buffer : buffers) tensors.push_back({buffer.data(), buffer.size()});
      reduce(tensors);
      const float expected = static_cast<float>(worker_count * (worker_count + 1)) / 2;
      for (const Tensor& tensor : tensors) {
        for (const uint64_t place : {uint64_t{0}, tensor.count / 2, tensor.count - 1}) {
          if (worker_count == 0 || tensor.data[place] == expected) continue;
          bench_fail(&control, "the sum is %g, not %g", tensor.data[place], expected);
        }
      }
      fill(1);  // Sums of sums overflow; that costs the same.
    }
    for (int i = 0; i < order.warm_up_rounds; ++i) reduce(tensors);
    if (bench_wait_for_go(&control) == 0) break;
    uint64_t now_ns = order.begin_ns = bench_now_ns();
    for (int i = 0; i < order.rounds; ++i) {
      reduce(tensors);
      order.end_ns = bench_now_ns();
      order.round_ns[i] = order.end_ns - now_ns;
      now_ns = order.end_ns;
    }
    bench_report(&control, &order);
  }
  return 0;
}

#endif  // TALWEG_BENCHMARKS_BASELINES_ORDERS_H_
