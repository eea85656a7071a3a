// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LOCAL_REGIONS_H_
#define TALWEG_LIBS_TRANSPORT_LOCAL_REGIONS_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

#include "libs/transport/transport.h"

namespace talweg::transport {

// Our regions, by key. A peer's record may write to these.
using RegionTable = std::unordered_map<uint64_t, const Registration*>;

// The region is in the table for as long as it lives. The table outlives it. INVALID_ARGUMENT
// without bytes, ALREADY_EXISTS where the key is in use.
absl::StatusOr<Region> RegisterIn(RegionTable* table, std::span<std::byte> bytes,
                                  wire::RemoteRef base);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LOCAL_REGIONS_H_
