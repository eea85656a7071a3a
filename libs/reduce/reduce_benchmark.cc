// SPDX-License-Identifier: Apache-2.0
#include "libs/reduce/reduce.h"

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/dtype.h"

// Measures bytes touched (inputs read and output written) per second. The argument is that number
// of bytes, or a little more. Two yardsticks touch as many bytes: a memcpy, and loads and stores
// alone (BM_Touch).
namespace talweg::reduce {
namespace {

constexpr int64_t kInL1 = 12 << 10;
constexpr int64_t kInL2 = 192 << 10;
constexpr int64_t kOutOfCache = 192 << 20;

// Arrays of numbers near 1 in any type, so that no operand is denormal, infinite or NaN for long.
// They are whole cache lines, one after the other, in huge pages where the kernel gives them, as in
// arenas.
class Arrays {
 public:
  // Makes as many arrays as take `touched` bytes together, or a little less.
  Arrays(DType dtype, size_t count, int64_t touched)
      : count_(count), each_bytes_(static_cast<size_t>(touched) / count / kLineBytes * kLineBytes) {
    const size_t bytes =
        (count * each_bytes_ + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, bytes)));
    TALWEG_CHECK(bytes_ != nullptr);
    madvise(bytes_.get(), bytes, MADV_HUGEPAGE);
    const uint64_t one = dtype == DType::kF32    ? 0x3f8000003f800000
                         : dtype == DType::kF64  ? 0x3ff0000000000000
                         : dtype == DType::kF16  ? 0x3c003c003c003c00
                         : dtype == DType::kBF16 ? 0x3f803f803f803f80
                                                 : 0x0101010101010101;
    for (size_t at = 0; at < bytes; at += sizeof(one)) {
      std::memcpy(bytes_.get() + at, &one, sizeof(one));
    }
  }
  size_t each_bytes() const { return each_bytes_; }
  std::byte* operator[](size_t array) const { return bytes_.get() + array * each_bytes_; }
  // Counts the bytes, if each iteration has touched all arrays once.
  void Count(benchmark::State& state) const {
    state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(count_ * each_bytes_));
  }

 private:
  static constexpr size_t kLineBytes = 64;
  static constexpr size_t kHugePageBytes = size_t{2} << 20;
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  const size_t count_;
  const size_t each_bytes_;
  std::unique_ptr<std::byte[], Free> bytes_;
};

void BM_Copy(benchmark::State& state) {
  const Arrays arrays(DType::kF32, 2, state.range(0));
  for (auto _ : state) {
    std::memcpy(arrays[1], arrays[0], arrays.each_bytes());
    benchmark::ClobberMemory();
  }
  arrays.Count(state);
}

template <size_t kVectorBytes>
[[gnu::always_inline]] inline void TouchVectors(const std::byte* a, const std::byte* b,
                                                std::byte* output, size_t bytes) {
  using Vector [[gnu::vector_size(kVectorBytes)]] = uint64_t;
  for (size_t at = 0; at < bytes; at += kVectorBytes) {
    Vector x;
    Vector y;
    std::memcpy(&x, a + at, sizeof(x));
    std::memcpy(&y, b + at, sizeof(y));
    x ^= y;
    std::memcpy(output + at, &x, sizeof(x));
  }
}

[[gnu::target("avx512f")]] void TouchAvx512(const std::byte* a, const std::byte* b,
                                            std::byte* output, size_t bytes) {
  TouchVectors<64>(a, b, output, bytes);
}
[[gnu::target("avx2")]] void TouchAvx2(const std::byte* a, const std::byte* b, std::byte* output,
                                       size_t bytes) {
  TouchVectors<32>(a, b, output, bytes);
}
void TouchPortable(const std::byte* a, const std::byte* b, std::byte* output, size_t bytes) {
  TouchVectors<16>(a, b, output, bytes);
}

// In a cache, no sum of two inputs with vectors of that width can be faster than this: it has two
// loads, one store, and one operation that makes them depend on each other.
void BM_Touch(benchmark::State& state, Isa isa, bool in_place) {
  const auto touch = isa == Isa::kAvx512 ? TouchAvx512
                     : isa == Isa::kAvx2 ? TouchAvx2
                                         : TouchPortable;
  const Arrays arrays(DType::kF32, 3, state.range(0));
  for (auto _ : state) {
    touch(arrays[0], arrays[1], arrays[in_place ? 0 : 2], arrays.each_bytes());
    benchmark::ClobberMemory();
  }
  arrays.Count(state);
}

struct Variant {
  ReduceSpec spec;
  size_t input_count = 2;
  Isa isa = Isa::kPortable;
  bool in_place = false;
};

void BM_Reduce(benchmark::State& state, const Variant& variant) {
  const Arrays arrays(variant.spec.dtype, variant.input_count + 1, state.range(0));
  std::vector<const std::byte*> inputs;
  for (size_t i = 0; i < variant.input_count; ++i) inputs.push_back(arrays[i]);
  std::byte* const output = arrays[variant.in_place ? 0 : variant.input_count];
  const size_t count = arrays.each_bytes() / DTypeSize(variant.spec.dtype);
  // In place, a sum of ones grows until it is infinite, which costs no more.
  for (auto _ : state) {
    Reduce(variant.spec, inputs, output, count, variant.isa);
    benchmark::ClobberMemory();
  }
  arrays.Count(state);
}

void BM_Scale(benchmark::State& state, DType dtype, Isa isa) {
  const Arrays arrays(dtype, 2, state.range(0));
  const size_t count = arrays.each_bytes() / DTypeSize(dtype);
  for (auto _ : state) {
    Scale(dtype, 0.75, arrays[0], arrays[1], count, isa);
    benchmark::ClobberMemory();
  }
  arrays.Count(state);
}

template <class Function, class... Arguments>
void Register(const std::string& name, Function function, const Arguments&... arguments) {
  auto* const registered = benchmark::RegisterBenchmark(name.c_str(), function, arguments...);
  for (const int64_t touched : {kInL1, kInL2, int64_t{3} << 20, int64_t{48} << 20, kOutOfCache}) {
    registered->Arg(touched);
  }
}

int RegisterAll() {
  Register("BM_Copy", BM_Copy);
  for (const Isa isa : kAllIsas) {
    if (!IsSupported(isa)) continue;
    const auto name_for_isa = [isa](const std::string& benchmark, const std::string& name) {
      return benchmark + "/" + std::string(IsaName(isa)) + "/" + name;
    };
    const auto register_for_isa = [&](const std::string& name, Variant variant) {
      variant.isa = isa;
      Register(name_for_isa("BM_Reduce", name), BM_Reduce, variant);
    };
    Register(name_for_isa("BM_Touch", "apart"), BM_Touch, isa, false);
    Register(name_for_isa("BM_Touch", "in_place"), BM_Touch, isa, true);
    for (const DType dtype : kAllDTypes) {
      for (const Op op : kAllOps) {
        if (!IsReduction(dtype, op)) continue;
        const uint32_t divisor = op == Op::kAverage ? 3 : 1;  // The divisor is no power of two.
        const std::string name = std::string(DTypeName(dtype)).append("/").append(OpName(op));
        register_for_isa(name, {.spec = {.dtype = dtype, .op = op, .divisor = divisor}});
        if (op == Op::kAverage) {
          register_for_isa(name + "_of_2", {.spec = {.dtype = dtype, .op = op, .divisor = 2}});
        }
      }
      if (IsScalable(dtype)) {
        Register(name_for_isa("BM_Scale", std::string(DTypeName(dtype))), BM_Scale, dtype, isa);
      }
    }
    const ReduceSpec f32 = {.dtype = DType::kF32, .op = Op::kSum};
    const ReduceSpec bf16 = {.dtype = DType::kBF16, .op = Op::kSum};
    register_for_isa("f32/sum_in_place", {.spec = f32, .in_place = true});
    register_for_isa("bf16/sum_in_place", {.spec = bf16, .in_place = true});
    ReduceSpec spec = f32;
    spec.stores = Stores::kCached;
    register_for_isa("f32/sum_cached", {.spec = spec});
    // Such stores leave the caches, so they are measured outside of them.
    spec.stores = Stores::kStreaming;
    Variant streaming = {.spec = spec, .isa = isa};
    benchmark::RegisterBenchmark(name_for_isa("BM_Reduce", "f32/sum_streaming").c_str(), BM_Reduce,
                                 streaming)
        ->Arg(kOutOfCache);
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
