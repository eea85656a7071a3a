// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 over the fake GPUs that processes share (TALWEG_FAKE_GPUS: shared_files.h). It
// serves ranks that call the driver themselves, beside an agent with --test_fake_gpus.
//
// Device memory is host memory, which a test may look into. A stream does its work at once, unless
// the test holds it (fakeHold). Then its work waits, and so do the streams that wait for its
// events. A call that has undefined behaviour with a real driver fails here.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "libs/gpu/cuda/driver_api.h"
#include "libs/gpu/fake/shared_files.h"

namespace talweg::gpu::cuda::stub {
namespace {

using fake::EventState;
using fake::SharedFile;

constexpr CuResult kCuNotInitialized = 3;
constexpr CuResult kCuCaptureImplicit = 906;
constexpr int kPointerBufferId = 7;

struct Memory {
  uint64_t bytes = 0;
  uint64_t buffer_id = 0;
  std::shared_ptr<SharedFile> file;  // Null if the memory cannot be shared, or is the host's.
  std::unique_ptr<std::byte[]> own;  // The bytes, if there is no file.
};
using Memories = std::map<uint64_t, Memory>;  // By address.

// The entry that holds all of these bytes, or null.
const Memories::value_type* Holder(const Memories& memories, uint64_t address, uint64_t bytes) {
  auto at = memories.upper_bound(address);
  if (at == memories.begin()) return nullptr;
  --at;
  const uint64_t offset = address - at->first;
  const bool holds = offset <= at->second.bytes && bytes <= at->second.bytes - offset;
  return holds ? &*at : nullptr;
}

struct Event {
  std::shared_ptr<SharedFile> file;  // Another process's, or null.
  EventState own = {};
  EventState& state() { return file == nullptr ? own : fake::StateOf(*file); }
};

struct Work {
  std::function<bool()> ready;  // Empty: it is always ready.
  std::function<void()> run;
};

struct Stream {
  bool held = false;
  bool capturing = false;
  uint64_t waits = 0;
  std::deque<Work> works;
};

// The process's driver. `mutex` guards all of it, and every function takes it.
struct Process {
  std::mutex mutex;
  std::condition_variable changed;
  bool initialised = false;
  bool refuses_events = false;
  fake::SharedMachineOptions machine;
  uint64_t next_buffer_id = 1;
  Memories memory;
  Memories pinned;
  std::map<uint64_t, uint64_t> freed;  // Addresses by their bytes. They are given out again first.
  std::map<CuStream, Stream> streams = {{nullptr, {}}};
  std::map<CuEvent, std::shared_ptr<Event>> events;
  uintptr_t next_name = 0x1000;

  static Process& Get() {
    static auto* const process = new Process;
    return *process;
  }

  // Does all work that can be done now.
  void Run() {
    for (bool again = true; again;) {
      again = false;
      for (auto& [name, stream] : streams) {
        while (!stream.held && !stream.works.empty()) {
          Work& work = stream.works.front();
          if (work.ready && !work.ready()) break;
          if (work.run) work.run();
          stream.works.pop_front();
          again = true;
        }
      }
    }
    changed.notify_all();
  }
  CuResult Post(CuStream stream, Work work) {
    const auto at = streams.find(stream);
    if (at == streams.end()) return kCuInvalidHandle;
    if (at->second.capturing) return kCuCaptureImplicit;
    at->second.works.push_back(std::move(work));
    Run();
    return kCuSuccess;
  }
  bool IsMemory(uint64_t address, uint64_t bytes) const {
    return Holder(memory, address, bytes) != nullptr;
  }
  bool IsPinned(const void* address, uint64_t bytes) const {
    return Holder(pinned, reinterpret_cast<uint64_t>(address), bytes) != nullptr;
  }
};

thread_local std::vector<int> contexts;  // By GPU.

bool InContext() { return !contexts.empty(); }
CuContext ContextOf(int gpu) { return reinterpret_cast<CuContext>(uintptr_t{0x100} + gpu); }
void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace
}  // namespace talweg::gpu::cuda::stub

using namespace talweg::gpu::cuda;        // NOLINT(google-build-using-namespace)
using namespace talweg::gpu::cuda::stub;  // NOLINT(google-build-using-namespace)
namespace fake = talweg::gpu::fake;

#define LOCKED()                     \
  Process& process = Process::Get(); \
  std::unique_lock lock(process.mutex)

#pragma GCC visibility push(default)
extern "C" {

CuResult cuInit(unsigned) {
  LOCKED();
  const char* const text = std::getenv("TALWEG_FAKE_GPUS");
  const auto machine = fake::ReadSharedMachine(text == nullptr ? "" : text);
  if (!machine) return kCuNoDevice;
  process.machine = *machine;
  process.initialised = true;
  return kCuSuccess;
}
CuResult cuGetErrorName(CuResult result, const char** name) {
  *name = result == kCuInvalidValue ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_OF_STUB";
  return kCuSuccess;
}
CuResult cuGetErrorString(CuResult, const char** text) {
  *text = "the stub's error";
  return kCuSuccess;
}

CuResult cuDeviceGet(CuDevice* device, int ordinal) {
  LOCKED();
  if (!process.initialised) return kCuNotInitialized;
  const std::vector<size_t>& gpus = process.machine.gpus;
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= gpus.size()) return kCuInvalidDevice;
  *device = static_cast<int>(gpus[static_cast<size_t>(ordinal)]) + 40;  // A device is no ordinal.
  return kCuSuccess;
}
CuResult cuDeviceGetUuid_v2(CuUuid* uuid, CuDevice device) {
  const auto shared = fake::SharedUuid(static_cast<size_t>(device - 40));
  std::memcpy(uuid->bytes, shared.data(), sizeof uuid->bytes);
  return kCuSuccess;
}
CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  *context = ContextOf(device - 40);
  return kCuSuccess;
}
CuResult cuCtxPushCurrent_v2(CuContext context) {
  contexts.push_back(static_cast<int>(reinterpret_cast<uintptr_t>(context) - 0x100));
  return kCuSuccess;
}
CuResult cuCtxPopCurrent_v2(CuContext* context) {
  if (!InContext()) return kCuInvalidContext;
  *context = ContextOf(contexts.back());
  contexts.pop_back();
  return kCuSuccess;
}

CuResult cuMemAlloc_v2(CuDevicePointer* address, size_t bytes) {
  LOCKED();
  if (!InContext()) return kCuInvalidContext;
  void* near = nullptr;
  if (const auto at = process.freed.find(bytes); at != process.freed.end()) {
    near = At(at->second - fake::kHeaderBytes);
    process.freed.erase(at);
  }
  auto file = SharedFile::Make(process.machine.directory, fake::kMemoryKind,
                               fake::kHeaderBytes + bytes, near);
  if (file == nullptr) return kCuOutOfMemory;
  const fake::MemoryHeader header = {static_cast<uint64_t>(contexts.back()), bytes};
  std::memcpy(file->data(), &header, sizeof header);
  *address = reinterpret_cast<uint64_t>(file->data()) + fake::kHeaderBytes;
  process.memory[*address] = {bytes, process.next_buffer_id++, std::move(file), nullptr};
  return kCuSuccess;
}
CuResult cuMemAllocManaged(CuDevicePointer* address, size_t bytes, unsigned) {
  LOCKED();
  if (!InContext()) return kCuInvalidContext;
  auto own = std::make_unique<std::byte[]>(bytes);
  *address = reinterpret_cast<uint64_t>(own.get());
  process.memory[*address] = {bytes, process.next_buffer_id++, nullptr, std::move(own)};
  return kCuSuccess;
}
CuResult cuMemFree_v2(CuDevicePointer address) {
  LOCKED();
  const auto at = process.memory.find(address);
  if (!InContext() || at == process.memory.end()) return kCuInvalidValue;
  process.freed[at->second.bytes] = address;
  process.memory.erase(at);
  return kCuSuccess;
}
CuResult cuMemGetAddressRange_v2(CuDevicePointer* base, size_t* bytes, CuDevicePointer address) {
  LOCKED();
  const auto* const holder = Holder(process.memory, address, 1);
  if (!InContext() || holder == nullptr) return kCuInvalidValue;
  *base = holder->first;
  *bytes = holder->second.bytes;
  return kCuSuccess;
}
CuResult cuPointerGetAttribute(void* value, int attribute, CuDevicePointer address) {
  LOCKED();
  const auto* const holder = Holder(process.memory, address, 1);
  if (attribute != kPointerBufferId || holder == nullptr) return kCuInvalidValue;
  std::memcpy(value, &holder->second.buffer_id, sizeof(uint64_t));
  return kCuSuccess;
}
CuResult cuMemHostAlloc(void** host, size_t bytes, unsigned flags) {
  LOCKED();
  if (!InContext() || flags != kCuHostPortable) return kCuInvalidValue;
  auto memory = std::make_unique<std::byte[]>(bytes);
  *host = memory.get();
  process.pinned[reinterpret_cast<uint64_t>(*host)] = {bytes, 0, nullptr, std::move(memory)};
  return kCuSuccess;
}
CuResult cuMemFreeHost(void* host) {
  LOCKED();
  return process.pinned.erase(reinterpret_cast<uint64_t>(host)) == 0 ? kCuInvalidValue : kCuSuccess;
}

CuResult cuIpcGetMemHandle(CuIpcHandle* handle, CuDevicePointer address) {
  LOCKED();
  const auto at = process.memory.find(address);
  if (!InContext() || at == process.memory.end() || at->second.file == nullptr) {
    return kCuInvalidValue;
  }
  std::memcpy(handle->reserved, at->second.file->handle().data(), sizeof handle->reserved);
  return kCuSuccess;
}
CuResult cuIpcOpenEventHandle(CuEvent* event, CuIpcHandle handle) {
  LOCKED();
  if (!InContext()) return kCuInvalidContext;
  if (process.refuses_events) return kCuNotSupported;
  fake::HandleBytes bytes;
  std::memcpy(bytes.data(), handle.reserved, bytes.size());
  auto file = SharedFile::Open(process.machine.directory, fake::kEventKind, bytes);
  if (file == nullptr) return kCuInvalidHandle;
  *event = reinterpret_cast<CuEvent>(process.next_name++);
  process.events[*event] = std::make_shared<Event>();
  process.events[*event]->file = std::move(file);
  return kCuSuccess;
}

CuResult cuStreamCreateWithPriority(CuStream* stream, unsigned flags, int) {
  LOCKED();
  if (!InContext() || flags != kCuStreamNonBlocking) return kCuInvalidValue;
  *stream = reinterpret_cast<CuStream>(process.next_name++);
  process.streams[*stream];
  return kCuSuccess;
}
CuResult cuStreamDestroy_v2(CuStream stream) {
  LOCKED();
  return process.streams.erase(stream) == 0 ? kCuInvalidHandle : kCuSuccess;
}
CuResult cuStreamIsCapturing(CuStream stream, int* status) {
  LOCKED();
  const auto at = process.streams.find(stream);
  if (!InContext() || at == process.streams.end()) return kCuInvalidHandle;
  *status = at->second.capturing ? 1 : 0;
  return kCuSuccess;
}
CuResult cuStreamWaitEvent(CuStream stream, CuEvent event, unsigned flags) {
  LOCKED();
  const auto at = process.events.find(event);
  if (!InContext() || flags != 0 || at == process.events.end()) return kCuInvalidHandle;
  const std::shared_ptr<Event> waited = at->second;
  // On a real GPU this wait would never end if the other process is dead.
  if (waited->file != nullptr && !waited->state().IsDone()) return kCuUnknown;
  const uint64_t recorded = waited->state().recorded.load();
  const CuResult posted = process.Post(
      stream, {[waited, recorded] { return waited->state().done.load() >= recorded; }, {}});
  if (posted == kCuSuccess) ++process.streams[stream].waits;
  return posted;
}
CuResult cuEventCreate(CuEvent* event, unsigned) {
  LOCKED();
  if (!InContext()) return kCuInvalidContext;
  *event = reinterpret_cast<CuEvent>(process.next_name++);
  process.events[*event] = std::make_shared<Event>();
  return kCuSuccess;
}
CuResult cuEventDestroy_v2(CuEvent event) {
  LOCKED();
  return process.events.erase(event) == 0 ? kCuInvalidHandle : kCuSuccess;
}
CuResult cuEventRecord(CuEvent event, CuStream stream) {
  LOCKED();
  const auto at = process.events.find(event);
  if (!InContext() || at == process.events.end() || !process.streams.contains(stream)) {
    return kCuInvalidHandle;
  }
  const std::shared_ptr<Event> made = at->second;
  const uint64_t recorded = made->state().recorded.fetch_add(1) + 1;
  // The event may have been recorded again since, on a stream that was done earlier.
  const auto finish = [made, recorded] {
    std::atomic<uint64_t>& done = made->state().done;
    done.store(std::max(done.load(), recorded));
  };
  return process.Post(stream, {{}, finish});
}
CuResult cuEventQuery(CuEvent event) {
  LOCKED();
  const auto at = process.events.find(event);
  if (!InContext() || at == process.events.end()) return kCuInvalidHandle;
  return at->second->state().IsDone() ? kCuSuccess : kCuNotReady;
}
CuResult cuEventSynchronize(CuEvent event) {
  LOCKED();
  const auto at = process.events.find(event);
  if (!InContext() || at == process.events.end()) return kCuInvalidHandle;
  const std::shared_ptr<Event> awaited = at->second;
  process.changed.wait(lock, [&] { return awaited->state().IsDone(); });
  return kCuSuccess;
}

CuResult cuMemcpyDtoHAsync_v2(void* target, CuDevicePointer source, size_t bytes, CuStream stream) {
  LOCKED();
  if (!InContext() || !process.IsMemory(source, bytes)) return kCuIllegalAddress;
  if (!process.IsPinned(target, bytes)) return kCuInvalidValue;
  return process.Post(stream, {{}, [=] { std::memcpy(target, At(source), bytes); }});
}
CuResult cuMemcpyHtoDAsync_v2(CuDevicePointer target, const void* source, size_t bytes,
                              CuStream stream) {
  LOCKED();
  if (!InContext() || !process.IsMemory(target, bytes)) return kCuIllegalAddress;
  if (!process.IsPinned(source, bytes)) return kCuInvalidValue;
  return process.Post(stream, {{}, [=] { std::memcpy(At(target), source, bytes); }});
}
CuResult cuMemsetD8Async(CuDevicePointer target, unsigned char value, size_t bytes,
                         CuStream stream) {
  LOCKED();
  if (!InContext() || !process.IsMemory(target, bytes)) return kCuIllegalAddress;
  return process.Post(stream, {{}, [=] { std::memset(At(target), value, bytes); }});
}

// ----- Functions for tests. -----

// Holds the stream, which then does nothing, or lets it go on.
void fakeHold(CuStream stream, int held) {
  LOCKED();
  process.streams[stream].held = held != 0;
  process.Run();
}
void fakeCapture(CuStream stream, int capturing) {
  LOCKED();
  process.streams[stream].capturing = capturing != 0;
}
// Refuses to open events of other processes, or allows it again.
void fakeRefuseEvents(int refuses) {
  LOCKED();
  process.refuses_events = refuses != 0;
}
// Returns how many events the stream has waited for.
uint64_t fakeWaits(CuStream stream) {
  LOCKED();
  return process.streams[stream].waits;
}

}  // extern "C"
#pragma GCC visibility pop
