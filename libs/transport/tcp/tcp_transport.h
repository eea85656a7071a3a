// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_TCP_TRANSPORT_H_
#define TALWEG_LIBS_TRANSPORT_TCP_TCP_TRANSPORT_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "libs/runtime/clock.h"
#include "libs/telemetry/counter.h"
#include "libs/transport/proof/data_key.h"
#include "libs/transport/transport.h"

namespace talweg::transport {

struct TcpOptions {
  // The same at all processes of a job.
  DataSecurity security = DataSecurity::kKeyed;
  // As in FabricOptions.
  std::string source_interface;
  int64_t connect_timeout_ns = 10'000'000'000;
  int64_t heartbeat_ns = 2'000'000'000;
  int64_t silence_ns = 20'000'000'000;
  uint64_t key_seed = 0;
  // A connection whose peer has not proven by then that it holds the key is closed.
  int64_t proof_timeout_ns = 5'000'000'000;
  // How many such connections there may be, of all hosts and of one host. If there are more, the
  // oldest is closed.
  size_t unproven_max = 256;
  size_t unproven_of_host_max = 64;
};

// Connections over TCP without libfabric. Peers prove their identity before anything is parsed, and
// the connection authenticates or encrypts its bytes (docs/protocol.md, section 9). data_key.h has
// the form of addresses. The listener's key is drawn when the transport is made.
//
// `clock` and `counters` outlive the transport; `counters` may be null. RESOURCE_EXHAUSTED when the
// process has no descriptors left.
absl::StatusOr<std::unique_ptr<Transport>> NewTcpTransport(const TcpOptions& options,
                                                           const runtime::Clock* clock,
                                                           telemetry::CounterSet* counters);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_TCP_TRANSPORT_H_
