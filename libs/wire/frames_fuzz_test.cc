// SPDX-License-Identifier: Apache-2.0
#include "libs/wire/frames.h"

#include <cstdint>
#include <cstdlib>
#include <span>
#include <variant>
#include <vector>

namespace talweg::wire {
namespace {

// Writes parsed entries again. Entries that were read from any bytes must come back unchanged.
template <typename Entry>
void WriteAgain(const Header& header, const std::vector<Entry>& entries) {
  FrameWriter writer(header.type, header.job, header.epoch, header.flags);
  for (const Entry& entry : entries) {
    if (!writer.Add(entry)) return;
  }
  const std::vector<std::byte> bytes = writer.Take(header.credit_bytes);
  const auto again = ParseFrame(bytes);
  if (!std::holds_alternative<Frame>(again)) std::abort();
  const Frame& frame = std::get<Frame>(again);
  if (frame.header.job != header.job || frame.header.epoch != header.epoch ||
      frame.header.entry_count != header.entry_count) {
    std::abort();
  }
}
void WriteAgain(const Header&, const std::monostate&) {}

}  // namespace
}  // namespace talweg::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace talweg::wire;
  if (size > kFrameBytesMax) return 0;
  const auto parsed = ParseFrame(std::as_bytes(std::span(data, size)));
  if (const Frame* frame = std::get_if<Frame>(&parsed)) {
    std::visit([&](const auto& entries) { WriteAgain(frame->header, entries); }, frame->entries);
  } else if (std::get<ParseError>(parsed).text.empty()) {
    std::abort();
  }
  return 0;
}
