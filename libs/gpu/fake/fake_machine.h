// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_FAKE_MACHINE_H_
#define TALWEG_LIBS_GPU_FAKE_FAKE_MACHINE_H_

#include <absl/status/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libs/gpu/device.h"
#include "libs/runtime/clock.h"

// GPUs made of host memory, for tests and for simulation. Work takes time on a clock that the test
// moves. Streams run concurrently. A copy or a sum reads its source as late as possible, and writes
// its target only at its end. So a test that reads or writes too early gets wrong bytes. Also,
// every access is compared with all others: two unordered ones, one of them a write, are reported
// as a race, whatever time they took.
namespace talweg::gpu::fake {

struct FakeCosts {
  int64_t launch_ns = 2'000;  // For each piece of work.
  int64_t record_ns = 0;      // Until an event with nothing before it is done.
  int64_t copy_bytes_per_us = 16'000;
  int64_t kernel_bytes_per_us = 400'000;
  int64_t collective_bytes_per_us = 100'000;
  int64_t collective_launch_ns = 20'000;      // Until a communicator is ready again.
  int64_t communicator_start_ns = 2'000'000;  // Until a new one is ready.
};

struct FakeMachineOptions {
  size_t gpu_count = 1;
  uint64_t gpu_memory_bytes = uint64_t{1} << 30;
  // How much of a GPU's memory a context takes.
  uint64_t context_bytes = uint64_t{64} << 20;
  uint64_t pinned_bytes_max = uint64_t{1} << 30;
  bool linked = false;  // Links every GPU with every other.
  bool opens_to_nics = true;
  FakeCosts costs;
  uint64_t seed = 1;
};

enum class CollectiveFault : uint8_t {
  kNone,
  kStartFails,  // The next communicator never becomes ready.
  kCallFails,   // The next collective is refused, and its communicator fails.
  kError,       // The next collective is posted, and fails on the way.
  kHang,        // The next collective is posted, and never ends.
};

enum class AccessKind : uint8_t;
struct Place;
class World;

// One owner thread uses the machine and all its platforms. The machine outlives them. Each call on
// any of them advances it.
class FakeMachine {
 public:
  FakeMachine(const runtime::Clock& clock, const FakeMachineOptions& options);
  ~FakeMachine();

  // Makes a process that sees all GPUs, or those named, in that order. When the platform and its
  // devices are destroyed, the process dies: its memory is freed once nobody has it mapped, its
  // work is dropped, and its events are never done.
  std::unique_ptr<Platform> NewProcess();
  std::unique_ptr<Platform> NewProcess(const std::vector<GpuUuid>& visible);

  GpuUuid uuid(size_t gpu) const;

  // Does what is due by the clock.
  void Advance();
  // Returns when the next piece of work ends; nullopt if none does.
  std::optional<int64_t> NextEndNs();

  // The host reads or writes pinned memory now. A violation if a copy may use it.
  void HostReads(std::span<const std::byte> bytes);
  void HostWrites(std::span<const std::byte> bytes);

  // A NIC reads or writes memory that `device` has opened to NICs, and is done. The host may be
  // told of a write at once; the GPU sees it after a flush.
  void NicReads(Device& device, DeviceSpan span, std::span<std::byte> target);
  void NicWrites(Device& device, DeviceSpan span, std::span<const std::byte> source);

  // ----- Faults. -----

  void InjectCollectiveFault(CollectiveFault fault);
  // Every Map and ImportEvent returns `status`. OK ends that.
  void RefuseImports(absl::Status status);
  // Every Open returns `status`. OK ends that.
  void RefuseContexts(absl::Status status);
  // Sets how much of the GPU's memory something else takes.
  void OccupyMemory(size_t gpu, uint64_t bytes);
  // Loses the GPU for all processes: nothing can be opened on it until it is restored.
  void LoseGpu(size_t gpu);
  void RestoreGpu(size_t gpu);
  // Loses the context of the device's process only.
  void LoseContext(Device& device);

  // ----- What has happened. -----

  // Races, uses of destroyed objects, and all else that makes real GPUs give wrong bytes.
  const std::vector<std::string>& violations() const;
  void ClearViolations();
  size_t context_count(size_t gpu) const;
  // By all processes. Mapped memory counts once, with its owner's.
  uint64_t allocated_bytes(size_t gpu) const;
  uint64_t pinned_bytes() const;
  size_t mapping_count() const;
  // The memory policy (get_mempolicy) of the thread that made pinned memory last; -1: unknown.
  int pinning_policy() const;

 private:
  Place NicPlace(Device& device, DeviceSpan span) const;
  void HostTouches(std::span<const std::byte> bytes, AccessKind kind);

  std::unique_ptr<World> world_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_FAKE_MACHINE_H_
