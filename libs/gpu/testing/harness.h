// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_TESTING_HARNESS_H_
#define TALWEG_LIBS_GPU_TESTING_HARNESS_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libs/gpu/device.h"

// Shared by the tests of GPUs. The conformance suite (conformance_*.cc) is linked into the test of
// each implementation, which defines NewHarness.
namespace talweg::gpu {

// Another process, with one piece of memory on the same GPU and two events.
class Peer {
 public:
  struct Shared {
    MemoryHandle memory;
    uint64_t bytes = 0;
    EventHandle written;  // The peer records it after each Write.
    EventHandle taken;    // This process records it.
  };

  virtual ~Peer() = default;
  // Allocates memory, writes Pattern(seed), and returns when that is done.
  virtual absl::StatusOr<Shared> Share(uint64_t bytes, uint64_t seed) = 0;
  // Posts the writing of Pattern(seed), and records `written`. If `wait_for_taken`, it waits for
  // the latest record of `taken` first.
  virtual absl::Status Write(uint64_t seed, bool wait_for_taken) = 0;
  // Returns the memory's bytes, after all of the peer's work is done.
  virtual absl::StatusOr<std::vector<std::byte>> Read() = 0;
  virtual absl::Status Free() = 0;
  // Dies at once, as by a signal.
  virtual void Kill() = 0;
};

// An implementation under test.
class Harness {
 public:
  virtual ~Harness() = default;
  virtual Platform& platform() = 0;
  // Lets time pass until `done` returns true. Returns false if that takes a minute.
  virtual bool RunUntil(const std::function<bool()>& done) = 0;
  // Returns null if the implementation cannot have peers.
  virtual std::unique_ptr<Peer> NewPeer(const GpuUuid& uuid) = 0;
  // Returns a size whose allocation fails.
  virtual uint64_t TooManyBytes(Device& device) = 0;
  // Returns whether Device::Reduce works here.
  virtual bool HasKernels() { return true; }
  // Called at the end of each case.
  virtual void CheckClean() {}
};

// Returns null if this machine cannot run the tests. It then prints "SKIPPED: reason".
std::unique_ptr<Harness> NewHarness();

// One case: a harness and the first GPU's device. Usage: `Case c; if (c.skipped()) return;`
struct Case {
  Case();
  ~Case();
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  bool skipped() const { return harness == nullptr; }
  // Runs until all work on the stream is done.
  void Finish(StreamId stream);
  std::span<std::byte> Host(uint64_t bytes);
  DeviceSpan Memory(uint64_t bytes);
  StreamId Stream();
  EventId Event(EventScope scope = EventScope::kProcess);

  std::unique_ptr<Harness> harness;
  std::unique_ptr<Device> device;
};

void FillPattern(std::span<std::byte> bytes, uint64_t seed);
std::vector<std::byte> Pattern(uint64_t seed, size_t size);
bool IsPattern(std::span<const std::byte> bytes, uint64_t seed);

// Returns a peer that works on a platform of this process. Child processes use it, too.
std::unique_ptr<Peer> NewPlatformPeer(std::unique_ptr<Platform> platform, const GpuUuid& uuid,
                                      std::function<bool(const std::function<bool()>&)> run_until);

}  // namespace talweg::gpu

#endif  // TALWEG_LIBS_GPU_TESTING_HARNESS_H_
