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

// GPUs of host memory, for tests and for simulation. Work takes time on a clock that the test
// moves. Streams run at once. A copy or a sum reads its source as late as it can, and writes its
// target at its end only. So a test that looks or changes too early gets wrong bytes. Beyond that
// every access is compared with all others. Two that nothing orders, one of them a write, are
// reported, whatever time they took.
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

// Has one owner thread, with all its platforms, and outlives them. Moves when anything of it is
// called.
class FakeMachine {
 public:
  FakeMachine(const runtime::Clock& clock, const FakeMachineOptions& options);
  ~FakeMachine();

  // A process that sees all GPUs, or those named, in that order. When it and its devices are
  // destroyed, the process dies: its memory goes once nobody has it mapped, its work is dropped,
  // its events are never done.
  std::unique_ptr<Platform> NewProcess();
  std::unique_ptr<Platform> NewProcess(const std::vector<GpuUuid>& visible);

  GpuUuid uuid(size_t gpu) const;

  // Does what is due by the clock.
  void Advance();
  // When the next piece of work ends. None when nothing ends.
  std::optional<int64_t> NextEndNs();

  // The host reads or writes pinned memory now: a violation if a copy may be at it.
  void HostReads(std::span<const std::byte> bytes);
  void HostWrites(std::span<const std::byte> bytes);

  // A NIC reads or writes memory that `device` has opened to NICs, and is done. The host may be
  // told at once of what it wrote; the GPU sees it after a flush.
  void NicReads(Device& device, DeviceSpan span, std::span<std::byte> target);
  void NicWrites(Device& device, DeviceSpan span, std::span<const std::byte> source);

  // ----- Faults. -----

  void InjectCollectiveFault(CollectiveFault fault);
  // Every Map and ImportEvent fails so. OK ends that.
  void RefuseImports(absl::Status status);
  // Every Open fails so. OK ends that.
  void RefuseContexts(absl::Status status);
  // How much of the GPU's memory something else takes, instead of what it took before.
  void OccupyMemory(size_t gpu, uint64_t bytes);
  // Loses the GPU for all processes: nothing can be opened on it until it is restored.
  void LoseGpu(size_t gpu);
  void RestoreGpu(size_t gpu);
  // Loses the context of the device's process only.
  void LoseContext(Device& device);

  // ----- What has been. -----

  // Races, uses of what is gone, and whatever else makes real GPUs give wrong bytes.
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
