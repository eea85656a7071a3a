// SPDX-License-Identifier: Apache-2.0
#include "libs/reduce/reduce.h"

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libs/base/dtype.h"

// Bytes touched (inputs read, output written) per second; the argument is the bytes of the output.
// A memcpy of the same size is the yardstick: BM_Copy touches two bytes for each one it copies.
namespace talweg::reduce {
namespace {

constexpr int64_t kSmallest = 4 << 10;
constexpr int64_t kLargest = 64 << 20;

// Numbers near 1 of every type, so that no operand is denormal, infinite or NaN for long; on a
// cache line's boundary, as arenas and slots are.
class Numbers {
 public:
  Numbers(DType dtype, size_t bytes)
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(kLine, bytes))) {
    const uint64_t one = dtype == DType::kF32    ? 0x3f8000003f800000
                         : dtype == DType::kF64  ? 0x3ff0000000000000
                         : dtype == DType::kF16  ? 0x3c003c003c003c00
                         : dtype == DType::kBF16 ? 0x3f803f803f803f80
                                                 : 0x0101010101010101;
    for (size_t at = 0; at < bytes; at += sizeof(one)) std::memcpy(data() + at, &one, sizeof(one));
  }
  std::byte* data() const { return bytes_.get(); }

 private:
  static constexpr size_t kLine = 64;
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte[], Free> bytes_;
};

void BM_Copy(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(state.range(0));
  const Numbers input(DType::kF32, bytes);
  const Numbers output(DType::kF32, bytes);
  for (auto _ : state) {
    std::memcpy(output.data(), input.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 2);
}

struct Variant {
  ReduceSpec spec;
  size_t input_count = 2;
  Isa isa = Isa::kPortable;
  bool in_place = false;
};

void BM_Reduce(benchmark::State& state, const Variant& variant) {
  const size_t bytes = static_cast<size_t>(state.range(0));
  std::vector<Numbers> inputs;
  std::vector<const std::byte*> pointers;
  for (size_t i = 0; i < variant.input_count; ++i) {
    pointers.push_back(inputs.emplace_back(variant.spec.dtype, bytes).data());
  }
  const Numbers apart(variant.spec.dtype, bytes);
  std::byte* const output = variant.in_place ? inputs[0].data() : apart.data();
  // In place a sum of ones grows until it is infinite, which costs no more.
  for (auto _ : state) {
    Reduce(variant.spec, pointers, output, bytes / DTypeSize(variant.spec.dtype), variant.isa);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) *
                          static_cast<int64_t>(variant.input_count + 1));
}

void Register(const std::string& name, const Variant& variant) {
  benchmark::RegisterBenchmark(("BM_Reduce/" + name).c_str(), BM_Reduce, variant)
      ->RangeMultiplier(16)
      ->Range(kSmallest, kLargest);
}

int RegisterAll() {
  benchmark::RegisterBenchmark("BM_Copy", BM_Copy)->RangeMultiplier(16)->Range(kSmallest, kLargest);
  for (const Isa isa : kAllIsas) {
    if (!IsSupported(isa)) continue;
    const auto register_for_isa = [isa](const std::string& name, Variant variant) {
      variant.isa = isa;
      Register(std::string(IsaName(isa)).append("/").append(name), variant);
    };
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI8,
                              DType::kU8, DType::kI32, DType::kI64}) {
      for (const Op op : {Op::kSum, Op::kAverage, Op::kMin, Op::kMax, Op::kProduct}) {
        if (!IsReduction(dtype, op)) continue;
        const uint32_t divisor = op == Op::kAverage ? 3 : 1;  // No power of two.
        const std::string name = std::string(DTypeName(dtype)).append("/").append(OpName(op));
        register_for_isa(name, {.spec = {.dtype = dtype, .op = op, .divisor = divisor}});
        if (op == Op::kAverage) {
          register_for_isa(name + "_of_2", {.spec = {.dtype = dtype, .op = op, .divisor = 2}});
        }
      }
    }
    const ReduceSpec f32 = {.dtype = DType::kF32, .op = Op::kSum};
    const ReduceSpec bf16 = {.dtype = DType::kBF16, .op = Op::kSum};
    register_for_isa("f32/sum_in_place", {.spec = f32, .in_place = true});
    register_for_isa("bf16/sum_in_place", {.spec = bf16, .in_place = true});
    for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
      ReduceSpec spec = f32;
      spec.stores = stores;
      register_for_isa(stores == Stores::kCached ? "f32/sum_cached" : "f32/sum_streaming",
                       {.spec = spec});
    }
    for (const size_t inputs : {3, 4, 8, 16, 32}) {
      register_for_isa(std::string("f32/sum_of_").append(std::to_string(inputs)),
                       {.spec = f32, .input_count = inputs});
    }
  }
  return 0;
}

[[maybe_unused]] const int registered = RegisterAll();

}  // namespace
}  // namespace talweg::reduce
