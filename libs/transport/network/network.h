// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_NETWORK_NETWORK_H_
#define TALWEG_LIBS_TRANSPORT_NETWORK_NETWORK_H_

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "libs/runtime/clock.h"
#include "libs/telemetry/counter.h"
#include "libs/transport/libfabric/fabric_transport.h"
#include "libs/transport/transport.h"

// Chooses the transport that carries data between machines, by the daemons' options.
namespace talweg::transport {

struct NetworkOptions {
  std::string data_security = "none";   // "none", "keyed", "tls".
  std::string data_transport = "auto";  // "libfabric", "tcp". "auto": libfabric for "none".
  FabricOptions fabric;                 // Talweg's own TCP uses the fields that it has, too.
};

// FAILED_PRECONDITION: two of the options exclude each other. The text names both.
absl::StatusOr<std::unique_ptr<Transport>> NewNetworkTransport(const NetworkOptions& options,
                                                               const runtime::Clock* clock,
                                                               telemetry::CounterSet* counters);

// Returns a warning that says what anybody on the network can still do with these options, and the
// remedy. "" if the control plane prevents all of it.
std::string NetworkWarning(const NetworkOptions& options);

// Return the setting by which these options, or the aggregator at this data address, carry data:
// "data_security=keyed". "" if the address has no network.
std::string SettingText(const NetworkOptions& options);
std::string SettingText(const std::string& data_address);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_NETWORK_NETWORK_H_
