// SPDX-License-Identifier: Apache-2.0

// Sums of random rows, beside dense sums of the same tensors.

#include "libs/reduce/rows.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/dtype.h"

namespace talweg::reduce {
namespace {

// A part, with its memory at an odd address.
struct Part {
  std::vector<int64_t> numbers;
  std::vector<std::byte> packed_numbers, values;

  Rows rows() const { return {packed_numbers.data() + 1, values.data() + 1, numbers.size()}; }
};

class Random {
 public:
  explicit Random(uint32_t seed) : generator_(seed) {}

  uint64_t Below(uint64_t end) { return generator_() % end; }

  Part MakePart(DType dtype, const RowLayout& layout) {
    Part part;
    const int64_t first = layout.number_bytes == 8 && Below(4) == 0 ? int64_t{1} << 40 : 0;
    for (int64_t number = first; number < first + 40; ++number) {
      const uint64_t times = Below(3) == 0 ? 1 + Below(2) * Below(6) : 0;
      part.numbers.insert(part.numbers.end(), times, number);
    }
    part.packed_numbers.resize(1 + part.numbers.size() * layout.number_bytes);
    for (size_t i = 0; i < part.numbers.size(); ++i) {
      // Little-endian: the low bytes come first.
      std::memcpy(part.packed_numbers.data() + 1 + i * layout.number_bytes, &part.numbers[i],
                  layout.number_bytes);
    }
    part.values.resize(1 + part.numbers.size() * layout.elements * DTypeSize(dtype));
    for (std::byte& byte : part.values) byte = static_cast<std::byte>(Below(256));
    return part;
  }

 private:
  std::mt19937_64 generator_;
};

std::optional<uint64_t> Add(const ReduceSpec& spec, const RowLayout& layout,
                            std::span<const Rows> parts, int64_t* numbers, std::byte* values) {
  std::vector<RowCursor> cursors(parts.size());
  size_t rows = 0;
  for (const Rows& part : parts) rows += part.count;
  std::vector<const std::byte*> inputs(rows);
  return AddRows(spec, layout, parts, cursors.data(), inputs.data(), numbers, values);
}

TEST_CASE("AddRows: each row is the sum of those with its number, in the order of the parts") {
  Random random(1);
  for (const DType dtype :
       {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI8, DType::kU64}) {
    for (const uint64_t elements : {0, 1, 3, 64, 129}) {
      for (const uint32_t number_bytes : {4U, 8U}) {
        for (const uint32_t divisor : {1U, 5U}) {
          const Op op = divisor == 1 ? Op::kSum : Op::kAverage;
          if (!IsReduction(dtype, op)) continue;
          const RowLayout layout = {number_bytes, elements};
          const ReduceSpec spec = {.dtype = dtype, .op = op, .divisor = divisor};
          const uint64_t row_bytes = elements * DTypeSize(dtype);
          std::vector<Part> parts;
          for (uint64_t i = random.Below(7); i > 0; --i) {
            parts.push_back(random.MakePart(dtype, layout));
          }
          std::vector<Rows> given;
          std::map<int64_t, std::vector<const std::byte*>> inputs;
          size_t most = 0;
          for (const Part& part : parts) {
            given.push_back(part.rows());
            most += part.numbers.size();
            for (size_t i = 0; i < part.numbers.size(); ++i) {
              inputs[part.numbers[i]].push_back(given.back().values + i * row_bytes);
            }
          }
          std::vector<int64_t> numbers(most);
          std::vector<std::byte> values(most * row_bytes + 1);
          const auto count = Add(spec, layout, given, numbers.data(), values.data());
          REQUIRE(count == inputs.size());
          std::vector<std::byte> expected(row_bytes);
          uint64_t row = 0;
          for (const auto& [number, of] : inputs) {
            REQUIRE(numbers[row] == number);
            if (elements > 0) {
              Reduce(spec, of, expected.data(), elements);
              REQUIRE(std::memcmp(values.data() + row * row_bytes, expected.data(), row_bytes) ==
                      0);
            }
            ++row;
          }
        }
      }
    }
  }
}

TEST_CASE("AddRows: rows of 16 bits that a part has several times are rounded once") {
  const std::array<int64_t, 3> numbers = {4, 4, 4};
  const std::array<uint16_t, 3> values = {0x6800, 0x3C00, 0x3C00};  // 2048, 1, 1.
  const Rows part = {reinterpret_cast<const std::byte*>(numbers.data()),
                     reinterpret_cast<const std::byte*>(values.data()), 3};
  std::array<int64_t, 3> out_numbers;
  std::array<uint16_t, 3> out;
  REQUIRE(Add({.dtype = DType::kF16, .op = Op::kSum}, {8, 1}, {&part, 1}, out_numbers.data(),
              reinterpret_cast<std::byte*>(out.data())) == 1);
  CHECK(out_numbers[0] == 4);
  CHECK(out[0] == 0x6801);  // 2050. The sum of the first two is 2048 again if it is rounded.
}

TEST_CASE("AddRows: numbers that do not ascend are refused") {
  const std::array<float, 3> values = {1, 2, 3};
  const ReduceSpec spec = {.dtype = DType::kF32, .op = Op::kSum};
  for (const std::array<int64_t, 3>& numbers :
       {std::array<int64_t, 3>{2, 1, 2}, std::array<int64_t, 3>{1, 3, 2}}) {
    const std::array<int64_t, 1> good_number = {2};
    const Rows good = {reinterpret_cast<const std::byte*>(good_number.data()),
                       reinterpret_cast<const std::byte*>(values.data()), 1};
    const Rows bad = {reinterpret_cast<const std::byte*>(numbers.data()),
                      reinterpret_cast<const std::byte*>(values.data()), 3};
    std::array<int64_t, 4> out_numbers;
    std::array<float, 4> out;
    const std::array<Rows, 2> parts = {good, bad};
    CHECK_FALSE(
        Add(spec, {8, 1}, parts, out_numbers.data(), reinterpret_cast<std::byte*>(out.data())));
  }
}

}  // namespace
}  // namespace talweg::reduce
