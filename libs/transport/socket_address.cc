// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/socket_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <string_view>

namespace talweg::transport {
namespace {

struct InterfacesFreer {
  void operator()(ifaddrs* list) const { freeifaddrs(list); }
};
using Interfaces = std::unique_ptr<ifaddrs, InterfacesFreer>;

Interfaces ListInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return nullptr;
  return Interfaces(list);
}

SocketAddress AddressOf(const ifaddrs* interface) {
  if (interface->ifa_addr == nullptr) return {};
  switch (interface->ifa_addr->sa_family) {
    case AF_INET: return {interface->ifa_addr, sizeof(sockaddr_in)};
    case AF_INET6: return {interface->ifa_addr, sizeof(sockaddr_in6)};
    default: return {};
  }
}

absl::StatusOr<SocketAddress> Resolve(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::NotFoundError("host '" + host + "' does not resolve: " + gai_strerror(error) +
                               "; check its spelling, or give a literal address");
  }
  const SocketAddress address(found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  if (!address.valid()) return absl::NotFoundError("host '" + host + "' has no IP address");
  return address;
}

// An address of this host that others may reach, of the given family: the first of an interface
// that is up, if possible not a loopback one. Port 0.
SocketAddress AddressOfThisHost(int family) {
  SocketAddress loopback;
  const Interfaces interfaces = ListInterfaces();
  for (const ifaddrs* each = interfaces.get(); each != nullptr; each = each->ifa_next) {
    SocketAddress address = AddressOf(each);
    if (!address.valid() || address.family() != family || (each->ifa_flags & IFF_UP) == 0) continue;
    address.set_port(0);
    if (!address.IsLoopback()) return address;
    if (!loopback.valid()) loopback = address;
  }
  return loopback;
}

}  // namespace

SocketAddress::SocketAddress(const void* address, size_t length) {
  const auto* socket_address = static_cast<const sockaddr*>(address);
  if (address == nullptr || length < sizeof(sa_family_t)) return;
  const size_t needed = socket_address->sa_family == AF_INET    ? sizeof(sockaddr_in)
                        : socket_address->sa_family == AF_INET6 ? sizeof(sockaddr_in6)
                                                                : 0;
  if (needed == 0 || length < needed) return;
  memcpy(&storage_, address, needed);
  length_ = static_cast<socklen_t>(needed);
}

bool SocketAddress::IsWildcard() const {
  if (family() == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr == INADDR_ANY;
  }
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
}

bool SocketAddress::IsLoopback() const {
  if (family() == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&storage_);
    return (ntohl(in->sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port = htons(port);
  }
}

std::string SocketAddress::Host() const {
  std::array<char, NI_MAXHOST> host{};
  if (!valid() ||
      getnameinfo(get(), length(), host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "(unknown)";
  }
  return host.data();
}

std::string SocketAddress::ToString() const {
  return valid() ? JoinHostPort(Host(), port()) : "(unknown)";
}

absl::StatusOr<SocketAddress> ResolveHostPort(const std::string& host_port) {
  const size_t colon = host_port.rfind(':');
  uint16_t port = 0;
  bool valid = colon != std::string::npos && colon > 0;
  std::string host;
  if (valid) {
    const char* const end = host_port.data() + host_port.size();
    const auto [stop, error] = std::from_chars(host_port.data() + colon + 1, end, port);
    valid = error == std::errc() && stop == end && port > 0;
    host = host_port.substr(0, colon);
    if (host.front() == '[') {
      valid = valid && host.back() == ']' && host.size() > 2;
      if (valid) host = host.substr(1, host.size() - 2);
    } else {
      valid = valid && host.find(':') == std::string::npos;
    }
  }
  if (!valid) {
    return absl::InvalidArgumentError("'" + host_port +
                                      "' is not an address; write host:port or [ipv6]:port");
  }
  absl::StatusOr<SocketAddress> address = Resolve(host, 0);
  if (address.ok()) address->set_port(port);
  return address;
}

absl::StatusOr<SocketAddress> ResolveBindAddress(const ListenSpec& spec) {
  if (spec.bind_interface.empty()) {
    return Resolve(spec.bind_address.empty() ? "0.0.0.0" : spec.bind_address, AI_PASSIVE);
  }
  SocketAddress found;
  std::string names;
  const Interfaces interfaces = ListInterfaces();
  for (const ifaddrs* each = interfaces.get(); each != nullptr; each = each->ifa_next) {
    const SocketAddress address = AddressOf(each);
    if (spec.bind_interface != each->ifa_name) {
      if (address.family() == AF_INET)
        names += (names.empty() ? "" : ", ") + std::string(each->ifa_name);
      continue;
    }
    if (!address.valid()) continue;
    if (!found.valid() || (found.family() == AF_INET6 && address.family() == AF_INET)) {
      found = address;
    }
  }
  if (!found.valid()) {
    return absl::NotFoundError(
        "interface '" + spec.bind_interface +
        "' does not exist or has no IP address; interfaces with one: " + names);
  }
  found.set_port(0);
  return found;
}

absl::StatusOr<SocketAddress> AddressOfInterface(const std::string& interface, int family) {
  std::string names;
  const Interfaces interfaces = ListInterfaces();
  for (const ifaddrs* each = interfaces.get(); each != nullptr; each = each->ifa_next) {
    SocketAddress address = AddressOf(each);
    if (address.family() != family) continue;
    if (interface == each->ifa_name) {
      address.set_port(0);
      return address;
    }
    names += (names.empty() ? "" : ", ") + std::string(each->ifa_name);
  }
  return absl::NotFoundError("interface '" + interface + "' does not exist or has no " +
                             (family == AF_INET6 ? "IPv6" : "IPv4") +
                             " address; interfaces with one: " + names);
}

absl::StatusOr<std::string> ListenAtFreePort(
    const ListenSpec& spec,
    const std::function<absl::StatusOr<std::string>(const SocketAddress&)>& listen) {
  absl::StatusOr<SocketAddress> address = ResolveBindAddress(spec);
  if (!address.ok()) return address.status();
  absl::Status last;
  for (uint32_t port = spec.port_first; port <= spec.port_last; ++port) {
    address->set_port(static_cast<uint16_t>(port));
    absl::StatusOr<std::string> listening = listen(*address);
    if (listening.ok() || !absl::IsAlreadyExists(listening.status())) return listening;
    last = listening.status();
  }
  if (spec.port_first == spec.port_last) return last;
  return absl::AlreadyExistsError("no port of " + std::to_string(spec.port_first) + "-" +
                                  std::to_string(spec.port_last) + " is free at " +
                                  address->Host() + "; give another range, or 0 for any free port");
}

std::string AdvertisedHostPort(const ListenSpec& spec, const SocketAddress& bound) {
  if (!spec.advertise_host.empty()) return JoinHostPort(spec.advertise_host, bound.port());
  const SocketAddress seen = bound.IsWildcard() ? AddressOfThisHost(bound.family()) : bound;
  return JoinHostPort(seen.Host(), bound.port());
}

std::string CountedHost(const std::string& host) {
  const size_t zone = std::min(host.find('%'), host.size());
  in6_addr address{};
  if (inet_pton(AF_INET6, host.substr(0, zone).c_str(), &address) != 1) return host;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, &address.s6_addr[12], text.data(), text.size());
    return text.data();
  }
  std::fill(address.s6_addr + 8, address.s6_addr + 16, uint8_t{0});
  inet_ntop(AF_INET6, &address, text.data(), text.size());
  return std::string(text.data()) + "/64" + host.substr(zone);
}

std::string JoinHostPort(const std::string& host, uint16_t port) {
  const bool bracketed = host.find(':') != std::string::npos;
  return (bracketed ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace talweg::transport
