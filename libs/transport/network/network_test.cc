// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/network/network.h"

#include <catch2/catch.hpp>

#include "libs/transport/proof/data_key.h"

namespace talweg::transport {
namespace {

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("Network: the options choose the transport, and its address names them", "[transport]") {
  const runtime::MonotonicClock clock;
  struct Case {
    std::string security;
    std::string transport;
    std::string scheme;
    std::string setting;
  };
  for (const Case& each :
       {Case{"none", "auto", "fi:tcp://", "data_security=none over libfabric"},
        Case{"none", "libfabric", "fi:tcp://", "data_security=none over libfabric"},
        Case{"none", "tcp", "tcp://", "data_security=none over data_transport=tcp"},
        Case{"keyed", "auto", "tcp://", "data_security=keyed"},
        Case{"tls", "tcp", "tcp://", "data_security=tls"}}) {
    CAPTURE(each.security, each.transport);
    const NetworkOptions options = {
        .data_security = each.security, .data_transport = each.transport, .fabric = {}};
    auto transport = NewNetworkTransport(options, &clock, nullptr);
    REQUIRE(transport.ok());
    const auto address = (*transport)->Listen({});
    REQUIRE(address.ok());
    CHECK(address->starts_with(each.scheme));
    CHECK(SettingText(options) == each.setting);
    CHECK(SettingText(*address) == each.setting);
    CHECK(SettingText("local:@x," + AddressForMember(*address, {})) == each.setting);
    CHECK(NetworkWarning(options).empty() == (each.security != "none"));
  }
  CHECK(SettingText("local:@x").empty());
}

TEST_CASE("Network: libfabric cannot do what keyed and tls promise", "[transport]") {
  const runtime::MonotonicClock clock;
  const auto transport = NewNetworkTransport(
      {.data_security = "tls", .data_transport = "libfabric", .fabric = {}}, &clock, nullptr);
  REQUIRE(absl::IsFailedPrecondition(transport.status()));
  CHECK(Contains(std::string(transport.status().message()), "data_security=tls"));
  CHECK(Contains(std::string(transport.status().message()), "data_transport=libfabric"));
  CHECK(Contains(NetworkWarning({.fabric = {.provider = "verbs"}}), "verbs"));
  CHECK(Contains(NetworkWarning({}), "--data_security=tls"));
}

TEST_CASE("Network: a provider that the other options leave unused is refused", "[transport]") {
  const runtime::MonotonicClock clock;
  for (const NetworkOptions& options :
       {NetworkOptions{.data_security = "tls", .fabric = {.provider = "verbs"}},
        NetworkOptions{.data_transport = "tcp", .fabric = {.provider = "verbs"}}}) {
    const auto transport = NewNetworkTransport(options, &clock, nullptr);
    REQUIRE(absl::IsFailedPrecondition(transport.status()));
    CHECK(Contains(std::string(transport.status().message()), "provider=verbs with data_"));
  }
}

}  // namespace
}  // namespace talweg::transport
