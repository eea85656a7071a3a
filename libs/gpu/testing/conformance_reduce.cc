// SPDX-License-Identifier: Apache-2.0
//
// Compares Device::Reduce with the kernels on the host, which tests/gpu compares with the CPU's.
#include <algorithm>
#include <cstring>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/dtype.h"
#include "libs/base/random.h"
#include "libs/gpu/kernels/reduce_plan.h"
#include "libs/gpu/testing/harness.h"

namespace talweg::gpu {
namespace {

// Inputs and an output on the device and on the host. With a `skew`, each begins that many elements
// after where vectors lie.
class Bench {
 public:
  Bench(Case& c, uint64_t bytes_max, size_t inputs_max)
      : c_(c),
        stride_(bytes_max + 64),
        count_(inputs_max + 1),
        host_(c.Host(stride_ * count_)),
        result_(c.Host(stride_)),
        device_(c.Memory(stride_ * count_)),
        stream_(c.Stream()) {
    const uint64_t rest = stride_ % 16;
    stride_ -= rest;
  }

  std::byte* input(size_t i, uint64_t offset = 0) { return &host_[i * stride_ + offset]; }
  std::span<std::byte> inputs() { return host_; }

  // Where results go: beside the inputs, or to each of them.
  enum class Target : uint8_t { kBeside, kEach };

  // Returns whether the device's results are the host's.
  bool Same(const ReduceSpec& spec, size_t input_count, uint64_t element_count, uint64_t skew,
            Target target) {
    const uint64_t size = DTypeSize(spec.dtype);
    const uint64_t bytes = element_count * size;
    std::vector<uint64_t> host_inputs;
    std::vector<uint64_t> device_inputs;
    for (size_t i = 0; i < input_count; ++i) {
      const uint64_t at = i * stride_ + skew * (i + 1) * size % 48;
      host_inputs.push_back(reinterpret_cast<uint64_t>(&host_[at]));
      device_inputs.push_back(device_.address + at);
    }
    std::vector<uint64_t> want((bytes + 7) / 8 + 1);
    const auto plan = kernels::PlanReduce(spec, host_inputs,
                                          reinterpret_cast<uint64_t>(want.data()), element_count);
    REQUIRE(plan.ok());
    kernels::RunOnHost(*plan, 1);
    std::vector<uint64_t> outputs = {device_.address + (count_ - 1) * stride_};
    if (target == Target::kEach) outputs = device_inputs;
    REQUIRE(c_.device->CopyToDevice(stream_, device_, host_).ok());
    const absl::Status status =
        c_.device->ReduceTo(stream_, spec, device_inputs, outputs, element_count);
    INFO(status.ToString());
    REQUIRE(status.ok());
    if (bytes == 0) return true;
    return std::all_of(outputs.begin(), outputs.end(), [&](uint64_t output) {
      REQUIRE(c_.device->CopyToHost(stream_, result_.first(bytes), {output, bytes}).ok());
      c_.Finish(stream_);
      return std::memcmp(result_.data(), want.data(), bytes) == 0;
    });
  }

 private:
  Case& c_;
  uint64_t stride_;
  size_t count_;
  std::span<std::byte> host_;
  std::span<std::byte> result_;
  DeviceSpan device_;
  StreamId stream_;
};

using Target = Bench::Target;

TEST_CASE("reduce: every dtype, op, number of inputs and placement has the host's bits", "[gpu]") {
  Case c;
  if (c.skipped() || !c.harness->HasKernels()) return;
  Bench bench(c, 9000, 8);
  // These are any bits, with NaNs, denormals and infinities among them.
  FillPattern(bench.inputs(), 1);
  for (const DType dtype : kAllDTypes) {
    for (const Op op : kAllOps) {
      if (!OpDefined(dtype, op) || op == Op::kCopy) continue;
      for (const uint32_t inputs : {1, 2, 3, 4, 5, 8}) {
        for (const uint64_t elements : {0, 1, 16, 67, 1021}) {
          for (const uint64_t skew : {0, 1}) {
            for (const uint32_t divisor : {1u, 2u, 3u}) {
              if (op != Op::kAverage && divisor != 1) continue;
              const ReduceSpec spec = {.dtype = dtype, .op = op, .divisor = divisor};
              INFO(DTypeName(dtype) << ' ' << OpName(op) << ", inputs " << inputs << ", elements "
                                    << elements << ", skew " << skew << ", divisor " << divisor);
              CHECK(bench.Same(spec, inputs, elements, skew,
                               elements % 2 == 1 ? Target::kEach : Target::kBeside));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("reduce: all numbers of 16 bits, and ties between them, have the host's bits", "[gpu]") {
  Case c;
  if (c.skipped() || !c.harness->HasKernels()) return;
  constexpr uint64_t kNumbers = 65536;
  Bench bench(c, kNumbers * 2, 2);
  for (uint32_t i = 0; i < kNumbers; ++i) {
    const uint16_t number = static_cast<uint16_t>(i);
    const uint16_t next = static_cast<uint16_t>(i + 1);
    std::memcpy(bench.input(0, i * 2), &number, 2);
    std::memcpy(bench.input(1, i * 2), &next, 2);
  }
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const ReduceSpec& spec :
         {ReduceSpec{.dtype = dtype, .op = Op::kAverage, .divisor = 2},
          ReduceSpec{.dtype = dtype, .op = Op::kAverage, .divisor = 3},
          ReduceSpec{.dtype = dtype, .op = Op::kProduct},
          ReduceSpec{.dtype = dtype, .op = Op::kMin}, ReduceSpec{.dtype = dtype, .op = Op::kMax}}) {
      INFO(DTypeName(dtype) << ' ' << OpName(spec.op) << ", divisor " << spec.divisor);
      CHECK(bench.Same(spec, 2, kNumbers, 0, Target::kBeside));
    }
  }
}

TEST_CASE("reduce: it works on more elements than a grid has threads", "[gpu]") {
  Case c;
  if (c.skipped() || !c.harness->HasKernels()) return;
  constexpr uint64_t kElements = 6'000'011;
  Bench bench(c, kElements * 4, 2);
  FillPattern(bench.inputs(), 2);
  CHECK(bench.Same({.dtype = DType::kF32, .op = Op::kSum}, 2, kElements, 0, Target::kBeside));
  CHECK(bench.Same({.dtype = DType::kU8, .op = Op::kMax}, 2, kElements, 1, Target::kBeside));
  CHECK(bench.Same({.dtype = DType::kBF16, .op = Op::kAverage, .divisor = 3}, 2, kElements, 0,
                   Target::kEach));
}

}  // namespace
}  // namespace talweg::gpu
