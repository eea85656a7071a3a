// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/none/none_platform.h"

#include <utility>

#include "libs/base/check.h"

namespace talweg::gpu {
namespace {

class NonePlatform final : public Platform {
 public:
  explicit NonePlatform(absl::Status why) : why_(std::move(why)) { TALWEG_CHECK(!why_.ok()); }

  absl::StatusOr<std::vector<GpuInfo>> Gpus() override { return why_; }
  absl::StatusOr<std::unique_ptr<Device>> Open(const GpuUuid&) override { return why_; }
  bool Linked(const GpuUuid&, const GpuUuid&) override { return false; }
  absl::StatusOr<std::unique_ptr<Communicator>> NewCommunicator(std::span<Device* const>) override {
    return why_;
  }

 private:
  const absl::Status why_;
};

}  // namespace

std::unique_ptr<Platform> NewNonePlatform(absl::Status why) {
  return std::make_unique<NonePlatform>(std::move(why));
}

}  // namespace talweg::gpu
