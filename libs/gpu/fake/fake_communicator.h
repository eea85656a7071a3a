// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_FAKE_COMMUNICATOR_H_
#define TALWEG_LIBS_GPU_FAKE_FAKE_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "libs/gpu/device.h"
#include "libs/gpu/fake/fake_device.h"
#include "libs/gpu/fake/world.h"

namespace talweg::gpu::fake {

class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(World& world, std::vector<FakeDevice*> devices);
  ~FakeCommunicator() override { Abort(); }

  State Poll() override;
  absl::Status error() const override { return shared_->error; }
  absl::Status ReduceScatter(DType dtype, Op op, uint64_t shard_elements,
                             std::span<const CollectivePart> parts) override;
  absl::Status AllGather(DType dtype, uint64_t shard_elements,
                         std::span<const CollectivePart> parts) override;
  absl::Status Reduce(DType dtype, Op op, uint64_t element_count, size_t root,
                      std::span<const CollectivePart> parts) override;
  absl::Status Broadcast(DType dtype, uint64_t element_count, size_t root,
                         std::span<const CollectivePart> parts) override;
  absl::Status AllReduce(DType dtype, Op op, uint64_t element_count,
                         std::span<const CollectivePart> parts) override;
  void Abort() override;

 private:
  // State that posted work needs even after the communicator is gone.
  struct Shared {
    absl::Status error;
  };
  struct Posted {
    std::shared_ptr<Rendezvous> joint;
    std::vector<Place> receives;
  };
  using Effect =
      std::function<void(const std::vector<Place>& sends, const std::vector<Place>& receives)>;

  absl::Status Post(const char* what, uint64_t send_bytes, uint64_t receive_bytes,
                    std::span<const CollectivePart> parts, Effect effect);
  void Fail(const char* why);
  void Release();
  // Combines the elements of all `sends` from byte `offset` on. Adds element by element, beginning
  // with the first device, and rounds after each addition, as a chain of GPUs does.
  static std::vector<std::byte> Combine(DType dtype, Op op, uint64_t element_count,
                                        const std::vector<Place>& sends, uint64_t offset);

  World& world_;
  const std::vector<FakeDevice*> devices_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  bool aborted_ = false;
  int64_t ready_ns_;
  std::vector<StreamId> reserved_;  // By device; empty when nothing is being launched.
  std::vector<Posted> posted_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_FAKE_COMMUNICATOR_H_
