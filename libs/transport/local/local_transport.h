// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LOCAL_LOCAL_TRANSPORT_H_
#define TALWEG_LIBS_TRANSPORT_LOCAL_LOCAL_TRANSPORT_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "libs/runtime/clock.h"
#include "libs/telemetry/counter.h"
#include "libs/transport/transport.h"

namespace talweg::transport {

struct LocalOptions {
  // Where to listen: a path in a directory of this user, or "" for a random abstract name.
  std::string socket_path;
  // The size of each direction's ring. A power of two.
  size_t ring_bytes = 4 * 1024 * 1024;
  int64_t connect_timeout_ns = 10'000'000'000;
  // How often this transport shows peers that its event loop turns, and checks that theirs do.
  int64_t heartbeat_ns = 2'000'000'000;
  // A connection ends if its peer's event loop has not turned for so long: the process is stopped,
  // or hangs. At least three times the peers' heartbeat_ns. 0: a silence ends nothing.
  int64_t silence_ns = 20'000'000'000;
  // Seeds the keys of regions. 0: drawn from the system.
  uint64_t key_seed = 0;
};

// A Transport for processes of one host and one user, through shared memory. The receiver copies
// written bytes to their place, so no write lands after Close. Addresses: "local:<path>#<key>" and
// "local:@<abstract name>#<key>"; the key is the listener's own, or a member's (proof/data_key.h).
// Listen ignores the ListenSpec.
class LocalTransport : public Transport {
 public:
  // Registers memory under a key and base address that another transport has chosen. Without
  // `writer` all peers may write there.
  virtual absl::StatusOr<Region> RegisterAs(std::span<std::byte> bytes, wire::RemoteRef base,
                                            const std::optional<PeerIdentity>& writer) = 0;
};

// `clock` and `counters` outlive the transport; `counters` may be null.
absl::StatusOr<std::unique_ptr<LocalTransport>> NewLocalTransport(const LocalOptions& options,
                                                                  const runtime::Clock* clock,
                                                                  telemetry::CounterSet* counters);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LOCAL_LOCAL_TRANSPORT_H_
