// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_REGIONS_H_
#define TALWEG_LIBS_TRANSPORT_REGIONS_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "libs/transport/transport.h"

namespace talweg::transport {

struct RegionEntry {
  const Registration* registration = nullptr;
  std::optional<PeerIdentity> writer = std::nullopt;  // The only member that may write there.
};

// This transport's regions, by key, to which peers' records may write.
using RegionTable = std::unordered_map<uint64_t, RegionEntry>;

// Returns where `length` bytes for (key, address) belong, or nullopt if no region has that place or
// `writer` may not write there.
std::optional<std::span<std::byte>> PlaceIn(const RegionTable& table, uint64_t key,
                                            uint64_t address, size_t length,
                                            const std::optional<PeerIdentity>& writer);

// Returns a region that is in the table as long as it lives. The table outlives it.
// INVALID_ARGUMENT: no bytes. ALREADY_EXISTS: the key is in use.
absl::StatusOr<Region> RegisterIn(RegionTable* table, std::span<std::byte> bytes,
                                  wire::RemoteRef base,
                                  const std::optional<PeerIdentity>& writer = std::nullopt);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_REGIONS_H_
