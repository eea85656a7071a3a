// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/transport/proof/data_key.h"
#include "libs/transport/tcp/connection.h"
#include "libs/transport/tcp/seal.h"

namespace talweg::transport {
namespace {

// An object in memory that can be looked at.
template <typename Object>
class Seen {
 public:
  template <typename... Arguments>
  explicit Seen(Arguments&&... arguments)
      : object_(new(bytes_.data()) Object(std::forward<Arguments>(arguments)...)) {}
  ~Seen() { End(); }
  Seen(const Seen&) = delete;
  Seen& operator=(const Seen&) = delete;

  Object& operator*() { return *object_; }
  void End() {
    if (object_ != nullptr) std::exchange(object_, nullptr)->~Object();
  }
  bool Has(std::span<const std::byte> part) const {
    return std::ranges::search(bytes_, part).begin() != bytes_.end();
  }

 private:
  alignas(Object) std::array<std::byte, sizeof(Object)> bytes_{};
  Object* object_;
};

TEST_CASE("Keys: they are wiped at the end of their lives", "[transport]") {
  const DataKey key = NewDataKey();
  Seen<DataKey> copy(key);
  CHECK(copy.Has(key));
  copy.End();
  CHECK_FALSE(copy.Has(key));
  SealKey seal_key;
  std::copy(key.begin(), key.end(), seal_key.key.begin());
  Seen<SealKey> seal(seal_key);
  CHECK(seal.Has(key));
  seal.End();
  CHECK_FALSE(seal.Has(key));
  // A key that was made elsewhere is wiped there.
  std::array<std::byte, 32> made;
  std::copy(key.begin(), key.end(), made.begin());
  CHECK(DataKey(std::move(made)) == key);
  CHECK(made == std::array<std::byte, 32>{});
}

// Two connected sockets that do not block.
std::pair<Descriptor, Descriptor> Sockets() {
  const Descriptor listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(bind(listening.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(listen(listening.get(), 1) == 0);
  REQUIRE(getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  Descriptor connecting(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(connecting.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  Descriptor accepted(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  REQUIRE(accepted.valid());
  REQUIRE(fcntl(connecting.get(), F_SETFL, O_NONBLOCK) == 0);
  return {std::move(connecting), std::move(accepted)};
}

TEST_CASE("Keys: an open connection does not have those of its handshake", "[transport]") {
  const DataSecurity security =
      GENERATE(DataSecurity::kNone, DataSecurity::kKeyed, DataSecurity::kTls);
  const bool opens = GENERATE(true, false);
  CAPTURE(DataSecurityName(security), opens);
  const PeerIdentity member = {
      .job = JobId(3), .epoch = Epoch(7), .node = NodeRank(1), .incarnation = Incarnation(0x7f3a)};
  const DataKey listener = NewDataKey();
  const TcpAddress address = {.host_port = "127.0.0.1:1",
                              .security = security,
                              .key = {.identity = member, .key = MemberKey(listener, member)}};
  const TlsContext tls;
  auto [one, other] = Sockets();
  Seen<TcpConnection> connecting(ConnectionId(1), std::move(one), address, &tls, "listener");
  Seen<TcpConnection> listening(ConnectionId(2), std::move(other), listener, security, &tls,
                                "member");
  CHECK(connecting.Has(address.key.key));
  CHECK(listening.Has(listener));
  while (opens && !((*connecting).open() && (*listening).open())) {
    REQUIRE((*connecting).Shake().ok());
    REQUIRE((*listening).Shake().ok());
  }
  if (!opens) {
    (*connecting).Close();
    (*listening).Close();
  }
  CHECK_FALSE(connecting.Has(address.key.key));
  CHECK_FALSE(listening.Has(address.key.key));
  CHECK_FALSE(listening.Has(listener));
}

}  // namespace
}  // namespace talweg::transport
