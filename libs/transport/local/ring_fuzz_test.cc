// SPDX-License-Identifier: Apache-2.0
// A peer of a local connection may write anything into its ring and its control page, at any time.
// Reading touches only memory that was given to the peer.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "libs/base/check.h"
#include "libs/transport/local/connection.h"

namespace talweg::transport {
namespace {

class FixedRegistration final : public Registration {
 public:
  FixedRegistration(std::span<std::byte> bytes, wire::RemoteRef base) {
    bytes_ = bytes;
    base_ = base;
  }
};

}  // namespace
}  // namespace talweg::transport

// The first 24 bytes of the input become the peer's positions and flags, the rest its records.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace talweg::transport;
  if (size < 24) return 0;
  int sockets[2];
  TALWEG_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
  talweg::Descriptor other_end(sockets[1]);
  auto ours = RingMapping::Create(kRingBytesMin);
  auto theirs = RingMapping::Create(kRingBytesMin);
  TALWEG_CHECK(ours.ok() && theirs.ok());

  uint64_t words[3];
  std::memcpy(words, data, sizeof(words));
  std::memcpy(theirs->At(0), data + sizeof(words), std::min(size - sizeof(words), kRingBytesMin));
  LocalConnection connection(talweg::ConnectionId(1), talweg::Descriptor(sockets[0]),
                             *std::move(ours), "a fuzzed peer");
  PeerDescriptors handed;
  handed.ring = talweg::Descriptor(dup(theirs->memory_descriptor()));
  handed.doorbell = talweg::Descriptor(dup(sockets[1]));
  TALWEG_CHECK(connection.Establish(std::move(handed)).ok());

  // The bytes around the target were given to nobody.
  constexpr size_t kGuard = 4096;
  static std::vector<std::byte> memory(3 * kGuard);
  std::fill(memory.begin(), memory.end(), std::byte{0x5a});
  const FixedRegistration region(std::span(memory).subspan(kGuard, kGuard),
                                 {.key = 7, .address = 0x1000});
  const RegionTable regions = {{7, {.registration = &region}}};

  RingControl& control = *theirs->control();
  control.write_position = words[0] % (2 * kRingBytesMin);
  control.read_position = words[1] % 4096;
  control.sleep_count = static_cast<uint32_t>(words[2]);
  control.blocked = static_cast<uint32_t>(words[2] >> 32);
  control.beats = static_cast<uint32_t>(words[0] >> 32);
  connection.PostFrame(std::vector<std::byte>(100));
  std::deque<uint64_t> done;
  static_cast<void>(connection.Advance(&done));
  connection.PrepareToSleep();
  connection.Beat();
  connection.PeerHasBeaten();
  for (int i = 0; i < 10000; ++i) {
    const auto read = connection.Read(regions);
    if (!read.ok() || *read == LocalConnection::ReadResult::kEmpty) break;
    if (*read == LocalConnection::ReadResult::kFrame) {
      TALWEG_CHECK(connection.frame().size() <= talweg::wire::kFrameBytesMax);
    }
  }
  const auto untouched = [](std::byte byte) { return byte == std::byte{0x5a}; };
  TALWEG_CHECK(std::all_of(memory.begin(), memory.begin() + kGuard, untouched));
  TALWEG_CHECK(std::all_of(memory.end() - kGuard, memory.end(), untouched));
  return 0;
}
