// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/local/regions.h"

#include <memory>
#include <string>

namespace talweg::transport {
namespace {

class LocalRegistration final : public Registration {
 public:
  LocalRegistration(RegionTable* table, std::span<std::byte> bytes, wire::RemoteRef base)
      : table_(table) {
    bytes_ = bytes;
    base_ = base;
    table_->emplace(base.key, this);
  }
  ~LocalRegistration() override { table_->erase(base_.key); }

 private:
  RegionTable* const table_;
};

}  // namespace

absl::StatusOr<Region> RegisterIn(RegionTable* table, std::span<std::byte> bytes,
                                  wire::RemoteRef base) {
  if (bytes.empty()) return absl::InvalidArgumentError("a region of 0 bytes");
  if (table->contains(base.key)) {
    return absl::AlreadyExistsError("a region with key " + std::to_string(base.key));
  }
  return Region(std::make_unique<LocalRegistration>(table, bytes, base));
}

}  // namespace talweg::transport
