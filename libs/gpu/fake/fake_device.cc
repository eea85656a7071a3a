// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/fake_device.h"

#include <absl/strings/str_cat.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/status/status.h"

namespace talweg::gpu::fake {
namespace {

constexpr std::byte kPoison{0xee};

void Poison(const Place& place) {
  std::memset(place.data(), static_cast<int>(kPoison), place.bytes);
}

void Signal(const Descriptor& descriptor) {
  const uint64_t one = 1;
  TALWEG_CHECK(write(descriptor.get(), &one, sizeof(one)) == sizeof(one));
}

uint64_t AddressOf(const std::byte* data) { return reinterpret_cast<uint64_t>(data); }

}  // namespace

FakeDevice::FakeDevice(World& world, std::shared_ptr<PinnedRegions> pinned, size_t gpu)
    : world_(world),
      pinned_(std::move(pinned)),
      gpu_(gpu),
      wakeups_(std::make_shared<Descriptor>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))),
      // Elsewhere in every process: an address that is sent instead of a handle is found out.
      next_address_(0x7f00'0000'0000 + (world.random.Below(1 << 20) << 20)) {
  state().devices.insert(this);
}

FakeDevice::~FakeDevice() {
  world_.Advance();
  if (!lost_) CheckEnds(absl::StrCat("destroys the device of GPU ", gpu_));
  for (const Actor actor : actors_) world_.timeline.Drop(actor);
  world_.host_clock.Merge(stopped_);
  for (auto& [id, event] : events_) {
    if (!event.imported) event.shared->owner_dead = true;
  }
  for (const auto& [address, entry] : memory_.entries()) {
    fake::Memory& memory = *entry.value.memory;
    if (entry.value.imported) {
      --memory.mappings;
      --world_.mapping_count;
    } else {
      memory.owner_gone = true;
    }
    world_.ForgetIfUnused(memory);
  }
  std::vector<std::span<std::byte>> mine;
  for (const auto& [address, entry] : pinned_->map.entries()) {
    if (entry.value->owner == this) mine.emplace_back(entry.value->memory->data, entry.bytes);
  }
  for (const std::span<std::byte> bytes : mine) ForgetPinned(bytes);
  state().devices.erase(this);
}

absl::Status FakeDevice::Ready() {
  world_.Advance();
  if (!lost_ && !state().lost) return absl::OkStatus();
  is_known_lost_ = true;
  return absl::AbortedError(absl::StrCat(Describe(info()), " is lost"));
}

void FakeDevice::Lose() {
  lost_ = true;
  for (const Actor actor : actors_) world_.timeline.Drop(actor);
  for (const auto& [id, stream] : streams_) stopped_.Merge(stream.clock);
  streams_.clear();
}

// ----- Memory. -----

absl::StatusOr<MemoryInfo> FakeDevice::Memory() {
  TALWEG_RETURN_IF_ERROR(Ready());
  return MemoryInfo{world_.FreeBytes(state()), state().info.memory_bytes};
}

uint64_t FakeDevice::Place256(uint64_t bytes) {
  const uint64_t address = next_address_;
  // A hole behind each piece, so that nothing runs on into the next.
  next_address_ += RoundUp(bytes, 256) + 4096;
  return address;
}

absl::StatusOr<DeviceSpan> FakeDevice::Allocate(uint64_t bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  if (bytes == 0) return absl::InvalidArgumentError("an allocation of no bytes");
  if (bytes > world_.FreeBytes(state())) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Describe(info()), " has ", FormatBytes(world_.FreeBytes(state())), " free of ",
                     FormatBytes(info().memory_bytes), ", not ", FormatBytes(bytes)));
  }
  const DeviceSpan span = {Place256(bytes), bytes};
  const auto memory = std::make_shared<fake::Memory>();
  memory->name = absl::StrCat("GPU ", gpu_, "'s 0x", absl::Hex(span.address));
  memory->gpu = gpu_;
  memory->storage.resize(bytes, kPoison);
  memory->data = memory->storage.data();
  memory->bytes = bytes;
  state().allocated_bytes += bytes;
  memory_.Insert(span.address, bytes, {memory});
  return span;
}

void FakeDevice::CheckUnused(const fake::Memory& memory, const char* doing) const {
  const auto unfinished = memory.log.Unfinished(
      world_.host_clock, [this](Actor actor) { return actors_.contains(actor); });
  if (unfinished) {
    world_.Violate(
        absl::StrCat(doing, " ", memory.name, " while ", unfinished->what, " may still use it"));
  }
}

void FakeDevice::CheckEnds(const std::string& doing) const {
  for (const Actor actor : actors_) {
    const char* const why = world_.timeline.MayNeverEnd(actor, actors_);
    if (why != nullptr) {
      world_.Violate(
          absl::StrCat(doing, ", which waits for stream ", actor, ", and that for ", why));
    }
  }
}

absl::Status FakeDevice::Free(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Ready());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " was not allocated here"));
  }
  fake::Memory& memory = *entry->value.memory;
  CheckUnused(memory, "frees");
  CheckEnds(absl::StrCat("frees ", memory.name));
  if (memory.mappings > 0) {
    world_.Violate(absl::StrCat("frees ", memory.name, ", which another process has mapped"));
  }
  memory.owner_gone = true;
  world_.ForgetIfUnused(memory);
  memory_.Erase(span.address);
  return absl::OkStatus();
}

absl::Status FakeDevice::Pin(std::span<std::byte> bytes, std::unique_ptr<std::byte[]> allocated) {
  if (bytes.empty()) return absl::InvalidArgumentError("no bytes to pin");
  if (pinned_->map.Overlaps(AddressOf(bytes.data()), bytes.size())) {
    return absl::InvalidArgumentError(absl::StrCat("host memory at 0x",
                                                   absl::Hex(AddressOf(bytes.data())),
                                                   " is pinned already, in part or whole"));
  }
  if (world_.pinned_bytes + bytes.size() > world_.options.pinned_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot pin ", FormatBytes(bytes.size()), " of host memory"));
  }
  const auto region = std::make_shared<PinnedRegions::Region>();
  region->memory = std::make_shared<fake::Memory>();
  region->memory->name = absl::StrCat("host memory 0x", absl::Hex(AddressOf(bytes.data())));
  region->memory->data = bytes.data();
  region->memory->bytes = bytes.size();
  region->owner = this;
  region->allocated = std::move(allocated);
  pinned_->map.Insert(AddressOf(bytes.data()), bytes.size(), region);
  world_.pinned[AddressOf(bytes.data())] = region->memory;
  world_.pinned_bytes += bytes.size();
  return absl::OkStatus();
}

absl::Status FakeDevice::Unpin(std::span<std::byte> bytes, bool allocated) {
  const auto* const entry = pinned_->map.Find(AddressOf(bytes.data()));
  if (entry == nullptr || entry->bytes != bytes.size() || entry->value->owner != this ||
      (entry->value->allocated != nullptr) != allocated) {
    return absl::InvalidArgumentError(absl::StrCat("host memory at 0x",
                                                   absl::Hex(AddressOf(bytes.data())),
                                                   " was not pinned so by this device"));
  }
  CheckUnused(*entry->value->memory, "unpins");
  CheckEnds(absl::StrCat("unpins ", entry->value->memory->name));
  ForgetPinned(bytes);
  return absl::OkStatus();
}

void FakeDevice::ForgetPinned(std::span<std::byte> bytes) {
  world_.pinned.erase(AddressOf(bytes.data()));
  world_.pinned_bytes -= bytes.size();
  pinned_->map.Erase(AddressOf(bytes.data()));
}

absl::StatusOr<std::span<std::byte>> FakeDevice::AllocateHost(uint64_t bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  if (world_.pinned_bytes + bytes > world_.options.pinned_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot pin ", FormatBytes(bytes), " of host memory"));
  }
  if (syscall(SYS_get_mempolicy, &world_.pinning_policy, nullptr, 0, nullptr, 0) != 0) {
    world_.pinning_policy = -1;
  }
  auto allocated = std::make_unique<std::byte[]>(bytes);
  const std::span<std::byte> span(allocated.get(), bytes);
  TALWEG_RETURN_IF_ERROR(Pin(span, std::move(allocated)));
  return span;
}

absl::Status FakeDevice::FreeHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  return Unpin(bytes, true);
}

absl::Status FakeDevice::RegisterHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  return Pin(bytes, nullptr);
}

absl::Status FakeDevice::UnregisterHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  return Unpin(bytes, false);
}

absl::StatusOr<MemoryHandle> FakeDevice::Export(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Ready());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " was not allocated here"));
  }
  for (const auto& [handle, memory] : world_.exported_memory) {
    if (memory.lock() == entry->value.memory) return handle;
  }
  const MemoryHandle handle = {world_.NewHandle()};
  world_.exported_memory[handle] = entry->value.memory;
  return handle;
}

absl::StatusOr<DeviceSpan> FakeDevice::Map(const MemoryHandle& handle) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(world_.import_refusal);
  const auto known = world_.exported_memory.find(handle);
  const auto memory = known == world_.exported_memory.end() ? nullptr : known->second.lock();
  if (memory == nullptr || memory->owner_gone || memory->gpu != gpu_) {
    return absl::InvalidArgumentError(absl::StrCat("not a handle of memory on ", Describe(info())));
  }
  for (const auto& [address, entry] : memory_.entries()) {
    if (entry.value.memory == memory) {
      return absl::InvalidArgumentError(entry.value.imported
                                            ? "the handle's memory is mapped already"
                                            : "the handle's memory is this process's own");
    }
  }
  const DeviceSpan span = {Place256(memory->bytes), memory->bytes};
  ++memory->mappings;
  ++world_.mapping_count;
  memory_.Insert(span.address, span.bytes, {memory, true});
  return span;
}

absl::Status FakeDevice::Unmap(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Ready());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || !entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " is not mapped here"));
  }
  fake::Memory& memory = *entry->value.memory;
  CheckUnused(memory, "unmaps");
  CheckEnds(absl::StrCat("unmaps ", memory.name));
  --memory.mappings;
  --world_.mapping_count;
  world_.ForgetIfUnused(memory);
  memory_.Erase(span.address);
  return absl::OkStatus();
}

absl::StatusOr<Place> FakeDevice::Resolve(DeviceSpan span) const {
  TALWEG_ASSIGN_OR_RETURN(const auto holder,
                          memory_.Holder(span.address, span.bytes, kDeviceMemory));
  return Place{holder.second->value.memory, span.address - holder.first, span.bytes};
}

absl::StatusOr<Place> FakeDevice::ResolveHost(std::span<const std::byte> bytes) const {
  TALWEG_ASSIGN_OR_RETURN(
      const auto holder, pinned_->map.Holder(AddressOf(bytes.data()), bytes.size(), kPinnedMemory));
  if (holder.second->value->owner->is_known_lost_) {
    world_.Violate(absl::StrCat("copies to or from ", holder.second->value->memory->name,
                                ", which a context that is known to be lost had pinned"));
  }
  return Place{holder.second->value->memory, AddressOf(bytes.data()) - holder.first, bytes.size()};
}

// ----- Streams and events. -----

absl::StatusOr<StreamId> FakeDevice::NewStream(StreamPriority priority) {
  TALWEG_RETURN_IF_ERROR(Ready());
  const Actor actor = world_.timeline.NewStream(gpu_, priority);
  actors_.insert(actor);
  streams_[StreamId(actor)];
  return StreamId(actor);
}

absl::StatusOr<EventId> FakeDevice::NewEvent(EventScope scope) {
  TALWEG_RETURN_IF_ERROR(Ready());
  const EventId id(next_event_++);
  events_[id] = {std::make_shared<SharedEvent>(), false, scope == EventScope::kShared};
  return id;
}

absl::StatusOr<EventHandle> FakeDevice::ExportEvent(EventId event) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  if (!found->exportable) return absl::InvalidArgumentError("the event was not made as kShared");
  const EventHandle handle = {world_.NewHandle()};
  world_.exported_events[handle] = found->shared;
  return handle;
}

absl::StatusOr<EventId> FakeDevice::ImportEvent(const EventHandle& handle) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(world_.import_refusal);
  const auto known = world_.exported_events.find(handle);
  const auto shared = known == world_.exported_events.end() ? nullptr : known->second.lock();
  if (shared == nullptr || shared->owner_dead || shared->destroyed_by_owner) {
    return absl::InvalidArgumentError("not a handle of an event");
  }
  const EventId id(next_event_++);
  events_[id] = {shared, true, false};
  return id;
}

void FakeDevice::DestroyStream(StreamId stream) {
  world_.Advance();
  if (streams_.erase(stream) != 0) world_.timeline.Close(stream.value());
}

void FakeDevice::DestroyEvent(EventId event) {
  world_.Advance();
  const auto at = events_.find(event);
  if (at == events_.end()) return;
  if (!at->second.imported) at->second.shared->destroyed_by_owner = true;
  events_.erase(at);
}

absl::StatusOr<FakeDevice::Stream*> FakeDevice::FindStream(StreamId stream) {
  const auto at = streams_.find(stream);
  if (at == streams_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no stream ", stream.value(), " on this device"));
  }
  return &at->second;
}

absl::StatusOr<FakeDevice::Event*> FakeDevice::FindEvent(EventId event) {
  const auto at = events_.find(event);
  if (at == events_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("no event ", event.value(), " on this device"));
  }
  if (at->second.imported && at->second.shared->destroyed_by_owner) {
    world_.Violate("uses an event that its owner has destroyed");
  }
  return &at->second;
}

absl::Status FakeDevice::Record(EventId event, StreamId stream) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  TALWEG_ASSIGN_OR_RETURN(Stream* const on, FindStream(stream));
  if (found->imported && found->shared->owner_dead) {
    world_.Violate("records an event whose owner is dead");
  }
  const auto mark = std::make_shared<Mark>();
  mark->recorder = stream.value();
  found->recorded_here = true;
  found->shared->current = mark;
  on->clock.Merge(world_.host_clock);
  mark->clock = on->clock;
  if (world_.options.costs.record_ns > 0) {
    Work before;
    before.duration_ns = world_.options.costs.record_ns;
    Post(stream, std::move(before), {}, "a record");
    mark->clock = on->clock;
  }
  Work work;
  work.marks = mark;
  Post(stream, std::move(work), {}, "a record");
  return absl::OkStatus();
}

absl::Status FakeDevice::Wait(StreamId stream, EventId event) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  TALWEG_ASSIGN_OR_RETURN(Stream* const on, FindStream(stream));
  const std::shared_ptr<Mark> mark = found->shared->current;
  if (mark == nullptr) return absl::OkStatus();
  on->clock.Merge(mark->clock);
  Work work;
  work.waits_for = mark;
  Post(stream, std::move(work), {}, "a wait");
  return absl::OkStatus();
}

absl::StatusOr<bool> FakeDevice::Query(EventId event) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  const std::shared_ptr<Mark>& mark = found->shared->current;
  if (mark == nullptr) return true;
  if (mark->done) world_.host_clock.Merge(mark->clock);
  return mark->done;
}

absl::Status FakeDevice::WakeWhenDone(EventId event) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(Event* const found, FindEvent(event));
  if (found->is_shared() && !found->recorded_here) return NotRecordedHere(event);
  const std::shared_ptr<Mark>& mark = found->shared->current;
  if (mark == nullptr || mark->done) {
    Signal(*wakeups_);
  } else {
    mark->on_done.push_back([wakeups = wakeups_] { Signal(*wakeups); });
  }
  return absl::OkStatus();
}

void FakeDevice::DrainWakeups() {
  uint64_t count = 0;
  TALWEG_CHECK(read(wakeups_->get(), &count, sizeof(count)) == sizeof(count) || errno == EAGAIN);
}

// ----- Work. -----

void FakeDevice::Reserve(StreamId stream, bool reserved) {
  const auto at = streams_.find(stream);
  if (at != streams_.end()) at->second.reserved = reserved;
}

void FakeDevice::Post(StreamId stream, Work work, const std::vector<Access>& accesses,
                      const std::string& what) {
  Stream& on = streams_.at(stream);
  const Actor actor = stream.value();
  if (on.reserved) {
    world_.Violate(absl::StrCat("posts ", what, " to stream ", actor,
                                " before its communicator is ready again"));
  }
  on.clock.Merge(world_.host_clock);
  on.clock.Tick(actor);
  const std::string who = absl::StrCat(what, " (stream ", actor, ")");
  for (const Access& access : accesses) {
    world_.Touch(*access.place.memory, access.place.offset, access.place.bytes, access.kind, actor,
                 on.clock, who);
  }
  world_.timeline.Post(actor, std::move(work));
}

int64_t FakeDevice::CostNs(uint64_t bytes, int64_t bytes_per_us) const {
  return world_.options.costs.launch_ns + static_cast<int64_t>(bytes) * 1000 / bytes_per_us;
}

absl::Status FakeDevice::Copy(StreamId stream, Engine engine, const Place& target,
                              const Place& source, const char* what) {
  TALWEG_RETURN_IF_ERROR(FindStream(stream).status());
  const FakeCosts& costs = world_.options.costs;
  Work work;
  work.engine = engine;
  work.duration_ns = CostNs(target.bytes, engine == Engine::kCompute ? costs.kernel_bytes_per_us
                                                                     : costs.copy_bytes_per_us);
  work.begin = [target] { Poison(target); };
  work.end = [target, source] { std::memcpy(target.data(), source.data(), target.bytes); };
  Post(stream, std::move(work), {{source, AccessKind::kRead}, {target, AccessKind::kWrite}}, what);
  return absl::OkStatus();
}

absl::Status FakeDevice::CopyToHost(StreamId stream, std::span<std::byte> target,
                                    DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.size(), source.bytes));
  TALWEG_ASSIGN_OR_RETURN(const Place to, ResolveHost(target));
  TALWEG_ASSIGN_OR_RETURN(const Place from, Resolve(source));
  return Copy(stream, Engine::kToHost, to, from, "a copy to the host");
}

absl::Status FakeDevice::CopyToDevice(StreamId stream, DeviceSpan target,
                                      std::span<const std::byte> source) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.size()));
  TALWEG_ASSIGN_OR_RETURN(const Place to, Resolve(target));
  TALWEG_ASSIGN_OR_RETURN(const Place from, ResolveHost(source));
  return Copy(stream, Engine::kToDevice, to, from, "a copy to the device");
}

absl::Status FakeDevice::CopyOnDevice(StreamId stream, DeviceSpan target, DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.bytes));
  TALWEG_ASSIGN_OR_RETURN(const Place to, Resolve(target));
  TALWEG_ASSIGN_OR_RETURN(const Place from, Resolve(source));
  if (to.memory == from.memory && to.offset < from.offset + from.bytes &&
      from.offset < to.offset + to.bytes) {
    return absl::InvalidArgumentError("a copy between bytes that overlap");
  }
  return Copy(stream, Engine::kCompute, to, from, "a copy on the device");
}

absl::Status FakeDevice::CopyToPeer(StreamId stream, Device& peer, DeviceSpan target,
                                    DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.bytes));
  auto* const other = dynamic_cast<FakeDevice*>(&peer);
  if (other == nullptr || other == this) return NoPeer();
  TALWEG_RETURN_IF_ERROR(other->Ready());
  TALWEG_ASSIGN_OR_RETURN(const Place to, other->Resolve(target));
  TALWEG_ASSIGN_OR_RETURN(const Place from, Resolve(source));
  return Copy(stream, Engine::kToHost, to, from, "a copy to another GPU");
}

absl::Status FakeDevice::Reduce(StreamId stream, const ReduceSpec& spec,
                                std::span<const uint64_t> inputs, uint64_t output,
                                uint64_t element_count) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(kernels::ReducePlan plan,
                          kernels::PlanReduce(spec, inputs, output, element_count));
  TALWEG_RETURN_IF_ERROR(FindStream(stream).status());
  if (plan.bytes == 0) return absl::OkStatus();
  std::vector<Access> accesses;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TALWEG_ASSIGN_OR_RETURN(Place place, Resolve({inputs[i], plan.bytes}));
    plan.arguments.inputs[i] = AddressOf(place.data());
    accesses.push_back({std::move(place), AccessKind::kRead});
  }
  TALWEG_ASSIGN_OR_RETURN(const Place target, Resolve({output, plan.bytes}));
  // The storage need not lie as the addresses do.
  TALWEG_CHECK(AddressOf(target.memory->data) % kernels::kVectorBytes == 0);
  plan.arguments.output = AddressOf(target.data());
  accesses.push_back({target, AccessKind::kWrite});
  Work work;
  work.engine = Engine::kCompute;
  work.duration_ns =
      CostNs(plan.bytes * (inputs.size() + 1), world_.options.costs.kernel_bytes_per_us);
  const bool in_place = inputs[0] == output;
  if (!in_place) work.begin = [target] { Poison(target); };
  // `accesses` keeps the memory.
  work.end = [plan, accesses] { kernels::RunOnHost(plan, 33); };
  Post(stream, std::move(work), accesses, "a reduction");
  return absl::OkStatus();
}

}  // namespace talweg::gpu::fake
