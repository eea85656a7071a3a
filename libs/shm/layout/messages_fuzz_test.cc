// SPDX-License-Identifier: Apache-2.0

// Any bytes on the socket are a message, the beginning of one, or an error. A message is read back
// unchanged from its own encoding.

#include "libs/shm/layout/messages.h"

#include <array>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace talweg::shm;
  std::span<const std::byte> left(reinterpret_cast<const std::byte*>(data), size);
  while (!left.empty()) {
    const ParseResult result = ParseMessage(left);
    if (result.outcome == ParseOutcome::kNeedMore && result.bytes_needed <= left.size())
      std::abort();
    if (result.outcome != ParseOutcome::kMessage) break;
    if (result.bytes_used < kMessageHeaderBytes || result.bytes_used > left.size()) std::abort();
    std::array<std::byte, kEncodedBytesMax> encoded;
    const size_t count = EncodeMessage(result.message, encoded);
    const ParseResult again = ParseMessage(std::span<const std::byte>(encoded).first(count));
    if (count == 0 || again.outcome != ParseOutcome::kMessage) std::abort();
    if (again.message.body != result.message.body) std::abort();
    left = left.subspan(result.bytes_used);
  }
  return 0;
}
