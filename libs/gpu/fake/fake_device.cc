// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/fake_device.h"

#include <absl/strings/str_cat.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libs/base/check.h"
#include "libs/status/status.h"

namespace talweg::gpu::fake {
namespace {

void Signal(const Descriptor& descriptor) {
  const uint64_t one = 1;
  TALWEG_CHECK(write(descriptor.get(), &one, sizeof(one)) == sizeof(one));
}

}  // namespace

FakeDevice::FakeDevice(World& world, std::shared_ptr<PinnedRegions> pinned, size_t gpu)
    : world_(world),
      pinned_(std::move(pinned)),
      gpu_(gpu),
      wakeups_(std::make_shared<Descriptor>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))),
      // Different in every process, so that an address that is sent instead of a handle is found
      // out.
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

absl::Status FakeDevice::ReduceTo(StreamId stream, const ReduceSpec& spec,
                                  std::span<const uint64_t> inputs,
                                  std::span<const uint64_t> outputs, uint64_t element_count) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(kernels::ReducePlan plan,
                          kernels::PlanReduce(spec, inputs, outputs, element_count));
  TALWEG_RETURN_IF_ERROR(FindStream(stream).status());
  if (plan.bytes == 0) return absl::OkStatus();
  std::vector<Access> accesses;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TALWEG_ASSIGN_OR_RETURN(Place place, Resolve({inputs[i], plan.bytes}));
    plan.arguments.inputs[i] = AddressOf(place.data());
    accesses.push_back({std::move(place), AccessKind::kRead});
  }
  std::vector<Place> poisoned;
  for (size_t o = 0; o < outputs.size(); ++o) {
    TALWEG_ASSIGN_OR_RETURN(const Place target, Resolve({outputs[o], plan.bytes}));
    // The storage need not be aligned as the addresses are.
    TALWEG_CHECK(AddressOf(target.memory->data) % kernels::kVectorBytes == 0);
    plan.arguments.outputs[o] = AddressOf(target.data());
    accesses.push_back({target, AccessKind::kWrite});
    const bool in_place = std::find(inputs.begin(), inputs.end(), outputs[o]) != inputs.end();
    if (!in_place) poisoned.push_back(target);
  }
  Work work;
  work.engine = Engine::kCompute;
  work.duration_ns = CostNs(plan.bytes * (inputs.size() + outputs.size()),
                            world_.options.costs.kernel_bytes_per_us);
  work.begin = [poisoned] {
    for (const Place& target : poisoned) Poison(target);
  };
  // `accesses` keeps the memory.
  work.end = [plan, accesses] { kernels::RunOnHost(plan, 33); };
  Post(stream, std::move(work), accesses, "a reduction");
  return absl::OkStatus();
}

}  // namespace talweg::gpu::fake
