// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/fake_machine.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <set>
#include <utility>

#include "libs/base/check.h"
#include "libs/gpu/fake/fake_communicator.h"
#include "libs/gpu/fake/fake_device.h"
#include "libs/gpu/fake/world.h"

namespace talweg::gpu::fake {
namespace {

constexpr size_t kViolationsMax = 100;

GpuInfo InfoOf(size_t gpu, uint64_t memory_bytes) {
  GpuUuid uuid;
  uuid.bytes.fill(0xfa);
  uuid.bytes.back() = static_cast<uint8_t>(gpu);
  return {.uuid = uuid,
          .name = absl::StrCat("Fake GPU ", gpu),
          .pci_bus_id = absl::StrCat("0000:", absl::Hex(gpu + 1, absl::kZeroPad2), ":00.0"),
          .compute_major = 9,
          .compute_minor = 0,
          .memory_bytes = memory_bytes};
}

class FakePlatform final : public Platform {
 public:
  FakePlatform(World& world, std::vector<size_t> visible)
      : world_(world),
        visible_(std::move(visible)),
        pinned_(std::make_shared<PinnedMemory>(world)) {}

  absl::StatusOr<std::vector<GpuInfo>> Gpus() override {
    std::vector<GpuInfo> infos;
    for (const size_t gpu : visible_) infos.push_back(world_.gpus[gpu].info);
    if (infos.empty()) return absl::NotFoundError("the fake machine has no GPU");
    return infos;
  }

  absl::StatusOr<std::unique_ptr<Device>> Open(const GpuUuid& uuid) override {
    for (const size_t gpu : visible_) {
      GpuState& state = world_.gpus[gpu];
      if (state.info.uuid != uuid) continue;
      if (state.lost) return absl::AbortedError(absl::StrCat(Describe(state.info), " is lost"));
      if (!world_.context_refusal.ok()) return world_.context_refusal;
      if (world_.FreeBytes(state) < world_.options.context_bytes) {
        return absl::ResourceExhaustedError(
            absl::StrCat(Describe(state.info), " has no memory for a context"));
      }
      return std::make_unique<FakeDevice>(world_, pinned_, gpu);
    }
    const auto infos = Gpus();
    return NoSuchGpu(uuid, infos.ok() ? *infos : std::vector<GpuInfo>());
  }

  bool Linked(const GpuUuid&, const GpuUuid&) override { return world_.options.linked; }

  absl::StatusOr<std::unique_ptr<Communicator>> NewCommunicator(
      std::span<Device* const> devices) override {
    std::vector<FakeDevice*> fakes;
    std::set<GpuUuid> uuids;
    for (Device* const device : devices) {
      fakes.push_back(dynamic_cast<FakeDevice*>(device));
      if (fakes.back() == nullptr || !uuids.insert(device->info().uuid).second) {
        return absl::InvalidArgumentError("a communicator is among different GPUs, each once");
      }
    }
    if (fakes.empty()) return absl::InvalidArgumentError("a communicator of no GPUs");
    return std::make_unique<FakeCommunicator>(world_, std::move(fakes));
  }

 private:
  World& world_;
  const std::vector<size_t> visible_;
  const std::shared_ptr<PinnedMemory> pinned_;
};

}  // namespace

// ----- World. -----

World::World(const runtime::Clock& world_clock, const FakeMachineOptions& world_options)
    : clock(world_clock),
      options(world_options),
      random(world_options.seed),
      timeline(world_options.gpu_count, world_options.seed) {
  for (size_t gpu = 0; gpu < options.gpu_count; ++gpu) {
    gpus.push_back({.info = InfoOf(gpu, options.gpu_memory_bytes)});
  }
}

uint64_t World::FreeBytes(const GpuState& gpu) const {
  const uint64_t taken =
      gpu.occupied_bytes + gpu.allocated_bytes + gpu.devices.size() * options.context_bytes;
  return taken >= gpu.info.memory_bytes ? 0 : gpu.info.memory_bytes - taken;
}

std::array<std::byte, 64> World::NewHandle() {
  std::array<std::byte, 64> handle;
  for (std::byte& byte : handle) byte = static_cast<std::byte>(random.Next() & 0xff);
  return handle;
}

void World::Violate(std::string what) {
  if (violations.size() < kViolationsMax) violations.push_back(std::move(what));
}

void World::Touch(Memory& memory, uint64_t offset, uint64_t bytes, AccessKind kind, Actor actor,
                  const VectorClock& actor_clock, const std::string& what) {
  const auto race = memory.log.Enter(offset, offset + bytes, kind, actor, actor_clock, what);
  if (!race) return;
  Violate(absl::StrCat(what, kind == AccessKind::kRead ? " reads " : " writes ", memory.name, " + ",
                       offset, ", ", bytes, " bytes, which nothing orders with ", race->what,
                       race->kind == AccessKind::kRead ? ", which reads it" : ", which writes it"));
}

void World::ForgetIfUnused(Memory& memory) {
  if (!memory.owner_gone || memory.mappings > 0) return;
  gpus[memory.gpu].allocated_bytes -= memory.bytes;
}

// ----- FakeMachine. -----

FakeMachine::FakeMachine(const runtime::Clock& clock, const FakeMachineOptions& options)
    : world_(std::make_unique<World>(clock, options)) {}

FakeMachine::~FakeMachine() = default;

std::unique_ptr<Platform> FakeMachine::NewProcess() {
  std::vector<size_t> visible(world_->gpus.size());
  for (size_t gpu = 0; gpu < visible.size(); ++gpu) visible[gpu] = gpu;
  return std::make_unique<FakePlatform>(*world_, std::move(visible));
}

std::unique_ptr<Platform> FakeMachine::NewProcess(const std::vector<GpuUuid>& visible) {
  std::vector<size_t> gpus;
  for (const GpuUuid& uuid : visible) {
    for (size_t gpu = 0; gpu < world_->gpus.size(); ++gpu) {
      if (world_->gpus[gpu].info.uuid == uuid) gpus.push_back(gpu);
    }
  }
  return std::make_unique<FakePlatform>(*world_, std::move(gpus));
}

GpuUuid FakeMachine::uuid(size_t gpu) const { return world_->gpus.at(gpu).info.uuid; }

void FakeMachine::Advance() { world_->Advance(); }

std::optional<int64_t> FakeMachine::NextEndNs() {
  world_->Advance();
  return world_->timeline.NextEndNs();
}

void FakeMachine::HostReads(std::span<const std::byte> bytes) {
  world_->Advance();
  HostTouches(bytes, AccessKind::kRead);
}

void FakeMachine::HostWrites(std::span<const std::byte> bytes) {
  world_->Advance();
  HostTouches(bytes, AccessKind::kWrite);
}

void FakeMachine::HostTouches(std::span<const std::byte> bytes, AccessKind kind) {
  const uint64_t address = reinterpret_cast<uint64_t>(bytes.data());
  auto at = world_->pinned.upper_bound(address);
  TALWEG_CHECK(at != world_->pinned.begin());
  --at;
  Memory& memory = *at->second;
  TALWEG_CHECK(address - at->first + bytes.size() <= memory.bytes);
  world_->host_clock.Tick(kHost);
  world_->Touch(memory, address - at->first, bytes.size(), kind, kHost, world_->host_clock,
                "the host");
}

void FakeMachine::InjectCollectiveFault(CollectiveFault fault) { world_->collective_fault = fault; }

void FakeMachine::RefuseImports(absl::Status status) { world_->import_refusal = std::move(status); }

void FakeMachine::RefuseContexts(absl::Status status) {
  world_->context_refusal = std::move(status);
}

void FakeMachine::OccupyMemory(size_t gpu, uint64_t bytes) {
  world_->gpus.at(gpu).occupied_bytes = bytes;
}

void FakeMachine::LoseGpu(size_t gpu) {
  world_->Advance();
  GpuState& state = world_->gpus.at(gpu);
  state.lost = true;
  for (FakeDevice* const device : state.devices) device->Lose();
}

void FakeMachine::LoseContext(Device& device) {
  world_->Advance();
  dynamic_cast<FakeDevice&>(device).Lose();
}

void FakeMachine::RestoreGpu(size_t gpu) { world_->gpus.at(gpu).lost = false; }

const std::vector<std::string>& FakeMachine::violations() const { return world_->violations; }

void FakeMachine::ClearViolations() { world_->violations.clear(); }

size_t FakeMachine::context_count(size_t gpu) const { return world_->gpus.at(gpu).devices.size(); }

uint64_t FakeMachine::allocated_bytes(size_t gpu) const {
  return world_->gpus.at(gpu).allocated_bytes;
}

uint64_t FakeMachine::pinned_bytes() const { return world_->pinned_bytes; }

size_t FakeMachine::mapping_count() const { return world_->mapping_count; }

int FakeMachine::pinning_policy() const { return world_->pinning_policy; }

}  // namespace talweg::gpu::fake
