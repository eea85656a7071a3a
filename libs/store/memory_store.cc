// SPDX-License-Identifier: Apache-2.0
#include "libs/store/store.h"

namespace talweg::store {
namespace {

class MemoryStore final : public Store {
 public:
  absl::StatusOr<membership::Snapshot> Load() override { return snapshot_; }
  absl::Status Write(const membership::StoreWrite& write) override {
    membership::Apply(write, snapshot_);
    return absl::OkStatus();
  }
  const std::string& name() const override { return name_; }

 private:
  const std::string name_ = "memory";
  membership::Snapshot snapshot_;
};

}  // namespace

std::unique_ptr<Store> MakeMemoryStore() { return std::make_unique<MemoryStore>(); }

}  // namespace talweg::store
