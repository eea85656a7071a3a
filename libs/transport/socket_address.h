// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_SOCKET_ADDRESS_H_
#define TALWEG_LIBS_TRANSPORT_SOCKET_ADDRESS_H_

#include <absl/status/statusor.h>
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>

#include "libs/transport/transport.h"

namespace talweg::transport {

// An IPv4 or IPv6 address with its port.
class SocketAddress {
 public:
  SocketAddress() = default;
  // `length` bytes at `address`; anything but IPv4 and IPv6 gives an address that is not valid.
  SocketAddress(const void* address, size_t length);

  bool valid() const { return length_ > 0; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }
  int family() const { return storage_.ss_family; }
  bool IsWildcard() const;
  bool IsLoopback() const;

  uint16_t port() const;
  void set_port(uint16_t port);

  // "10.0.0.7", "fe80::1%eth0".
  std::string Host() const;
  // "10.0.0.7:20000", "[fe80::1%eth0]:20000", "(unknown)".
  std::string ToString() const;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

// "host:port" or "[ipv6]:port", resolved. Blocks for the resolver if the host is a name.
// INVALID_ARGUMENT: the text has no such form. NOT_FOUND: the name does not resolve.
absl::StatusOr<SocketAddress> ResolveHostPort(const std::string& host_port);

// Returns the address that the spec binds to, with port 0. NOT_FOUND: the interface does not exist,
// or has no address.
absl::StatusOr<SocketAddress> ResolveBindAddress(const ListenSpec& spec);

// Calls `listen` with the spec's ports, from the first to the last, as long as it returns
// ALREADY_EXISTS for a port that is taken. Returns the last result.
absl::StatusOr<std::string> ListenAtFreePort(
    const ListenSpec& spec,
    const std::function<absl::StatusOr<std::string>(const SocketAddress&)>& listen);

// Returns the address that others connect to if a listener is bound to `bound`.
std::string AdvertisedHostPort(const ListenSpec& spec, const SocketAddress& bound);

// Returns the first address of that family on the interface, with port 0. NOT_FOUND names the
// interface, the family, and the interfaces that exist.
absl::StatusOr<SocketAddress> AddressOfInterface(const std::string& interface, int family);

// Returns what the connections of the host at this literal address count to: the address, of IPv6
// its network of 64 bits ("2001:db8:1:2::/64", "fe80::/64%eth0"), since a host may use any number
// of addresses there. An IPv4 address in IPv6 ("::ffff:10.0.0.7") counts as IPv4. Any other text
// stays as it is.
std::string CountedHost(const std::string& host);

// Joins host and port for Connect. A host with colons gets brackets.
std::string JoinHostPort(const std::string& host, uint16_t port);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_SOCKET_ADDRESS_H_
