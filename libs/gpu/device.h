// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_DEVICE_H_
#define TALWEG_LIBS_GPU_DEVICE_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/base/dtype.h"
#include "libs/base/ids.h"

// The GPU operations that an agent needs: streams of copies and sums, events between its own and
// other processes' streams, memory that other processes own, and collectives among GPUs.
// docs/gpu.md has the path of a tensor and who owns what.
//
// A Platform, its Devices and Communicators belong to one thread, which makes, uses and destroys
// them. It destroys communicators before devices, and devices before the platform. Calls for a
// stream (copies, Reduce, Record, Wait) only post work, and return at once. Only calls that say so
// wait for a GPU's work. Query asks whether work is done.
//
// The code of an error says what the caller may do:
//
//   RESOURCE_EXHAUSTED   no memory for this, on the GPU or pinned: smaller slices, then host memory
//   PERMISSION_DENIED    another process's memory cannot be had here (containers): host memory
//   UNIMPLEMENTED        this GPU, build or library cannot do it: another path, for good
//   NOT_FOUND            no such GPU, or handle, any more
//   INVALID_ARGUMENT     the arguments are wrong; nothing was posted
//   UNAVAILABLE          a communicator failed: Abort it and make another
//   ABORTED              the device is lost: destroy it; all work on it is undefined
//   INTERNAL             the driver said something unexpected; as ABORTED if it stays
namespace talweg::gpu {

// Names a GPU, or a MIG instance, the same in every process and container. Ordinals do not:
// CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES renumber them.
struct GpuUuid {
  std::array<uint8_t, 16> bytes = {};

  friend auto operator<=>(const GpuUuid&, const GpuUuid&) = default;
};

// "GPU-01234567-89ab-cdef-0123-456789abcdef", as nvidia-smi writes it.
std::string FormatUuid(const GpuUuid& uuid);
// Parses the format of FormatUuid, with "GPU-", "MIG-" or without. INVALID_ARGUMENT for anything
// else.
absl::StatusOr<GpuUuid> ParseUuid(std::string_view text);

struct GpuInfo {
  GpuUuid uuid;
  std::string name;        // "NVIDIA H100 PCIe"
  std::string pci_bus_id;  // "0000:65:00.0": where hwloc finds it.
  int compute_major = 0;
  int compute_minor = 0;
  uint64_t memory_bytes = 0;
};

// Returns a GPU's name for messages: "NVIDIA H100 PCIe (GPU-..., 0000:65:00.0)".
std::string Describe(const GpuInfo& gpu);

// Bytes of a GPU's memory, at this process's addresses. The host must not read through these.
struct DeviceSpan {
  uint64_t address = 0;
  uint64_t bytes = 0;

  // CHECKs that the part lies within.
  DeviceSpan Part(uint64_t offset, uint64_t part_bytes) const;
  friend bool operator==(const DeviceSpan&, const DeviceSpan&) = default;
};

// Numbers within one device; never reused in this process.
using StreamId = StrongId<struct GpuStreamIdTag, uint64_t>;
using EventId = StrongId<struct GpuEventIdTag, uint64_t>;

// One process gives these handles to another, so that it can open a piece of memory, or an event.
struct MemoryHandle {
  std::array<std::byte, 64> bytes = {};
  friend auto operator<=>(const MemoryHandle&, const MemoryHandle&) = default;
};
struct EventHandle {
  std::array<std::byte, 64> bytes = {};
  friend auto operator<=>(const EventHandle&, const EventHandle&) = default;
};

struct MemoryInfo {
  uint64_t free_bytes = 0;  // Other processes use it, too.
  uint64_t total_bytes = 0;
};

// How a transport names memory of a GPU to a NIC's driver.
struct NicMemory {
  uint64_t address = 0;
  uint64_t bytes = 0;
  int device = 0;      // The GPU driver's number for the GPU, in this process.
  Descriptor dma_buf;  // For these bytes; empty if there is none.
};

// Address and size of such memory are multiples of this, because kernels pin a GPU's pages.
inline constexpr uint64_t kNicPageBytes = 64 * 1024;

enum class StreamPriority : uint8_t { kNormal, kHigh };

enum class EventScope : uint8_t {
  kProcess,
  kShared,  // May be exported.
};

// The operation of Reduce on each element: docs/arithmetic.md, with weights of 1.
struct ReduceSpec {
  DType dtype = DType::kUnspecified;
  Op op = Op::kUnspecified;
  uint32_t divisor = 1;  // Divides the sum for kAverage. Else 1.
};

inline constexpr size_t kReduceInputsMax = 32;

// One GPU's context, with everything that was made on it. The destructor waits for posted work,
// unless the device is lost, closes imported memory and events, and frees the rest.
class Device {
 public:
  virtual ~Device() = default;

  virtual const GpuInfo& info() const = 0;

  // ----- Memory. These calls may take milliseconds and wait for the GPU: not for the steps. -----
  //
  // Calls that release something (Free, FreeHost, UnregisterHost, Unmap, the destructor) wait for
  // all work that was posted to this device, on any stream. So no such work may wait for something
  // that may never end: another process's event, or a collective that hangs.

  virtual absl::StatusOr<MemoryInfo> Memory() = 0;
  // Aligned to 256 bytes.
  virtual absl::StatusOr<DeviceSpan> Allocate(uint64_t bytes) = 0;
  // `span` is from Allocate. The caller must have seen the end of all work that uses it.
  virtual absl::Status Free(DeviceSpan span) = 0;
  // Returns pinned host memory, for copies.
  virtual absl::StatusOr<std::span<std::byte>> AllocateHost(uint64_t bytes) = 0;
  virtual absl::Status FreeHost(std::span<std::byte> bytes) = 0;
  // Pins memory that the caller has mapped (an arena), until UnregisterHost.
  virtual absl::Status RegisterHost(std::span<std::byte> bytes) = 0;
  virtual absl::Status UnregisterHost(std::span<std::byte> bytes) = 0;

  // Returns a handle of memory that was allocated here, for another process. `span` is from
  // Allocate.
  virtual absl::StatusOr<MemoryHandle> Export(DeviceSpan span) = 0;
  // Maps an allocation of another process, whole. It stays mapped until Unmap, even if its owner
  // dies. The owner must keep it until then. Map each handle once, then share the span
  // (ImportCache). INVALID_ARGUMENT: mapped already, or certainly no handle. PERMISSION_DENIED,
  // UNIMPLEMENTED: not possible. Drivers hardly tell these reasons apart from a wrong handle.
  virtual absl::StatusOr<DeviceSpan> Map(const MemoryHandle& handle) = 0;
  // The caller must have seen the end of all work that uses it.
  virtual absl::Status Unmap(DeviceSpan span) = 0;

  // ----- For a NIC that reads and writes this GPU by itself (GPUDirect). -----

  // Opens whole pages from Allocate, until they are freed. A caller that registers them with a
  // transport deregisters them first. UNIMPLEMENTED: this GPU cannot, or there is no way to know
  // when a NIC's writes can be read.
  virtual absl::StatusOr<NicMemory> OpenToNic(DeviceSpan span) = 0;
  // Work that is posted after this call sees all NIC writes that were reported to the host before
  // it. Waits for some microseconds.
  virtual absl::Status FlushNicWrites() = 0;
  // Copy a few KB to and from any host memory, and are done when they return. They wait for no
  // stream, so no other work may use these bytes.
  virtual absl::Status ReadNow(std::span<std::byte> target, DeviceSpan source) = 0;
  virtual absl::Status WriteNow(DeviceSpan target, std::span<const std::byte> source) = 0;

  // ----- Streams and events. -----

  // Work of one stream runs in order. Work of different streams runs in any order, or at once. No
  // stream waits for a default stream.
  virtual absl::StatusOr<StreamId> NewStream(StreamPriority priority) = 0;
  virtual absl::StatusOr<EventId> NewEvent(EventScope scope) = 0;
  virtual absl::StatusOr<EventHandle> ExportEvent(EventId event) = 0;
  // Opens an event of another process. Either process may record it, both may wait for it. The
  // process that made it keeps it until the other has destroyed its own.
  virtual absl::StatusOr<EventId> ImportEvent(const EventHandle& handle) = 0;
  // Neither call waits: posted work goes on.
  virtual void DestroyStream(StreamId stream) = 0;
  virtual void DestroyEvent(EventId event) = 0;

  // From now on the event stands for all work that was posted to the stream so far, and no longer
  // for an earlier Record. An earlier Wait is not affected.
  virtual absl::Status Record(EventId event, StreamId stream) = 0;
  // Work that is posted to the stream from now on starts when all that the event stands for at this
  // moment is done. An event that was never recorded stands for nothing. So the other process's
  // Record must have returned before this call, and a message must have told so.
  virtual absl::Status Wait(StreamId stream, EventId event) = 0;
  // Returns whether all work that the event stands for is done. ABORTED: the device is lost.
  virtual absl::StatusOr<bool> Query(EventId event) = 0;

  // For epoll. It is readable after an event given to WakeWhenDone is done, until DrainWakeups.
  virtual int WaitDescriptor() const = 0;
  // May need a stream that waits for the event, so it takes only events that this process records.
  // INVALID_ARGUMENT: a shared event that this process has not recorded. Query such events instead.
  virtual absl::Status WakeWhenDone(EventId event) = 0;
  virtual void DrainWakeups() = 0;

  // ----- Work. Host memory must be pinned here, or the call returns INVALID_ARGUMENT. -----

  virtual absl::Status CopyToHost(StreamId stream, std::span<std::byte> target,
                                  DeviceSpan source) = 0;
  virtual absl::Status CopyToDevice(StreamId stream, DeviceSpan target,
                                    std::span<const std::byte> source) = 0;
  // Copies within this GPU's memory, mapped memory included. The two spans must not overlap.
  virtual absl::Status CopyOnDevice(StreamId stream, DeviceSpan target, DeviceSpan source) = 0;
  // Copies to memory of another device of this platform, on a stream of this device: over a link or
  // the bus if GPUs can reach each other, else through the host. The first copy to a peer may wait
  // for both GPUs.
  virtual absl::Status CopyToPeer(StreamId stream, Device& peer, DeviceSpan target,
                                  DeviceSpan source) = 0;

  // Combines element_count elements of each of `inputs`, in the inputs' order and with the bits of
  // the CPU's kernels, and writes the result to each of `outputs`. Addresses are multiples of the
  // element's size. An output may be one of the inputs. Otherwise it overlaps no input and no other
  // output. At most kReduceInputsMax of either. UNIMPLEMENTED: this build has no kernels (bazel
  // build --config=cuda), or none for this GPU.
  virtual absl::Status ReduceTo(StreamId stream, const ReduceSpec& spec,
                                std::span<const uint64_t> inputs, std::span<const uint64_t> outputs,
                                uint64_t element_count) = 0;
  absl::Status Reduce(StreamId stream, const ReduceSpec& spec, std::span<const uint64_t> inputs,
                      uint64_t output, uint64_t element_count) {
    return ReduceTo(stream, spec, inputs, {&output, 1}, element_count);
  }
};

// One device's part in a collective.
struct CollectivePart {
  StreamId stream;
  uint64_t send = 0;
  uint64_t receive = 0;
};

// Sums among GPUs of this process. `parts` and shards are in the order of the devices in
// NewCommunicator: shard i belongs to the i-th device.
class Communicator {
 public:
  enum class State : uint8_t {
    kBusy,    // Starts, or launches a collective. Its streams must take no other work yet.
    kReady,   // All posted collectives are in the streams.
    kFailed,  // error() says why; Abort.
  };

  // Aborts work that is not done.
  virtual ~Communicator() = default;

  // Call it repeatedly, even while collectives run, because only it notices errors. It does not
  // notice a collective that hangs, so the caller needs a deadline.
  virtual State Poll() = 0;
  // Returns UNAVAILABLE with the GPU and the library's text, once Poll has returned kFailed.
  virtual absl::Status error() const = 0;

  // Returns whether (dtype, op) can be combined: sums, products, and minima and maxima of integers
  // and bools. Minima and maxima of floats would lose NaNs. NCCL has no 16-bit integers, and no
  // bitwise operations.
  static bool Combines(DType dtype, Op op);

  // Call each only in kReady; otherwise it returns FAILED_PRECONDITION. Then Poll until kReady
  // before posting anything else to these streams, even a Record. The library chooses the order of
  // the additions. It gives the same bits in every run on one machine and in every part, but not
  // those of Device::Reduce. f16 and bf16 are rounded at each addition. Divisions are for
  // Device::Reduce.
  //
  // send: shard_elements of each shard. receive: shard_elements.
  virtual absl::Status ReduceScatter(DType dtype, Op op, uint64_t shard_elements,
                                     std::span<const CollectivePart> parts) = 0;
  // send: shard_elements. receive: those of each shard.
  virtual absl::Status AllGather(DType dtype, uint64_t shard_elements,
                                 std::span<const CollectivePart> parts) = 0;
  // send: element_count. receive: as many; the device at `root` gets the result. The other receive
  // buffers have undefined bytes.
  virtual absl::Status Reduce(DType dtype, Op op, uint64_t element_count, size_t root,
                              std::span<const CollectivePart> parts) = 0;
  // send: element_count. Every receive gets those of the device at `root`.
  virtual absl::Status Broadcast(DType dtype, uint64_t element_count, size_t root,
                                 std::span<const CollectivePart> parts) = 0;
  // send may be receive.
  virtual absl::Status AllReduce(DType dtype, Op op, uint64_t element_count,
                                 std::span<const CollectivePart> parts) = 0;

  // Ends everything that was posted. Its streams go on; its receive buffers have undefined bytes.
  // May take some milliseconds. Only the destructor may follow.
  virtual void Abort() = 0;
};

// The GPUs of this machine. A Platform holds no context: a context costs hundreds of MB of a GPU's
// memory, and comes with Open.
class Platform {
 public:
  virtual ~Platform() = default;

  // Returns the GPUs that this process may use, in the driver's order. UNIMPLEMENTED or NOT_FOUND,
  // with the reason and the remedy, if there are none.
  virtual absl::StatusOr<std::vector<GpuInfo>> Gpus() = 0;

  // NOT_FOUND names the GPUs that exist, and the variables that hide others. FAILED_PRECONDITION: a
  // fault has ended this process's context there, and the driver gives this process no other. Other
  // processes may go on.
  virtual absl::StatusOr<std::unique_ptr<Device>> Open(const GpuUuid& uuid) = 0;

  // Returns whether two GPUs have a link of their own (NVLink), beside PCIe. False if unknown.
  virtual bool Linked(const GpuUuid& one, const GpuUuid& other) = 0;

  // Makes a communicator among different devices of this platform. Poll it until kReady.
  // UNIMPLEMENTED: there is no library; the text says where it was looked for.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> NewCommunicator(
      std::span<Device* const> devices) = 0;
};

// Returns the error of a copy to a device that is no peer: this device itself, or another
// platform's.
absl::Status NoPeer();
// Returns OK if `root` is one of `part_count` parts.
absl::Status CheckRoot(size_t root, size_t part_count);
// Returns the error of Open, with the wanted GPU and those that exist.
absl::Status NoSuchGpu(const GpuUuid& uuid, std::span<const GpuInfo> gpus);
// Returns the error of WakeWhenDone.
absl::Status NotRecordedHere(EventId event);

}  // namespace talweg::gpu

#endif  // TALWEG_LIBS_GPU_DEVICE_H_
