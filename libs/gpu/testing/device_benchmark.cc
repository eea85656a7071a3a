// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/device.h"

#include <absl/status/statusor.h>
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/base/dtype.h"
#include "libs/gpu/cuda/cuda_platform.h"
#include "libs/gpu/fake/shared_machine.h"
#include "libs/status/status.h"

// Measures the limits of the first GPU, and what is reached when it is used as the agent uses it:
// streams of high priority, pinned memory, and events that are polled. Time runs from the first
// post until the last event is seen done. If there is a second GPU, this also measures the way
// between the two.
//
//   BM_Down/BYTES, BM_Up/BYTES  one copy to the host, one from there: the bus
//   BM_AtOnce/BYTES             one copy down and one up, at once: the bus both ways
//   BM_BothWays/BYTES           64 slices of BYTES down on one stream, 64 up on another
//   BM_Copy/BYTES               within the GPU; two bytes are touched for each that is copied
//   BM_Reduce/DTYPE/BYTES       the sum of two inputs of BYTES; three are touched for each of it
//   BM_Event                    an event alone: what is in every other figure as well
//   BM_Peer/BYTES               one copy from the first GPU to the second
//   BM_PeerBothWays/BYTES       that, and one from the second to the first beside it
//
// Figures are bytes a second, moved or touched. --fake takes a fake GPU and small sizes, to show
// that the benchmark runs.
namespace talweg::gpu {
namespace {

constexpr uint64_t kSlices = 64;

struct Sizes {
  uint64_t slice = 4 * kMiB;
  uint64_t large = 256'000'000;
};

// One GPU's device, and what a benchmark allocates on it.
class Bench {
 public:
  explicit Bench(Device& device) : device_(device) {}

  StreamId Stream() { return Take(device_.NewStream(StreamPriority::kHigh)); }
  DeviceSpan Memory(uint64_t bytes) {
    spans_.push_back(Take(device_.Allocate(bytes)));
    return spans_.back();
  }
  std::span<std::byte> Host(uint64_t bytes) {
    hosts_.push_back(Take(device_.AllocateHost(bytes)));
    return hosts_.back();
  }
  const absl::Status& failure() const { return failure_; }
  ~Bench() {
    for (const DeviceSpan& span : spans_) device_.Free(span).IgnoreError();
    for (const std::span<std::byte> host : hosts_) device_.FreeHost(host).IgnoreError();
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // Runs `post` again and again, each time until all work on the streams is done.
  void Run(benchmark::State& state, std::span<const StreamId> streams, uint64_t bytes,
           const std::function<absl::Status()>& post) {
    std::vector<On> all;
    for (const StreamId stream : streams) all.push_back({device_, stream});
    RunOn(state, all, bytes, post);
  }
  // Does the same on streams of several devices.
  struct On {
    Device& device;
    StreamId stream;
    EventId done = {};
  };
  void RunOn(benchmark::State& state, std::vector<On> all, uint64_t bytes,
             const std::function<absl::Status()>& post) {
    for (On& on : all) on.done = Take(on.device.NewEvent(EventScope::kProcess));
    for (auto _ : state) {
      if (!failure_.ok()) break;
      const auto begin = std::chrono::steady_clock::now();
      Check(post());
      for (const On& on : all) Check(on.device.Record(on.done, on.stream));
      for (const On& on : all) {
        while (failure_.ok() && !Take(on.device.Query(on.done))) {
        }
      }
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      state.SetIterationTime(elapsed.count());
    }
    if (!failure_.ok()) state.SkipWithError(status::StatusText(failure_).c_str());
    state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
    for (const On& on : all) {
      on.device.DestroyEvent(on.done);
      on.device.DestroyStream(on.stream);
    }
  }

 private:
  void Check(const absl::Status& status) {
    if (failure_.ok()) failure_ = status;
  }
  template <typename T>
  T Take(absl::StatusOr<T> value) {
    Check(value.status());
    return value.ok() ? *std::move(value) : T();
  }

  Device& device_;
  absl::Status failure_;
  std::vector<DeviceSpan> spans_;
  std::vector<std::span<std::byte>> hosts_;
};

enum class Way : uint8_t { kDown, kUp, kBoth };

void BM_Transfer(benchmark::State& state, Device& device, Way way, uint64_t bytes, uint64_t count) {
  Bench bench(device);
  std::vector<StreamId> streams = {bench.Stream()};
  if (way == Way::kBoth) streams.push_back(bench.Stream());
  const DeviceSpan from = bench.Memory(count * bytes);
  const std::span<std::byte> to = bench.Host(count * bytes);
  const DeviceSpan up_to = way == Way::kBoth ? bench.Memory(count * bytes) : from;
  const std::span<std::byte> up_from = way == Way::kBoth ? bench.Host(count * bytes) : to;
  const uint64_t moved = count * bytes * (way == Way::kBoth ? 2 : 1);
  bench.Run(state, streams, moved, [&]() -> absl::Status {
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = i * bytes;
      if (way != Way::kUp) {
        TALWEG_RETURN_IF_ERROR(
            device.CopyToHost(streams.front(), to.subspan(at, bytes), from.Part(at, bytes)));
      }
      if (way != Way::kDown) {
        TALWEG_RETURN_IF_ERROR(
            device.CopyToDevice(streams.back(), up_to.Part(at, bytes), up_from.subspan(at, bytes)));
      }
    }
    return absl::OkStatus();
  });
}

void BM_Copy(benchmark::State& state, Device& device, uint64_t bytes) {
  Bench bench(device);
  const StreamId stream = bench.Stream();
  const DeviceSpan from = bench.Memory(bytes);
  const DeviceSpan to = bench.Memory(bytes);
  bench.Run(state, {{stream}}, 2 * bytes, [&] { return device.CopyOnDevice(stream, to, from); });
}

void BM_Reduce(benchmark::State& state, Device& device, DType dtype, uint64_t bytes) {
  Bench bench(device);
  const StreamId stream = bench.Stream();
  const std::vector<uint64_t> inputs = {bench.Memory(bytes).address, bench.Memory(bytes).address};
  const uint64_t output = bench.Memory(bytes).address;
  bench.Run(state, {{stream}}, 3 * bytes, [&] {
    return device.Reduce(stream, {.dtype = dtype, .op = Op::kSum}, inputs, output,
                         bytes / DTypeSize(dtype));
  });
}

void BM_Event(benchmark::State& state, Device& device) {
  Bench bench(device);
  const StreamId stream = bench.Stream();
  bench.Run(state, {{stream}}, 0, [] { return absl::OkStatus(); });
}

void BM_Peer(benchmark::State& state, Device& device, Device& peer, bool both_ways,
             uint64_t bytes) {
  Bench here(device);
  Bench there(peer);
  std::vector<Bench::On> streams = {{device, here.Stream()}};
  if (both_ways) streams.push_back({peer, there.Stream()});
  const DeviceSpan from = here.Memory(bytes);
  const DeviceSpan to = there.Memory(bytes);
  // The way back has bytes of its own: neither copy reads what the other writes.
  const DeviceSpan back_from = both_ways ? there.Memory(bytes) : to;
  const DeviceSpan back_to = both_ways ? here.Memory(bytes) : from;
  here.RunOn(state, streams, (both_ways ? 2 : 1) * bytes, [&]() -> absl::Status {
    TALWEG_RETURN_IF_ERROR(there.failure());
    TALWEG_RETURN_IF_ERROR(device.CopyToPeer(streams.front().stream, peer, to, from));
    if (!both_ways) return absl::OkStatus();
    return peer.CopyToPeer(streams.back().stream, device, back_to, back_from);
  });
}

// `peer` is null if there is only one GPU.
void Register(Device& device, Device* peer, const Sizes& sizes) {
  const auto add = [](const std::string& name, const std::function<void(benchmark::State&)>& run) {
    benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Unit(benchmark::kMicrosecond);
  };
  const auto named = [](const char* name, uint64_t bytes) {
    return std::string(name) + "/" + std::to_string(bytes);
  };
  using State = benchmark::State;
  for (const auto& [name, way] : {std::pair("BM_Down", Way::kDown), std::pair("BM_Up", Way::kUp),
                                  std::pair("BM_AtOnce", Way::kBoth)}) {
    add(named(name, sizes.large), [&device, way = way, bytes = sizes.large](State& state) {
      BM_Transfer(state, device, way, bytes, 1);
    });
  }
  add(named("BM_BothWays", sizes.slice), [&device, bytes = sizes.slice](State& state) {
    BM_Transfer(state, device, Way::kBoth, bytes, kSlices);
  });
  add(named("BM_Copy", sizes.large),
      [&device, bytes = sizes.large](State& state) { BM_Copy(state, device, bytes); });
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    add(named(("BM_Reduce/" + std::string(DTypeName(dtype))).c_str(), sizes.large),
        [&device, dtype, bytes = sizes.large](State& state) {
          BM_Reduce(state, device, dtype, bytes);
        });
  }
  add("BM_Event", [&device](State& state) { BM_Event(state, device); });
  if (peer == nullptr) return;
  for (const bool both_ways : {false, true}) {
    add(named(both_ways ? "BM_PeerBothWays" : "BM_Peer", sizes.large),
        [&device, peer, both_ways, bytes = sizes.large](State& state) {
          BM_Peer(state, device, *peer, both_ways, bytes);
        });
  }
}

// A directory for a fake machine. It is removed with the process.
class Scratch {
 public:
  Scratch() {
    const char* const root = std::getenv("TEST_TMPDIR");
    path_ = std::string(root != nullptr ? root : "/tmp") + "/talweg-fake-XXXXXX";
    TALWEG_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

absl::Status RunAll(bool fake) {
  const Scratch scratch;
  TALWEG_ASSIGN_OR_RETURN(
      const std::unique_ptr<Platform> platform,
      fake ? fake::NewSharedPlatform({.directory = scratch.path(), .gpus = {0, 1}})
           : NewCudaPlatform({}));
  TALWEG_ASSIGN_OR_RETURN(const std::vector<GpuInfo> gpus, platform->Gpus());
  TALWEG_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, platform->Open(gpus.front().uuid));
  std::unique_ptr<Device> peer;
  if (gpus.size() > 1) {
    TALWEG_ASSIGN_OR_RETURN(peer, platform->Open(gpus[1].uuid));
  }
  benchmark::AddCustomContext("gpu", Describe(gpus.front()));
  Register(*device, peer.get(), fake ? Sizes{.slice = 64 * kKiB, .large = 1'000'000} : Sizes{});
  benchmark::RunSpecifiedBenchmarks();
  return absl::OkStatus();
}

}  // namespace
}  // namespace talweg::gpu

int main(int argc, char** argv) {
  bool fake = false;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--fake") {
      fake = true;
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const absl::Status status = talweg::gpu::RunAll(fake);
  if (status.ok()) return 0;
  std::fprintf(stderr, "device_benchmark: %s\n", talweg::status::StatusText(status).c_str());
  return 1;
}
