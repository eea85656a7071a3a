// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LIBFABRIC_FABRIC_TRANSPORT_H_
#define TALWEG_LIBS_TRANSPORT_LIBFABRIC_FABRIC_TRANSPORT_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "libs/runtime/clock.h"
#include "libs/telemetry/counter.h"
#include "libs/transport/transport.h"

namespace talweg::transport {

struct FabricOptions {
  // A libfabric provider with connected endpoints (FI_EP_MSG): "tcp", "verbs", "sockets".
  std::string provider = "tcp";
  // Its device, e.g. "mlx5_0"; "": its first.
  std::string device;
  // Connections leave from the address of this network interface, e.g. "eth1", except for those to
  // this host itself. "": the kernel's route chooses the address.
  std::string source_interface;
  // A Connect that takes longer fails.
  int64_t connect_timeout_ns = 10'000'000'000;
  // The transport sends a heartbeat, an empty message, after it has sent nothing for so long. Peers
  // rely on that.
  int64_t heartbeat_ns = 2'000'000'000;
  // A connection from which nothing has come for so long is over, because a host that lost its
  // network cannot close it. At least three times the peers' heartbeat_ns, and longer than the
  // longest write takes on the slowest link. 0: a silence ends nothing.
  int64_t silence_ns = 20'000'000'000;
  // Seeds the keys of regions. 0: drawn from the system.
  uint64_t key_seed = 0;
  // The devices whose memory RegisterDevice takes, if the provider reads and writes it without a
  // CPU. kFake: tests' GPUs, whose memory is host memory.
  enum class Devices : uint8_t { kNone, kCuda, kFake };
  Devices devices = Devices::kNone;
  // As in TcpOptions, for peers that connect to libfabric's tcp and have sent no token. Other
  // providers have no such limits.
  int64_t proof_timeout_ns = 5'000'000'000;
  size_t unproven_max = 256;
  size_t unproven_of_host_max = 64;
  // How many receive buffers of kFrameBytesMax a connection posts.
  int receive_buffers = 8;
};

// Connections over libfabric. Addresses: "fi:<provider>://<host>:<port>/<key>", IPv6 hosts in
// brackets; the key is the listener's own, or a member's (proof/data_key.h). So only a member with
// a key can connect, and each token works once. The address of a process that is gone does not work
// for the next process with its port. The transport trusts connected peers: some sequences of bytes
// crash libfabric 1.17's tcp provider.
//
// `clock` and `counters` outlive the transport; `counters` may be null. UNAVAILABLE: this host does
// not have the provider, or the provider lacks something that this transport needs. The text says
// what.
absl::StatusOr<std::unique_ptr<Transport>> NewFabricTransport(const FabricOptions& options,
                                                              const runtime::Clock* clock,
                                                              telemetry::CounterSet* counters);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LIBFABRIC_FABRIC_TRANSPORT_H_
