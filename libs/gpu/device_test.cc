// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/device.h"

#include <string>

#include <catch2/catch.hpp>

namespace talweg::gpu {
namespace {

using Catch::Matchers::Contains;

constexpr char kText[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";

TEST_CASE("Uuid: it is written as nvidia-smi writes it, and read back", "[gpu]") {
  const auto uuid = ParseUuid(kText);
  REQUIRE(uuid.ok());
  CHECK(uuid->bytes[0] == 0x01);
  CHECK(uuid->bytes[15] == 0xef);
  CHECK(FormatUuid(*uuid) == kText);
  CHECK(*ParseUuid("01234567-89AB-CDEF-0123-456789abcdef") == *uuid);
  CHECK(*ParseUuid("MIG-01234567-89ab-cdef-0123-456789abcdef") == *uuid);
}

TEST_CASE("Uuid: any other text is refused and named", "[gpu]") {
  for (const std::string text :
       {"", "0", "GPU-", "GPU-01234567-89ab-cdef-0123-456789abcde",
        "GPU-01234567-89ab-cdef-0123-456789abcdef0", "GPU-01234567-89ab-cdef-0123-456789abcdeg",
        "GPU-0123456789ab-cdef-0123-456789abcdef--", "GPU-01234567_89ab-cdef-0123-456789abcdef",
        "GPU-GPU-01234567-89ab-cdef-0123-456789abcdef"}) {
    INFO(text);
    const auto uuid = ParseUuid(text);
    REQUIRE_FALSE(uuid.ok());
    CHECK(absl::IsInvalidArgument(uuid.status()));
    CHECK_THAT(std::string(uuid.status().message()),
               Contains("'" + text + "'") && Contains("nvidia-smi -L"));
  }
}

TEST_CASE("NoSuchGpu: it names what was asked for, what there is, and what hides others", "[gpu]") {
  const GpuInfo there = {.uuid = {{1}}, .name = "A GPU", .pci_bus_id = "0000:01:00.0"};
  const absl::Status status = NoSuchGpu(*ParseUuid(kText), {&there, 1});
  CHECK(absl::IsNotFound(status));
  CHECK_THAT(std::string(status.message()),
             Contains(kText) && Contains("A GPU (GPU-01000000-") && Contains("0000:01:00.0") &&
                 Contains("CUDA_VISIBLE_DEVICES") && Contains("NVIDIA_VISIBLE_DEVICES"));
}

TEST_CASE("Combines: it is true where a collective keeps the operation's meaning", "[gpu]") {
  CHECK(Communicator::Combines(DType::kBF16, Op::kSum));
  CHECK(Communicator::Combines(DType::kI8, Op::kMin));
  CHECK(Communicator::Combines(DType::kU64, Op::kMax));
  CHECK(Communicator::Combines(DType::kBool, Op::kMax));
  CHECK_FALSE(Communicator::Combines(DType::kBool, Op::kSum));
  CHECK_FALSE(Communicator::Combines(DType::kI16, Op::kSum));
  CHECK_FALSE(Communicator::Combines(DType::kU8, Op::kBitOr));
  CHECK_FALSE(Communicator::Combines(DType::kF32, Op::kMax));
  CHECK_FALSE(Communicator::Combines(DType::kF32, Op::kAverage));
  CHECK_FALSE(Communicator::Combines(DType::kUnspecified, Op::kSum));
}

}  // namespace
}  // namespace talweg::gpu
