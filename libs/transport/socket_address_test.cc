// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>

#include <catch2/catch.hpp>

namespace talweg::transport {
namespace {

TEST_CASE("SocketAddress: of IPv6, a host's network of 64 bits is counted", "[transport]") {
  CHECK(CountedHost("2001:db8:1:2:3:4:5:6") == "2001:db8:1:2::/64");
  CHECK(CountedHost("2001:db8:1:2::1") == CountedHost("2001:db8:1:2:ffff::9"));
  CHECK(CountedHost("2001:db8:1:3::1") != CountedHost("2001:db8:1:2::1"));
  CHECK(CountedHost("fe80::1:2%eth0") == "fe80::/64%eth0");
  CHECK(CountedHost("fe80::1:2%eth0") != CountedHost("fe80::1:2%eth1"));
}

TEST_CASE("SocketAddress: of IPv4, each address is counted", "[transport]") {
  CHECK(CountedHost("10.0.0.7") == "10.0.0.7");
  CHECK(CountedHost("::ffff:10.0.0.7") == "10.0.0.7");
  CHECK(CountedHost("::ffff:10.0.0.8") != CountedHost("::ffff:10.0.0.7"));
}

TEST_CASE("SocketAddress: other texts stay as they are", "[transport]") {
  for (const char* text : {"", "(unknown)", "host-3", "%eth0"}) CHECK(CountedHost(text) == text);
}

TEST_CASE("SocketAddress: what the kernel says of a peer is counted", "[transport]") {
  sockaddr_in6 peer{};
  peer.sin6_family = AF_INET6;
  REQUIRE(inet_pton(AF_INET6, "2001:db8::5", &peer.sin6_addr) == 1);
  CHECK(CountedHost(SocketAddress(&peer, sizeof peer).Host()) == "2001:db8::/64");
}

}  // namespace
}  // namespace talweg::transport
