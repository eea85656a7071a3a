// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/fake_device.h"

#include <absl/strings/str_cat.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libs/base/check.h"
#include "libs/gpu/kernels/reduce_plan.h"
#include "libs/status/status.h"

namespace talweg::gpu::fake {
namespace {

void Signal(const Descriptor& descriptor) {
  const uint64_t one = 1;
  TALWEG_CHECK(write(descriptor.get(), &one, sizeof(one)) == sizeof(one));
}

int64_t CostNs(const FakeCosts& costs, uint64_t bytes, int64_t bytes_per_us) {
  return costs.launch_ns + static_cast<int64_t>(bytes) * 1000 / bytes_per_us;
}

}  // namespace

FakeDevice::FakeDevice(World& world, std::shared_ptr<PinnedMemory> pinned, size_t gpu)
    : world_(world),
      pinned_(std::move(pinned)),
      gpu_(gpu),
      state_(world.gpus[gpu]),
      wakeups_(std::make_shared<Descriptor>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))),
      // Addresses differ in every process. So an address that is sent instead of a handle is
      // noticed.
      memory_(0x7f00'0000'0000 + (world.random.Below(1 << 20) << 20)),
      streams_(world),
      events_(world) {
  state_.devices.insert(this);
}

FakeDevice::~FakeDevice() {
  world_.Advance();
  if (!lost_) streams_.CheckEnds(absl::StrCat("destroys the device of GPU ", gpu_));
  streams_.Drop();
  events_.OnDeviceGone();
  for (const auto& [address, entry] : memory_.map().entries()) {
    fake::Memory& memory = *entry.value.memory;
    if (entry.value.imported) {
      --memory.mappings;
      --world_.mapping_count;
    } else {
      memory.owner_gone = true;
    }
    world_.ForgetIfUnused(memory);
  }
  pinned_->ForgetAllOf(this);
  state_.devices.erase(this);
}

absl::Status FakeDevice::Ready() {
  world_.Advance();
  if (!lost_ && !state_.lost) return absl::OkStatus();
  pinned_->OnKnownLost(this);
  return absl::AbortedError(absl::StrCat(Describe(info()), " is lost"));
}

void FakeDevice::Lose() {
  lost_ = true;
  streams_.Stop();
}

// ----- Streams and events. -----

absl::StatusOr<StreamId> FakeDevice::NewStream(StreamPriority priority) {
  TALWEG_RETURN_IF_ERROR(Ready());
  return streams_.New(gpu_, priority);
}

absl::StatusOr<EventId> FakeDevice::NewEvent(EventScope scope) {
  TALWEG_RETURN_IF_ERROR(Ready());
  return events_.Add(
      {.shared = std::make_shared<SharedEvent>(), .exportable = scope == EventScope::kShared});
}

absl::StatusOr<EventHandle> FakeDevice::ExportEvent(EventId event) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(DeviceEvents::Event* const found, events_.Find(event));
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
  return events_.Add({.shared = shared, .imported = true});
}

void FakeDevice::DestroyStream(StreamId stream) {
  world_.Advance();
  streams_.Destroy(stream);
}

void FakeDevice::DestroyEvent(EventId event) {
  world_.Advance();
  events_.Destroy(event);
}

absl::Status FakeDevice::Record(EventId event, StreamId stream) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(DeviceEvents::Event* const found, events_.Find(event));
  TALWEG_RETURN_IF_ERROR(streams_.Check(stream));
  if (found->imported && found->shared->owner_dead) {
    world_.Violate("records an event whose owner is dead");
  }
  const auto mark = std::make_shared<Mark>();
  mark->recorder = stream.value();
  found->recorded_here = true;
  found->shared->current = mark;
  streams_.clock_of(stream).Merge(world_.host_clock);
  mark->clock = streams_.clock_of(stream);
  if (world_.options.costs.record_ns > 0) {
    Work before;
    before.duration_ns = world_.options.costs.record_ns;
    streams_.Post(stream, std::move(before), {}, "a record");
    mark->clock = streams_.clock_of(stream);
  }
  Work work;
  work.marks = mark;
  streams_.Post(stream, std::move(work), {}, "a record");
  return absl::OkStatus();
}

absl::Status FakeDevice::Wait(StreamId stream, EventId event) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(DeviceEvents::Event* const found, events_.Find(event));
  TALWEG_RETURN_IF_ERROR(streams_.Check(stream));
  const std::shared_ptr<Mark> mark = found->shared->current;
  if (mark == nullptr) return absl::OkStatus();
  streams_.clock_of(stream).Merge(mark->clock);
  Work work;
  work.waits_for = mark;
  streams_.Post(stream, std::move(work), {}, "a wait");
  return absl::OkStatus();
}

absl::StatusOr<bool> FakeDevice::Query(EventId event) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(DeviceEvents::Event* const found, events_.Find(event));
  const std::shared_ptr<Mark>& mark = found->shared->current;
  if (mark == nullptr) return true;
  if (mark->done) world_.host_clock.Merge(mark->clock);
  return mark->done;
}

absl::Status FakeDevice::WakeWhenDone(EventId event) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(DeviceEvents::Event* const found, events_.Find(event));
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

absl::Status FakeDevice::Copy(StreamId stream, Engine engine, const Place& target,
                              const Place& source, const char* what) {
  TALWEG_RETURN_IF_ERROR(streams_.Check(stream));
  const FakeCosts& costs = world_.options.costs;
  Work work;
  work.engine = engine;
  work.duration_ns =
      CostNs(costs, target.bytes,
             engine == Engine::kCompute ? costs.kernel_bytes_per_us : costs.copy_bytes_per_us);
  work.begin = [target] { Poison(target); };
  work.end = [target, source] { std::memcpy(target.data(), source.data(), target.bytes); };
  streams_.Post(stream, std::move(work),
                {{source, AccessKind::kRead}, {target, AccessKind::kWrite}}, what);
  return absl::OkStatus();
}

absl::Status FakeDevice::CopyToHost(StreamId stream, std::span<std::byte> target,
                                    DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.size(), source.bytes));
  TALWEG_ASSIGN_OR_RETURN(const Place to, pinned_->Resolve(target));
  TALWEG_ASSIGN_OR_RETURN(const Place from, memory_.Resolve(source));
  return Copy(stream, Engine::kToHost, to, from, "a copy to the host");
}

absl::Status FakeDevice::CopyToDevice(StreamId stream, DeviceSpan target,
                                      std::span<const std::byte> source) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.size()));
  TALWEG_ASSIGN_OR_RETURN(const Place to, memory_.Resolve(target));
  TALWEG_ASSIGN_OR_RETURN(const Place from, pinned_->Resolve(source));
  return Copy(stream, Engine::kToDevice, to, from, "a copy to the device");
}

absl::Status FakeDevice::CopyOnDevice(StreamId stream, DeviceSpan target, DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.bytes));
  TALWEG_ASSIGN_OR_RETURN(const Place to, memory_.Resolve(target));
  TALWEG_ASSIGN_OR_RETURN(const Place from, memory_.Resolve(source));
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
  TALWEG_ASSIGN_OR_RETURN(const Place to, other->memory_.Resolve(target));
  TALWEG_ASSIGN_OR_RETURN(const Place from, memory_.Resolve(source));
  return Copy(stream, Engine::kToHost, to, from, "a copy to another GPU");
}

absl::Status FakeDevice::ReduceTo(StreamId stream, const ReduceSpec& spec,
                                  std::span<const uint64_t> inputs,
                                  std::span<const uint64_t> outputs, uint64_t element_count) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(kernels::ReducePlan plan,
                          kernels::PlanReduce(spec, inputs, outputs, element_count));
  TALWEG_RETURN_IF_ERROR(streams_.Check(stream));
  if (plan.bytes == 0) return absl::OkStatus();
  std::vector<Access> accesses;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TALWEG_ASSIGN_OR_RETURN(Place place, memory_.Resolve({inputs[i], plan.bytes}));
    plan.arguments.inputs[i] = AddressOf(place.data());
    accesses.push_back({std::move(place), AccessKind::kRead});
  }
  std::vector<Place> poisoned;
  for (size_t o = 0; o < outputs.size(); ++o) {
    TALWEG_ASSIGN_OR_RETURN(const Place target, memory_.Resolve({outputs[o], plan.bytes}));
    // Storage may be aligned less than the addresses are.
    TALWEG_CHECK(AddressOf(target.memory->data) % kernels::kVectorBytes == 0);
    plan.arguments.outputs[o] = AddressOf(target.data());
    accesses.push_back({target, AccessKind::kWrite});
    const bool in_place = std::find(inputs.begin(), inputs.end(), outputs[o]) != inputs.end();
    if (!in_place) poisoned.push_back(target);
  }
  Work work;
  work.engine = Engine::kCompute;
  const FakeCosts& costs = world_.options.costs;
  work.duration_ns =
      CostNs(costs, plan.bytes * (inputs.size() + outputs.size()), costs.kernel_bytes_per_us);
  work.begin = [poisoned] {
    for (const Place& target : poisoned) Poison(target);
  };
  // Holding `accesses` keeps the memory.
  work.end = [plan, accesses] { kernels::RunOnHost(plan, 33); };
  streams_.Post(stream, std::move(work), accesses, "a reduction");
  return absl::OkStatus();
}

}  // namespace talweg::gpu::fake
