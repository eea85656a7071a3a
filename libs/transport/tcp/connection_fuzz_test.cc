// SPDX-License-Identifier: Apache-2.0
// Whoever reaches the port may send anything, and a peer that has proven itself may send any
// records. They touch only memory that was given to the peer. Bytes that are no record end the
// connection.
#include "libs/transport/tcp/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "libs/base/check.h"

namespace talweg::transport {
namespace {

class FixedRegistration final : public Registration {
 public:
  FixedRegistration(std::span<std::byte> bytes, wire::RemoteRef base) {
    bytes_ = bytes;
    base_ = base;
  }
};

constexpr size_t kGuard = 4096;

void ReadAll(TcpConnection& connection, const RegionTable& regions) {
  using ReadResult = TcpConnection::ReadResult;
  connection.OnReadable(/*is_ending=*/true);
  while (connection.open()) {
    const auto read = connection.Read(regions);
    if (!read.ok()) return;
    if (*read == ReadResult::kNothing && connection.drained()) return;
    if (*read == ReadResult::kFrame) {
      TALWEG_CHECK(connection.frame().size() <= wire::kFrameBytesMax);
    }
  }
}

}  // namespace
}  // namespace talweg::transport

// The first byte chooses: a stranger's bytes to a listener with one of three settings, or records
// of a peer that has proven itself.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace talweg::transport;
  if (size < 1) return 0;
  const uint8_t choice = data[0] % 4;
  const auto security = choice == 3 ? DataSecurity::kNone : static_cast<DataSecurity>(choice + 1);
  int sockets[2];
  TALWEG_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets) == 0);
  static const DataKey key = NewDataKey();
  static const TlsContext tls;
  const TcpAddress address = {.host_port = "a:1", .security = security, .key = {.key = key}};
  TcpConnection theirs(talweg::ConnectionId(1), talweg::Descriptor(sockets[0]), address, &tls,
                       "us");
  TcpConnection ours(talweg::ConnectionId(2), talweg::Descriptor(sockets[1]), key, security, &tls,
                     "a fuzzed peer");

  // The bytes around the target were given to nobody.
  static std::vector<std::byte> memory(3 * kGuard);
  std::fill(memory.begin(), memory.end(), std::byte{0x5a});
  const FixedRegistration region(std::span(memory).subspan(kGuard, kGuard),
                                 {.key = 7, .address = 0x1000});
  const FixedRegistration others(std::span(memory).first(kGuard), {.key = 8, .address = 0});
  const RegionTable regions = {
      {7, {.registration = &region}},
      {8, {.registration = &others, .writer = PeerIdentity{.job = talweg::JobId(1)}}}};
  if (choice == 3) {
    while (!theirs.open() || !ours.open()) {
      TALWEG_CHECK(theirs.Shake().ok());
      TALWEG_CHECK(ours.Shake().ok());
    }
  }
  send(theirs.socket(), data + 1, std::min<size_t>(size - 1, 64 * 1024), MSG_NOSIGNAL);
  shutdown(theirs.socket(), SHUT_WR);
  if (choice != 3) {
    // Nobody guesses the key.
    static_cast<void>(ours.Shake());
    TALWEG_CHECK(!ours.open());
  }
  ReadAll(ours, regions);
  const auto untouched = [](std::byte byte) { return byte == std::byte{0x5a}; };
  TALWEG_CHECK(std::all_of(memory.begin(), memory.begin() + kGuard, untouched));
  TALWEG_CHECK(std::all_of(memory.end() - kGuard, memory.end(), untouched));
  return 0;
}
