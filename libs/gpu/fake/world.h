// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_WORLD_H_
#define TALWEG_LIBS_GPU_FAKE_WORLD_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "libs/base/random.h"
#include "libs/gpu/device.h"
#include "libs/gpu/fake/access_log.h"
#include "libs/gpu/fake/fake_machine.h"
#include "libs/gpu/fake/timeline.h"
#include "libs/runtime/clock.h"

// Shared by the processes of a FakeMachine.
namespace talweg::gpu::fake {

class FakeDevice;

// Fills memory that nobody has written yet, or that is being written.
inline constexpr std::byte kPoison{0xee};

// Device memory, or pinned host memory.
struct Memory {
  std::string name;  // For messages.
  size_t gpu = 0;
  std::vector<std::byte> storage;  // Empty for host memory that its process has mapped.
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  bool owner_gone = false;
  bool open_to_nics = false;
  size_t mappings = 0;  // By other processes.
  AccessLog log;
};

struct SharedEvent {
  std::shared_ptr<Mark> current;  // Null: never recorded.
  bool owner_dead = false;
  bool destroyed_by_owner = false;
};

struct GpuState {
  GpuInfo info;
  bool lost = false;
  uint64_t occupied_bytes = 0;
  uint64_t allocated_bytes = 0;
  std::set<FakeDevice*> devices;
};

class World {
 public:
  World(const runtime::Clock& clock, const FakeMachineOptions& options);

  void Advance() { timeline.Advance(clock.NowNs()); }
  uint64_t FreeBytes(const GpuState& gpu) const;
  std::array<std::byte, 64> NewHandle();
  void Violate(std::string what);
  // Records an access in the memory's log, and a race in the violations.
  void Touch(Memory& memory, uint64_t offset, uint64_t bytes, AccessKind kind, Actor actor,
             const VectorClock& actor_clock, const std::string& what);
  // Frees the bytes if neither the owner nor another process has them.
  void ForgetIfUnused(Memory& memory);

  const runtime::Clock& clock;
  const FakeMachineOptions options;
  Random random;
  Timeline timeline;
  VectorClock host_clock;  // All processes' hosts, as if they told each other everything.
  VectorClock nic_reads;   // NICs' finished reads.
  VectorClock nic_writes;  // NICs' writes that a flush makes visible.
  std::vector<GpuState> gpus;
  std::map<MemoryHandle, std::weak_ptr<Memory>> exported_memory;
  std::map<EventHandle, std::weak_ptr<SharedEvent>> exported_events;
  // All processes' pinned memory, by address.
  std::map<uint64_t, std::shared_ptr<Memory>> pinned;
  uint64_t pinned_bytes = 0;
  int pinning_policy = -1;
  size_t mapping_count = 0;
  CollectiveFault collective_fault = CollectiveFault::kNone;
  absl::Status import_refusal;
  absl::Status context_refusal;
  std::vector<std::string> violations;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_WORLD_H_
