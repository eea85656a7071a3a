// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/regions.h"

#include <memory>
#include <string>

namespace talweg::transport {
namespace {

class TableRegistration final : public Registration {
 public:
  TableRegistration(RegionTable* table, std::span<std::byte> bytes, wire::RemoteRef base,
                    const std::optional<PeerIdentity>& writer)
      : table_(table) {
    bytes_ = bytes;
    base_ = base;
    table_->emplace(base.key, RegionEntry{this, writer});
  }
  ~TableRegistration() override { table_->erase(base_.key); }

 private:
  RegionTable* const table_;
};

}  // namespace

std::optional<std::span<std::byte>> PlaceIn(const RegionTable& table, uint64_t key,
                                            uint64_t address, size_t length,
                                            const std::optional<PeerIdentity>& writer) {
  const auto found = table.find(key);
  if (found == table.end()) return std::nullopt;
  const RegionEntry& entry = found->second;
  if (entry.writer && !(writer && writer->SameMember(*entry.writer))) return std::nullopt;
  const std::span<std::byte> bytes = entry.registration->bytes();
  const uint64_t offset = address - entry.registration->base().address;
  if (offset > bytes.size() || length > bytes.size() - offset) return std::nullopt;
  return bytes.subspan(offset, length);
}

absl::StatusOr<Region> RegisterIn(RegionTable* table, std::span<std::byte> bytes,
                                  wire::RemoteRef base, const std::optional<PeerIdentity>& writer) {
  if (bytes.empty()) return absl::InvalidArgumentError("a region of 0 bytes");
  if (table->contains(base.key)) {
    return absl::AlreadyExistsError("a region with key " + std::to_string(base.key));
  }
  return Region(std::make_unique<TableRegistration>(table, bytes, base, writer));
}

}  // namespace talweg::transport
