// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/network/network.h"

#include <optional>

#include "libs/transport/tcp/tcp_transport.h"

namespace talweg::transport {
namespace {

bool UsesFabric(const NetworkOptions& options) {
  if (options.data_transport == "auto") return options.data_security == "none";
  return options.data_transport == "libfabric";
}

std::string Text(const std::string& security, bool over_fabric) {
  std::string text = "data_security=" + security;
  if (security == "none") text += over_fabric ? " over libfabric" : " over data_transport=tcp";
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> NewNetworkTransport(const NetworkOptions& options,
                                                               const runtime::Clock* clock,
                                                               telemetry::CounterSet* counters) {
  const std::optional<DataSecurity> security = DataSecurityNamed(options.data_security);
  if (!security) {
    return absl::InvalidArgumentError("data_security is '" + options.data_security +
                                      "'; it must be none, keyed or tls");
  }
  if (!UsesFabric(options)) {
    if (options.fabric.provider != FabricOptions{}.provider) {
      return absl::FailedPreconditionError(
          "provider=" + options.fabric.provider + " with " + Text(options.data_security, false) +
          ": Talweg's own TCP carries the data then, which has no providers of libfabric; leave "
          "provider out, or use libfabric, with data_security=none");
    }
    return NewTcpTransport({.security = *security,
                            .source_interface = options.fabric.source_interface,
                            .connect_timeout_ns = options.fabric.connect_timeout_ns,
                            .heartbeat_ns = options.fabric.heartbeat_ns,
                            .silence_ns = options.fabric.silence_ns,
                            .key_seed = options.fabric.key_seed},
                           clock, counters);
  }
  if (*security != DataSecurity::kNone) {
    return absl::FailedPreconditionError(
        "data_security=" + options.data_security +
        " with data_transport=libfabric: libfabric authenticates and encrypts nothing; leave "
        "data_transport out, or give data_security=none");
  }
  return NewFabricTransport(options.fabric, clock, counters);
}

std::string NetworkWarning(const NetworkOptions& options) {
  if (options.data_security != "none") return "";
  const std::string remedy =
      "; keep it in a network that you trust, or give --data_security=tls (or keyed), the same to "
      "all daemons, for Talweg's own TCP";
  if (!UsesFabric(options)) {
    return "peers prove who they are when they connect, and anybody on the path can read and "
           "change what they send after that" +
           remedy;
  }
  if (options.fabric.provider == "tcp") {
    return "libfabric's tcp provider parses what anybody who reaches the port sends, before they "
           "have proven anything; anybody on the path can read and change everything" +
           remedy;
  }
  return "libfabric's provider " + options.fabric.provider +
         " neither authenticates nor encrypts; whoever has learnt a region's key can write there, "
         "and Talweg cannot check it" +
         remedy;
}

std::string SettingText(const NetworkOptions& options) {
  return Text(options.data_security, UsesFabric(options));
}

std::string SettingText(const std::string& data_address) {
  const std::string security = SecurityOf(data_address);
  if (security.empty()) return "";
  return Text(security, SelectAddress(data_address, false).starts_with("fi:"));
}

}  // namespace talweg::transport
