// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/device.h"

#include <absl/strings/str_cat.h>

#include "libs/base/check.h"

namespace talweg::gpu {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

// The value of a hexadecimal digit, or -1.
int HexValue(char c) {
  if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  const size_t at = kHexDigits.find(c);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

// Whether a hyphen stands before this byte.
bool IsAfterHyphen(size_t byte) { return byte == 4 || byte == 6 || byte == 8 || byte == 10; }

}  // namespace

std::string FormatUuid(const GpuUuid& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.bytes.size(); ++i) {
    if (IsAfterHyphen(i)) text += '-';
    text += kHexDigits[uuid.bytes[i] >> 4];
    text += kHexDigits[uuid.bytes[i] & 15];
  }
  return text;
}

absl::StatusOr<GpuUuid> ParseUuid(std::string_view text) {
  const auto bad = [whole = text] {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::string_view(whole.data(), whole.size()),
                     "' is not a GPU's UUID; nvidia-smi -L lists them, like "
                     "GPU-01234567-89ab-cdef-0123-456789abcdef"));
  };
  std::string_view rest = text;
  if (rest.starts_with("GPU-") || rest.starts_with("MIG-")) rest.remove_prefix(4);
  GpuUuid uuid;
  for (size_t i = 0; i < uuid.bytes.size(); ++i) {
    if (IsAfterHyphen(i)) {
      if (!rest.starts_with('-')) return bad();
      rest.remove_prefix(1);
    }
    if (rest.size() < 2 || HexValue(rest[0]) < 0 || HexValue(rest[1]) < 0) return bad();
    uuid.bytes[i] = static_cast<uint8_t>(HexValue(rest[0]) * 16 + HexValue(rest[1]));
    rest.remove_prefix(2);
  }
  if (!rest.empty()) return bad();
  return uuid;
}

std::string Describe(const GpuInfo& gpu) {
  return absl::StrCat(gpu.name, " (", FormatUuid(gpu.uuid), ", ", gpu.pci_bus_id, ")");
}

DeviceSpan DeviceSpan::Part(uint64_t offset, uint64_t part_bytes) const {
  TALWEG_CHECK(offset <= bytes && part_bytes <= bytes - offset);
  return {address + offset, part_bytes};
}

bool Communicator::Combines(DType dtype, Op op) {
  // NCCL has no integers of 16 bits.
  if (!OpDefined(dtype, op) || (!IsFloat(dtype) && DTypeSize(dtype) == 2)) return false;
  switch (op) {
    case Op::kSum:
    case Op::kProduct: return true;
    case Op::kMin:
    case Op::kMax: return !IsFloat(dtype);
    default: return false;
  }
}

absl::Status NoPeer() {
  return absl::InvalidArgumentError("a copy to a peer goes to another device of the same platform");
}

absl::Status CheckRoot(size_t root, size_t part_count) {
  if (root < part_count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("part ", root, " of ", part_count, " was to be a collective's root"));
}

absl::Status NoSuchGpu(const GpuUuid& uuid, std::span<const GpuInfo> gpus) {
  std::string there;
  for (const GpuInfo& gpu : gpus) absl::StrAppend(&there, there.empty() ? "" : "; ", Describe(gpu));
  return absl::NotFoundError(absl::StrCat(
      FormatUuid(uuid),
      " is not among the GPUs of this process: ", there.empty() ? "it has none" : there,
      ". CUDA_VISIBLE_DEVICES, and in a container NVIDIA_VISIBLE_DEVICES, hide "
      "others: the agent must see every GPU that its ranks use"));
}

absl::Status NotRecordedHere(EventId event) {
  return absl::InvalidArgumentError(absl::StrCat(
      "event ", event.value(),
      " is another process's to record, and may never be done: no stream waits for it"));
}

}  // namespace talweg::gpu
