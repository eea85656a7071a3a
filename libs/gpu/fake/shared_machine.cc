// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/shared_machine.h"

#include <absl/strings/str_cat.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/base/descriptor.h"
#include "libs/gpu/address_map.h"
#include "libs/gpu/fake/event_watcher.h"
#include "libs/gpu/fake/shared_files.h"
#include "libs/gpu/fake/shared_memory.h"
#include "libs/gpu/kernels/reduce_plan.h"
#include "libs/status/status.h"

namespace talweg::gpu::fake {
namespace {

std::byte* At(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

std::string LossPath(const SharedMachineOptions& options, size_t gpu) {
  return absl::StrCat(options.directory, "/lost", gpu, ".", getpid());
}

class SharedDevice final : public Device {
 public:
  SharedDevice(SharedMachineOptions options, GpuInfo info, size_t gpu,
               std::shared_ptr<SharedPins> pinned)
      : options_(std::move(options)),
        info_(std::move(info)),
        gpu_(gpu),
        wakeups_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        pinned_(std::move(pinned)) {}

  const GpuInfo& info() const override { return info_; }
  absl::StatusOr<MemoryInfo> Memory() override {
    TALWEG_RETURN_IF_ERROR(Ready());
    return MemoryInfo{info_.memory_bytes, info_.memory_bytes};
  }
  absl::StatusOr<DeviceSpan> Allocate(uint64_t bytes) override {
    if (bytes == 0) return absl::InvalidArgumentError("an allocation of no bytes");
    TALWEG_ASSIGN_OR_RETURN(auto file, NewFile(kMemoryKind, kHeaderBytes + bytes));
    const MemoryHeader header = {gpu_, bytes};
    std::memcpy(file->data(), &header, sizeof header);
    return memory_.Keep(std::move(file), bytes, false);
  }
  absl::Status Free(DeviceSpan span) override { return memory_.Forget(span, false); }
  absl::StatusOr<std::span<std::byte>> AllocateHost(uint64_t bytes) override {
    return pinned_.Allocate(bytes);
  }
  absl::Status FreeHost(std::span<std::byte> bytes) override { return pinned_.Unpin(bytes); }
  absl::Status RegisterHost(std::span<std::byte> bytes) override { return pinned_.Register(bytes); }
  absl::Status UnregisterHost(std::span<std::byte> bytes) override { return pinned_.Unpin(bytes); }

  absl::StatusOr<MemoryHandle> Export(DeviceSpan span) override { return memory_.HandleOf(span); }
  absl::StatusOr<DeviceSpan> Map(const MemoryHandle& handle) override {
    TALWEG_RETURN_IF_ERROR(Ready());
    TALWEG_ASSIGN_OR_RETURN(auto file, OpenFile(kMemoryKind, handle.bytes));
    if (memory_.Has(*file)) {
      return absl::InvalidArgumentError("the handle's memory is mapped, or this process's own");
    }
    MemoryHeader header;
    std::memcpy(&header, file->data(), sizeof header);
    if (header.gpu != gpu_ || header.bytes + kHeaderBytes > file->bytes()) {
      return absl::InvalidArgumentError("not a handle of memory on " + Describe(info_));
    }
    return memory_.Keep(std::move(file), header.bytes, true);
  }
  absl::Status Unmap(DeviceSpan span) override { return memory_.Forget(span, true); }

  // A write to a file is visible at once.
  absl::StatusOr<NicMemory> OpenToNic(DeviceSpan span) override {
    TALWEG_RETURN_IF_ERROR(Ready());
    TALWEG_RETURN_IF_ERROR(HolderForNic(memory_.map(), span).status());
    return NicMemory{
        .address = span.address, .bytes = span.bytes, .device = static_cast<int>(gpu_)};
  }
  absl::Status FlushNicWrites() override { return Ready(); }
  absl::Status ReadNow(std::span<std::byte> target, DeviceSpan source) override {
    TALWEG_RETURN_IF_ERROR(Ready());
    TALWEG_RETURN_IF_ERROR(CheckCopy(target.size(), source.bytes));
    TALWEG_RETURN_IF_ERROR(memory_.Check(source));
    std::memcpy(target.data(), At(source.address), target.size());
    return absl::OkStatus();
  }
  absl::Status WriteNow(DeviceSpan target, std::span<const std::byte> source) override {
    TALWEG_RETURN_IF_ERROR(Ready());
    TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.size()));
    TALWEG_RETURN_IF_ERROR(memory_.Check(target));
    std::memcpy(At(target.address), source.data(), source.size());
    return absl::OkStatus();
  }

  absl::StatusOr<StreamId> NewStream(StreamPriority) override {
    const StreamId stream{next_id_++};
    streams_.insert(stream);
    return stream;
  }
  absl::StatusOr<EventId> NewEvent(EventScope scope) override {
    TALWEG_RETURN_IF_ERROR(Ready());
    TALWEG_ASSIGN_OR_RETURN(auto file, NewFile(kEventKind, kHeaderBytes));
    const EventId event{next_id_++};
    events_[event] = {std::move(file), scope == EventScope::kShared};
    return event;
  }
  absl::StatusOr<EventHandle> ExportEvent(EventId event) override {
    const auto at = events_.find(event);
    if (at == events_.end()) return absl::InvalidArgumentError("no such event");
    return EventHandle{at->second.file->handle()};
  }
  absl::StatusOr<EventId> ImportEvent(const EventHandle& handle) override {
    TALWEG_ASSIGN_OR_RETURN(auto file, OpenFile(kEventKind, handle.bytes));
    const EventId event{next_id_++};
    events_[event] = {std::move(file), true};
    return event;
  }
  void DestroyStream(StreamId stream) override { streams_.erase(stream); }
  void DestroyEvent(EventId event) override { events_.erase(event); }

  absl::Status Record(EventId event, StreamId stream) override {
    TALWEG_RETURN_IF_ERROR(CheckStream(stream));
    TALWEG_ASSIGN_OR_RETURN(EventState* const state, Find(event));
    events_.at(event).recorded_here = true;
    const uint64_t recorded = state->recorded.fetch_add(1) + 1;
    if (!options_.stalls) state->done.store(recorded);
    return absl::OkStatus();
  }
  absl::Status Wait(StreamId stream, EventId event) override {
    TALWEG_RETURN_IF_ERROR(CheckStream(stream));
    TALWEG_ASSIGN_OR_RETURN(const bool done, Query(event));
    // On a real GPU this wait would never end if the other process is dead.
    return done ? absl::OkStatus()
                : absl::InternalError("a stream was to wait for an event that is not done");
  }
  absl::StatusOr<bool> Query(EventId event) override {
    TALWEG_RETURN_IF_ERROR(Ready());
    TALWEG_ASSIGN_OR_RETURN(EventState* const state, Find(event));
    return state->IsDone();
  }
  int WaitDescriptor() const override { return wakeups_.get(); }
  absl::Status WakeWhenDone(EventId event) override {
    TALWEG_RETURN_IF_ERROR(Query(event).status());
    const Event& found = events_.at(event);
    if (found.is_shared && !found.recorded_here) return NotRecordedHere(event);
    watcher_.Watch(found.file);
    return absl::OkStatus();
  }
  void DrainWakeups() override {
    uint64_t count = 0;
    TALWEG_CHECK(read(wakeups_.get(), &count, sizeof count) == sizeof count || errno == EAGAIN);
  }

  absl::Status CopyToHost(StreamId stream, std::span<std::byte> target,
                          DeviceSpan source) override {
    TALWEG_RETURN_IF_ERROR(CheckCopy(target.size(), source.bytes));
    TALWEG_RETURN_IF_ERROR(CheckStream(stream));
    TALWEG_RETURN_IF_ERROR(pinned_.Check(target));
    TALWEG_RETURN_IF_ERROR(memory_.Check(source));
    std::memcpy(target.data(), At(source.address), target.size());
    return absl::OkStatus();
  }
  absl::Status CopyToDevice(StreamId stream, DeviceSpan target,
                            std::span<const std::byte> source) override {
    TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.size()));
    TALWEG_RETURN_IF_ERROR(CheckStream(stream));
    TALWEG_RETURN_IF_ERROR(pinned_.Check(source));
    TALWEG_RETURN_IF_ERROR(memory_.Check(target));
    std::memcpy(At(target.address), source.data(), source.size());
    return absl::OkStatus();
  }
  absl::Status CopyOnDevice(StreamId stream, DeviceSpan target, DeviceSpan source) override {
    TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.bytes));
    TALWEG_RETURN_IF_ERROR(CheckStream(stream));
    TALWEG_RETURN_IF_ERROR(memory_.Check(source));
    TALWEG_RETURN_IF_ERROR(memory_.Check(target));
    std::memmove(At(target.address), At(source.address), source.bytes);
    return absl::OkStatus();
  }
  absl::Status CopyToPeer(StreamId stream, Device& peer, DeviceSpan target,
                          DeviceSpan source) override {
    TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.bytes));
    TALWEG_RETURN_IF_ERROR(CheckStream(stream));
    auto* const other = dynamic_cast<SharedDevice*>(&peer);
    if (other == nullptr || other == this) return NoPeer();
    TALWEG_RETURN_IF_ERROR(memory_.Check(source));
    TALWEG_RETURN_IF_ERROR(other->memory_.Check(target));
    std::memcpy(At(target.address), At(source.address), source.bytes);
    return absl::OkStatus();
  }
  absl::Status ReduceTo(StreamId stream, const ReduceSpec& spec, std::span<const uint64_t> inputs,
                        std::span<const uint64_t> outputs, uint64_t element_count) override {
    TALWEG_RETURN_IF_ERROR(CheckStream(stream));
    TALWEG_ASSIGN_OR_RETURN(const kernels::ReducePlan plan,
                            kernels::PlanReduce(spec, inputs, outputs, element_count));
    for (const uint64_t input : inputs) TALWEG_RETURN_IF_ERROR(memory_.Check({input, plan.bytes}));
    for (const uint64_t output : outputs)
      TALWEG_RETURN_IF_ERROR(memory_.Check({output, plan.bytes}));
    kernels::RunOnHost(plan, 33);
    return absl::OkStatus();
  }

  const SharedMemory& memory() const { return memory_; }

 private:
  // Returns ABORTED once a file says that this process loses the GPU.
  absl::Status Ready() const {
    if (access(LossPath(options_, gpu_).c_str(), F_OK) != 0) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat(Describe(info_), " is lost"));
  }
  struct Event {
    std::shared_ptr<SharedFile> file;
    bool is_shared = false;
    bool recorded_here = false;
  };

  absl::StatusOr<std::shared_ptr<SharedFile>> NewFile(const char* kind, size_t bytes) const {
    auto file = SharedFile::Make(options_.directory, kind, bytes);
    if (file == nullptr)
      return status::ErrnoStatus(errno, "a fake GPU's file in " + options_.directory);
    return file;
  }
  absl::StatusOr<std::shared_ptr<SharedFile>> OpenFile(const char* kind,
                                                       const HandleBytes& handle) const {
    auto file = SharedFile::Open(options_.directory, kind, handle);
    if (file != nullptr) return file;
    return absl::InvalidArgumentError("not a handle of a living process's memory or event");
  }
  absl::Status CheckStream(StreamId stream) const {
    TALWEG_RETURN_IF_ERROR(Ready());
    if (streams_.contains(stream)) return absl::OkStatus();
    return absl::InvalidArgumentError("no such stream");
  }
  absl::StatusOr<EventState*> Find(EventId event) const {
    const auto at = events_.find(event);
    if (at == events_.end()) return absl::InvalidArgumentError("no such event");
    return &StateOf(*at->second.file);
  }

  const SharedMachineOptions options_;
  const GpuInfo info_;
  const size_t gpu_;
  const Descriptor wakeups_;
  uint64_t next_id_ = 1;
  DevicePins pinned_;
  SharedMemory memory_;
  std::set<StreamId> streams_;
  std::map<EventId, Event> events_;
  EventWatcher watcher_{wakeups_.get()};
};

// All its devices belong to this process, so everything is here.
class SharedCommunicator final : public Communicator {
 public:
  explicit SharedCommunicator(std::vector<SharedDevice*> devices) : devices_(std::move(devices)) {}

  State Poll() override { return State::kReady; }
  absl::Status error() const override { return absl::OkStatus(); }
  absl::Status ReduceScatter(DType dtype, Op op, uint64_t shard_elements,
                             std::span<const CollectivePart> parts) override {
    const uint64_t shard = shard_elements * DTypeSize(dtype);
    TALWEG_RETURN_IF_ERROR(Check(parts, shard * parts.size(), shard));
    TALWEG_ASSIGN_OR_RETURN(const auto sum, Sum(dtype, op, shard_elements * parts.size(), parts));
    for (size_t i = 0; i < parts.size(); ++i) {
      std::memcpy(At(parts[i].receive), sum.data() + i * shard, shard);
    }
    return absl::OkStatus();
  }
  absl::Status AllGather(DType dtype, uint64_t shard_elements,
                         std::span<const CollectivePart> parts) override {
    const uint64_t shard = shard_elements * DTypeSize(dtype);
    TALWEG_RETURN_IF_ERROR(Check(parts, shard, shard * parts.size()));
    std::vector<std::byte> all;
    for (const CollectivePart& part : parts) {
      all.insert(all.end(), At(part.send), At(part.send) + shard);
    }
    for (const CollectivePart& part : parts) std::memcpy(At(part.receive), all.data(), all.size());
    return absl::OkStatus();
  }
  absl::Status Reduce(DType dtype, Op op, uint64_t element_count, size_t root,
                      std::span<const CollectivePart> parts) override {
    const uint64_t bytes = element_count * DTypeSize(dtype);
    TALWEG_RETURN_IF_ERROR(CheckRoot(root, parts.size()));
    TALWEG_RETURN_IF_ERROR(Check(parts, bytes, bytes));
    TALWEG_ASSIGN_OR_RETURN(const auto sum, Sum(dtype, op, element_count, parts));
    std::memcpy(At(parts[root].receive), sum.data(), bytes);
    return absl::OkStatus();
  }
  absl::Status Broadcast(DType dtype, uint64_t element_count, size_t root,
                         std::span<const CollectivePart> parts) override {
    const uint64_t bytes = element_count * DTypeSize(dtype);
    TALWEG_RETURN_IF_ERROR(CheckRoot(root, parts.size()));
    TALWEG_RETURN_IF_ERROR(Check(parts, bytes, bytes));
    for (const CollectivePart& part : parts) {
      std::memmove(At(part.receive), At(parts[root].send), bytes);
    }
    return absl::OkStatus();
  }
  absl::Status AllReduce(DType dtype, Op op, uint64_t element_count,
                         std::span<const CollectivePart> parts) override {
    const uint64_t bytes = element_count * DTypeSize(dtype);
    TALWEG_RETURN_IF_ERROR(Check(parts, bytes, bytes));
    TALWEG_ASSIGN_OR_RETURN(const auto sum, Sum(dtype, op, element_count, parts));
    for (const CollectivePart& part : parts) std::memcpy(At(part.receive), sum.data(), bytes);
    return absl::OkStatus();
  }
  void Abort() override {}

 private:
  absl::Status Check(std::span<const CollectivePart> parts, uint64_t send, uint64_t receive) const {
    if (parts.size() != devices_.size()) return absl::InvalidArgumentError("a part a device");
    for (size_t i = 0; i < parts.size(); ++i) {
      TALWEG_RETURN_IF_ERROR(devices_[i]->memory().Check({parts[i].send, send}));
      TALWEG_RETURN_IF_ERROR(devices_[i]->memory().Check({parts[i].receive, receive}));
    }
    return absl::OkStatus();
  }
  static absl::StatusOr<std::vector<std::byte>> Sum(DType dtype, Op op, uint64_t element_count,
                                                    std::span<const CollectivePart> parts) {
    if (!Combines(dtype, op)) return absl::InvalidArgumentError("not combined between GPUs");
    std::vector<uint64_t> inputs;
    for (const CollectivePart& part : parts) inputs.push_back(part.send);
    std::vector<std::byte> sum(element_count * DTypeSize(dtype));
    TALWEG_ASSIGN_OR_RETURN(const kernels::ReducePlan plan,
                            kernels::PlanReduce({.dtype = dtype, .op = op}, inputs,
                                                AddressOf(sum.data()), element_count));
    kernels::RunOnHost(plan, 7);
    return sum;
  }

  const std::vector<SharedDevice*> devices_;
};

class SharedPlatform final : public Platform {
 public:
  explicit SharedPlatform(SharedMachineOptions options) : options_(std::move(options)) {
    for (const size_t gpu : options_.gpus) {
      infos_.push_back({.uuid = {SharedUuid(gpu)},
                        .name = absl::StrCat("Fake GPU ", gpu),
                        .memory_bytes = uint64_t{1} << 34});
    }
  }
  absl::StatusOr<std::vector<GpuInfo>> Gpus() override { return infos_; }
  absl::StatusOr<std::unique_ptr<Device>> Open(const GpuUuid& uuid) override {
    for (size_t i = 0; i < infos_.size(); ++i) {
      if (infos_[i].uuid != uuid) continue;
      const size_t gpu = options_.gpus[i];
      unlink(LossPath(options_, gpu).c_str());  // The process gets a new context.
      return std::make_unique<SharedDevice>(options_, infos_[i], gpu, pinned_);
    }
    return NoSuchGpu(uuid, infos_);
  }
  bool Linked(const GpuUuid&, const GpuUuid&) override { return false; }
  absl::StatusOr<std::unique_ptr<Communicator>> NewCommunicator(
      std::span<Device* const> devices) override {
    std::vector<SharedDevice*> mine;
    for (Device* const device : devices) {
      mine.push_back(dynamic_cast<SharedDevice*>(device));
      if (mine.back() == nullptr) return absl::InvalidArgumentError("not a device of this machine");
    }
    return std::make_unique<SharedCommunicator>(std::move(mine));
  }

 private:
  const SharedMachineOptions options_;
  std::vector<GpuInfo> infos_;
  const std::shared_ptr<SharedPins> pinned_ = std::make_shared<SharedPins>();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Platform>> NewSharedPlatform(const SharedMachineOptions& options) {
  struct stat status = {};
  if (stat(options.directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return absl::InvalidArgumentError("fake GPUs need a directory, which '" + options.directory +
                                      "' is not");
  }
  return std::make_unique<SharedPlatform>(options);
}

absl::StatusOr<SharedMachineOptions> ParseSharedMachine(const std::string& text) {
  const auto options = ReadSharedMachine(text);
  if (options) return *options;
  return absl::InvalidArgumentError("'" + text +
                                    "' is not DIRECTORY:COUNT[/GPU,...], with 1 to 64 GPUs");
}

}  // namespace talweg::gpu::fake
