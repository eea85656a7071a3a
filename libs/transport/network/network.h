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

// Which transport carries data between machines, as the daemons' options say.
namespace talweg::transport {

struct NetworkOptions {
  std::string data_security = "none";   // "none", "keyed", "tls".
  std::string data_transport = "auto";  // "libfabric", "tcp". "auto": libfabric for "none".
  FabricOptions fabric;                 // Talweg's own TCP takes from it what it has, too.
};

// FAILED_PRECONDITION: the two options exclude each other; the text names both.
absl::StatusOr<std::unique_ptr<Transport>> NewNetworkTransport(const NetworkOptions& options,
                                                               const runtime::Clock* clock,
                                                               telemetry::CounterSet* counters);

// What somebody who reaches the network can do nevertheless, and the remedy. "" for nothing that
// the control plane does not decide.
std::string NetworkWarning(const NetworkOptions& options);

// How these options, or an aggregator with such a data address, carry data, as one says to the
// other: "data_security=keyed". "" for an address without a network.
std::string SettingText(const NetworkOptions& options);
std::string SettingText(const std::string& data_address);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_NETWORK_NETWORK_H_
