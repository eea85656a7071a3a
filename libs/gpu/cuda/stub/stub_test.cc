// SPDX-License-Identifier: Apache-2.0
//
// Runs libs/gpu/cuda under the conformance suite, on the stub driver and the stub NCCL. That checks
// our own calls on any machine. //libs/gpu/cuda:conformance_test runs them on real hardware.
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/gpu/cuda/cuda_platform.h"
#include "libs/gpu/cuda/stub/stub_machine.h"
#include "libs/gpu/kernels/reduce_plan.h"
#include "libs/gpu/testing/harness.h"
#include "libs/runtime/open_descriptors.h"

namespace talweg::gpu {
namespace {

using Catch::Matchers::Contains;

constexpr char kStub[] = "";  // An empty name makes dlopen() open this program.
constexpr std::array<std::byte, 16> kImage = {};

CudaOptions StubOptions() {
  return {
      .driver_library = kStub, .nccl_libraries = {"no-such-nccl", kStub}, .kernel_image = kImage};
}

// As long as this lives, a function of the stub returns this result.
class Failing {
 public:
  Failing(const char* function, const char* result) {
    setenv("TALWEG_STUB_FAIL", (std::string(function) + "=" + result).c_str(), 1);
  }
  ~Failing() { unsetenv("TALWEG_STUB_FAIL"); }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
};

// The GPUs of the stub. `device` is the first one.
struct Opened {
  Opened() : platform(*NewCudaPlatform(StubOptions())) {
    const auto gpus = platform->Gpus();
    for (const GpuInfo& gpu : *gpus) devices.push_back(*platform->Open(gpu.uuid));
    device = devices[0].get();
  }
  std::vector<Device*> Both() { return {devices[0].get(), devices[1].get()}; }

  std::unique_ptr<Platform> platform;
  std::vector<std::unique_ptr<Device>> devices;
  Device* device;
};

class StubHarness final : public Harness {
 public:
  StubHarness() {
    auto made = NewCudaPlatform(StubOptions());
    INFO(made.status().ToString());
    REQUIRE(made.ok());
    platform_ = *std::move(made);
  }

  Platform& platform() override { return *platform_; }
  bool RunUntil(const std::function<bool()>& done) override {
    // Each query runs a piece of work of the stub.
    for (int i = 0; i < 100'000; ++i) {
      if (done()) return true;
      Prod();
    }
    return false;
  }
  std::unique_ptr<Peer> NewPeer(const GpuUuid& uuid) override {
    return NewPlatformPeer(*NewCudaPlatform(StubOptions()), uuid,
                           [this](const std::function<bool()>& done) { return RunUntil(done); });
  }
  uint64_t TooManyBytes(Device& device) override { return device.Memory()->free_bytes + 1; }
  void CheckClean() override { prodded_.reset(); }

 private:
  // Any query about an event moves the stub on.
  void Prod() {
    if (prodded_ == nullptr) {
      prodded_ = *platform_->Open(platform_->Gpus()->front().uuid);
      event_ = *prodded_->NewEvent(EventScope::kProcess);
    }
    prodded_->Query(event_).status().IgnoreError();
  }

  std::unique_ptr<Platform> platform_;
  std::unique_ptr<Device> prodded_;
  EventId event_;
};

TEST_CASE("cuda: without a driver it says what is missing, and the remedy", "[gpu]") {
  const auto platform = NewCudaPlatform({.driver_library = "libno-such-driver.so.1"});
  REQUIRE_FALSE(platform.ok());
  CHECK(absl::IsUnimplemented(platform.status()));
  CHECK_THAT(std::string(platform.status().message()),
             Contains("libno-such-driver.so.1") && Contains("--gpus=all"));
}

TEST_CASE("cuda: a library that is no driver is named, with what it lacks", "[gpu]") {
  const auto platform = NewCudaPlatform({.driver_library = "libm.so.6"});
  REQUIRE_FALSE(platform.ok());
  CHECK(absl::IsUnimplemented(platform.status()));
  CHECK_THAT(std::string(platform.status().message()),
             Contains("libm.so.6 has no cuInit") && Contains("CUDA 11.4"));
}

TEST_CASE("cuda: a driver that does not start says why", "[gpu]") {
  struct Failure {
    const char* result;
    absl::StatusCode code;
    const char* remedy;
  };
  for (const Failure& failure :
       {Failure{"100", absl::StatusCode::kNotFound, "CUDA_VISIBLE_DEVICES"},
        Failure{"802", absl::StatusCode::kUnimplemented, "nvidia-fabricmanager"},
        Failure{"803", absl::StatusCode::kUnimplemented, "reboot after an update"},
        Failure{"34", absl::StatusCode::kUnimplemented, "LD_LIBRARY_PATH"},
        Failure{"999", absl::StatusCode::kUnimplemented, "does not start"}}) {
    const Failing failing("cuInit", failure.result);
    const auto platform = NewCudaPlatform(StubOptions());
    REQUIRE_FALSE(platform.ok());
    CHECK(platform.status().code() == failure.code);
    CHECK_THAT(std::string(platform.status().message()), Contains(failure.remedy));
  }
}

TEST_CASE("cuda: without NCCL it says where it looked", "[gpu]") {
  CudaOptions options = StubOptions();
  options.nccl_libraries = {"libno-such-nccl.so.2", "/nowhere/libnccl.so.2"};
  const auto platform = NewCudaPlatform(options);
  REQUIRE(platform.ok());
  const auto device = *(*platform)->Open((*platform)->Gpus()->front().uuid);
  Device* const one[] = {device.get()};
  const auto communicator = (*platform)->NewCommunicator(one);
  REQUIRE_FALSE(communicator.ok());
  CHECK(absl::IsUnimplemented(communicator.status()));
  CHECK_THAT(std::string(communicator.status().message()), Contains("libno-such-nccl.so.2") &&
                                                               Contains("/nowhere/libnccl.so.2") &&
                                                               Contains("nvidia-nccl"));
}

TEST_CASE("cuda: a build without kernels says so when they are asked for", "[gpu]") {
  CudaOptions options = StubOptions();
  options.kernel_image = {};
  const auto platform = NewCudaPlatform(options);
  REQUIRE(platform.ok());
  const auto device = *(*platform)->Open((*platform)->Gpus()->front().uuid);
  const DeviceSpan memory = *device->Allocate(4096);
  const uint64_t inputs[] = {memory.address, memory.address + 1024};
  const absl::Status status =
      device->Reduce(*device->NewStream(StreamPriority::kNormal),
                     {.dtype = DType::kF32, .op = Op::kSum}, inputs, memory.address, 10);
  CHECK(absl::IsUnimplemented(status));
  CHECK_THAT(std::string(status.message()), Contains("--config=cuda"));
}

TEST_CASE("cuda: memory of another container is refused with the remedy, and harms nothing",
          "[gpu]") {
  Opened rank;
  Opened agent;
  const MemoryHandle handle = *rank.device->Export(*rank.device->Allocate(4096));
  for (const char* const result :
       {"1", "101", "201", "205", "208", "217", "304", "400", "711", "800", "801", "999"}) {
    const Failing failing("cuIpcOpenMemHandle_v2", result);
    const absl::Status refused = agent.device->Map(handle).status();
    INFO(refused.ToString());
    CHECK(absl::IsPermissionDenied(refused));
    CHECK_THAT(std::string(refused.message()), Contains("--ipc=host --pid=host"));
  }
  CHECK(agent.device->Map(handle).ok());
}

TEST_CASE(
    "cuda: missing memory and a lost context keep their codes, for another process's memory too",
    "[gpu]") {
  Opened rank;
  Opened agent;
  const MemoryHandle handle = *rank.device->Export(*rank.device->Allocate(4096));
  {
    const Failing failing("cuIpcOpenMemHandle_v2", "2");
    CHECK(absl::IsResourceExhausted(agent.device->Map(handle).status()));
  }
  CHECK(agent.device->Memory().ok());
  {
    const Failing failing("cuIpcOpenMemHandle_v2", "700");
    CHECK(absl::IsAborted(agent.device->Map(handle).status()));
  }
  CHECK(absl::IsAborted(agent.device->Memory().status()));
}

TEST_CASE("cuda: a mapping goes from where it begins to the end of the block that holds it",
          "[gpu]") {
  Opened rank;
  Opened agent;
  const DeviceSpan memory = *rank.device->Allocate(4096);
  const MemoryHandle handle = *rank.device->Export(memory);
  cuda::stub::Machine::Get().block_before = 512;
  const auto mapped = agent.device->Map(handle);
  cuda::stub::Machine::Get().block_before = 0;
  REQUIRE(mapped.ok());
  CHECK(*mapped == memory);  // The address where the stub maps it.
}

TEST_CASE("cuda: a GPU that takes only one process is refused with the remedy", "[gpu]") {
  const Failing failing("cuDevicePrimaryCtxRetain", "46");
  const auto platform = *NewCudaPlatform(StubOptions());
  const absl::Status refused = platform->Open(platform->Gpus()->front().uuid).status();
  CHECK(absl::IsUnimplemented(refused));
  CHECK_THAT(std::string(refused.message()), Contains("nvidia-smi -c DEFAULT"));
}

TEST_CASE("cuda: streams of high priority have the highest that there is", "[gpu]") {
  cuda::stub::Machine& machine = cuda::stub::Machine::Get();
  const Opened opened;
  REQUIRE(opened.device->NewStream(StreamPriority::kHigh).ok());
  CHECK(machine.streams.back()->priority == -5);  // Lower numbers are higher priorities.
  REQUIRE(opened.device->NewStream(StreamPriority::kNormal).ok());
  CHECK(machine.streams.back()->priority == 0);
}

TEST_CASE("cuda: kernels are loaded with the device, and none in a step", "[gpu]") {
  cuda::stub::Machine& machine = cuda::stub::Machine::Get();
  const int before = machine.functions_loaded;
  const auto platform = *NewCudaPlatform(StubOptions());
  const auto device = *platform->Open(platform->Gpus()->front().uuid);
  const int loaded = machine.functions_loaded;
  CHECK(loaded - before == static_cast<int>(kernels::KernelNames().size()));
  const DeviceSpan memory = *device->Allocate(4096);
  const StreamId stream = *device->NewStream(StreamPriority::kNormal);
  const uint64_t inputs[] = {memory.address, memory.address + 1024};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kU8}) {
    CHECK(
        device->Reduce(stream, {.dtype = dtype, .op = Op::kSum}, inputs, memory.address, 10).ok());
  }
  CHECK(machine.functions_loaded == loaded);
  machine.RunAll();
}

TEST_CASE("cuda: an error of the context ends the device, and another error does not", "[gpu]") {
  Opened opened;
  const EventId event = *opened.device->NewEvent(EventScope::kProcess);
  {
    const Failing failing("cuMemHostRegister_v2", "304");
    std::vector<std::byte> memory(4096);
    CHECK(absl::IsInternal(opened.device->RegisterHost(memory)));
  }
  {
    const Failing failing("cuMemHostRegister_v2", "2");
    std::vector<std::byte> memory(4096);
    const absl::Status refused = opened.device->RegisterHost(memory);
    CHECK(absl::IsResourceExhausted(refused));
    CHECK_THAT(std::string(refused.message()), Contains("pinning 4 KiB"));
  }
  CHECK(opened.device->Query(event).ok());
  for (const char* const result : {"214", "700", "716", "719", "999"}) {
    Opened doomed;
    const EventId its = *doomed.device->NewEvent(EventScope::kProcess);
    {
      const Failing failing("cuEventQuery", result);
      const absl::Status lost = doomed.device->Query(its).status();
      CHECK(absl::IsAborted(lost));
      CHECK_THAT(std::string(lost.message()), Contains(FormatUuid(doomed.device->info().uuid)));
    }
    CHECK(absl::IsAborted(doomed.device->Query(its).status()));
    CHECK(absl::IsAborted(doomed.device->Allocate(1).status()));
    CHECK(doomed.devices[1]->Allocate(1).ok());
    // The next process that opens the GPU gets a good context.
    const int before = cuda::stub::Machine::Get().resets[0];
    doomed.devices.clear();
    CHECK(cuda::stub::Machine::Get().resets[0] == before + 1);
    CHECK(cuda::stub::Machine::Get().resets[1] == 0);
  }
}

TEST_CASE("cuda: a wake-up waits for no other one, and leaves its stream to the next", "[gpu]") {
  cuda::stub::Machine& machine = cuda::stub::Machine::Get();
  Opened opened;
  Device& device = *opened.device;
  const auto is_awake = [&device] {
    pollfd descriptor = {.fd = device.WaitDescriptor(), .events = POLLIN, .revents = 0};
    return poll(&descriptor, 1, 0) == 1;
  };
  const StreamId slow = *device.NewStream(StreamPriority::kNormal);
  const StreamId quick = *device.NewStream(StreamPriority::kNormal);
  const EventId last = *device.NewEvent(EventScope::kProcess);
  const EventId first = *device.NewEvent(EventScope::kProcess);
  const DeviceSpan memory = *device.Allocate(2048);
  for (int i = 0; i < 50; ++i) {
    REQUIRE(device.CopyOnDevice(slow, memory.Part(0, 1024), memory.Part(1024, 1024)).ok());
  }
  REQUIRE(device.Record(last, slow).ok());
  REQUIRE(device.Record(first, quick).ok());
  REQUIRE(device.WakeWhenDone(last).ok());
  REQUIRE(device.WakeWhenDone(first).ok());
  while (!is_awake()) REQUIRE(machine.Step());
  CHECK_FALSE(*device.Query(last));
  machine.RunAll();
  const size_t streams = machine.streams.size();
  for (int i = 0; i < 10; ++i) {
    device.DrainWakeups();
    REQUIRE(device.WakeWhenDone(last).ok());
    machine.RunAll();
    CHECK(is_awake());
  }
  CHECK(machine.streams.size() == streams);
}

TEST_CASE("cuda: a wake-up that comes too late or never keeps no descriptor", "[gpu]") {
  const bool lost = GENERATE(true, false);
  const size_t before = runtime::OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    Opened opened;
    const EventId event = *opened.device->NewEvent(EventScope::kProcess);
    REQUIRE(opened.device->Record(event, *opened.device->NewStream(StreamPriority::kHigh)).ok());
    REQUIRE(opened.device->WakeWhenDone(event).ok());
    if (!lost) continue;
    const Failing failing("cuEventQuery", "719");
    REQUIRE(absl::IsAborted(opened.device->Query(event).status()));
  }
  CHECK(runtime::OpenDescriptors() == before);
  cuda::stub::Machine::Get().RunAll();
  CHECK(runtime::OpenDescriptors() == before);
}

// Returns memory of a device that may be opened to a NIC.
DeviceSpan NicPages(Device& device, uint64_t pages) {
  const DeviceSpan memory = *device.Allocate((pages + 1) * kNicPageBytes);
  const uint64_t skipped = (kNicPageBytes - memory.address % kNicPageBytes) % kNicPageBytes;
  return memory.Part(skipped, pages * kNicPageBytes);
}

TEST_CASE("cuda: what NICs write is flushed unless the GPU orders it", "[gpu]") {
  cuda::stub::Machine& machine = cuda::stub::Machine::Get();
  const Opened opened;
  const DeviceSpan pages = NicPages(*opened.device, 2);
  struct Restored {
    ~Restored() {
      cuda::stub::Machine& stub = cuda::stub::Machine::Get();
      stub.lets_nics = true;
      stub.has_dma_buf = false;
      stub.flush_options = cuda::kCuRdmaFlushByHost;
      stub.writes_ordering = 0;
    }
  } restored;
  auto plain = opened.device->OpenToNic(pages);
  REQUIRE(plain.ok());
  CHECK(plain->device == 40);  // The number that the stub gives it.
  CHECK_FALSE(plain->dma_buf.valid());
  CHECK(machine.memory.upper_bound(pages.address) != machine.memory.begin());
  CHECK(std::prev(machine.memory.upper_bound(pages.address))->second.sync_memops);
  const int before = machine.flushes;
  CHECK(opened.device->FlushNicWrites().ok());
  CHECK(machine.flushes == before + 1);
  machine.writes_ordering = cuda::kCuRdmaOrderingOwner;
  CHECK(opened.device->FlushNicWrites().ok());
  CHECK(machine.flushes == before + 1);

  machine.writes_ordering = 0;
  machine.flush_options = 2;
  const absl::Status unordered = opened.device->OpenToNic(pages).status();
  CHECK(absl::IsUnimplemented(unordered));
  CHECK_THAT(std::string(unordered.message()), Contains("nor lets it be flushed"));
  machine.flush_options = cuda::kCuRdmaFlushByHost;
  machine.lets_nics = false;
  CHECK(absl::IsUnimplemented(opened.device->OpenToNic(pages).status()));
  machine.has_dma_buf = true;
  const auto buffered = opened.device->OpenToNic(pages);
  REQUIRE(buffered.ok());
  CHECK(buffered->dma_buf.valid());
}

TEST_CASE("cuda: a link between GPUs is seen, and so is its absence", "[gpu]") {
  const Opened opened;
  const GpuUuid one = opened.devices[0]->info().uuid;
  const GpuUuid other = opened.devices[1]->info().uuid;
  CHECK_FALSE(opened.platform->Linked(one, other));
  cuda::stub::Machine::Get().linked = true;
  CHECK(opened.platform->Linked(one, other));
  CHECK_FALSE(opened.platform->Linked(one, one));
  CHECK_FALSE(opened.platform->Linked(one, {}));
  cuda::stub::Machine::Get().linked = false;
}

TEST_CASE("cuda: a copy to a peer goes straight there where it can, and access is asked for once",
          "[gpu]") {
  cuda::stub::Machine& machine = cuda::stub::Machine::Get();
  struct Peers {
    bool reaches;
    const char* enabling;  // What the driver returns; null means success.
    bool is_copied;
    int enabled;
  };
  for (const Peers& peers :
       {Peers{true, nullptr, true, 1}, Peers{true, "704", true, 0}, Peers{true, "711", true, 0},
        Peers{false, nullptr, true, 0}, Peers{true, "719", false, 0}}) {
    Opened opened;
    machine.reaches_peers = peers.reaches;
    machine.peers_enabled = 0;
    const DeviceSpan from = *opened.devices[0]->Allocate(4096);
    const DeviceSpan to = *opened.devices[1]->Allocate(4096);
    const StreamId stream = *opened.device->NewStream(StreamPriority::kHigh);
    const Failing failing("cuCtxEnablePeerAccess", peers.enabling ? peers.enabling : "0");
    for (int i = 0; i < 2; ++i) {
      const absl::Status posted = opened.device->CopyToPeer(stream, *opened.devices[1], to, from);
      INFO(posted.ToString());
      CHECK(posted.ok() == peers.is_copied);
      CHECK((posted.ok() || absl::IsAborted(posted)));
    }
    CHECK(machine.peers_enabled == peers.enabled);
  }
  machine.reaches_peers = true;
}

TEST_CASE("cuda: everything else works when the driver does not take the kernels", "[gpu]") {
  const Failing failing("cuModuleLoadData", "222");
  Opened opened;
  const DeviceSpan memory = *opened.device->Allocate(4096);
  const uint64_t inputs[] = {memory.address, memory.address + 1024};
  const absl::Status refused =
      opened.device->Reduce(*opened.device->NewStream(StreamPriority::kNormal),
                            {.dtype = DType::kF32, .op = Op::kSum}, inputs, memory.address, 10);
  CHECK(absl::IsUnimplemented(refused));
  CHECK_THAT(std::string(refused.message()), Contains("update the driver"));
}

TEST_CASE("cuda: an error of NCCL ends the communicator, with the GPU and NCCL's words", "[gpu]") {
  Opened opened;
  const std::vector<Device*> both = opened.Both();
  const auto check = [&](const absl::Status& status) {
    INFO(status.ToString());
    CHECK(absl::IsUnavailable(status));
    CHECK_THAT(std::string(status.message()),
               Contains("Stub GPU") && Contains("the stub's NCCL error") && Contains("2.28.3"));
  };
  {
    const Failing failing("ncclCommInitRankConfig", "2");
    check(opened.platform->NewCommunicator(both).status());
  }
  std::vector<CollectivePart> parts;
  for (Device* const device : both) {
    parts.push_back({*device->NewStream(StreamPriority::kNormal), device->Allocate(4096)->address,
                     device->Allocate(4096)->address});
  }
  for (const char* const function : {"ncclCommGetAsyncError", "ncclAllReduce"}) {
    const auto communicator = *opened.platform->NewCommunicator(both);
    while (communicator->Poll() == Communicator::State::kBusy) {
    }
    REQUIRE(communicator->Poll() == Communicator::State::kReady);
    const Failing failing(function, "3");
    const absl::Status posted = communicator->AllReduce(DType::kF32, Op::kSum, 100, parts);
    CHECK_FALSE(posted.ok());
    CHECK(communicator->Poll() == Communicator::State::kFailed);
    check(communicator->error());
  }
}

TEST_CASE("cuda: the facts of a GPU need no context", "[gpu]") {
  const CudaFacts facts = ReadCudaFacts(StubOptions());
  CHECK(facts.driver.ok());
  CHECK(facts.driver_version == 13000);
  REQUIRE(facts.gpus.size() == 2);
  CHECK(facts.gpus[1].name == "Stub GPU 1");
  CHECK(facts.gpus[1].compute_major == 9);
  CHECK(facts.gpus[1].pci_bus_id == "0000:29:00.0");
  CHECK(facts.nccl.ok());
  CHECK(facts.nccl_version == "2.28.3");
  CHECK(facts.nccl_library == kStub);
  const CudaFacts none = ReadCudaFacts({.driver_library = "no", .nccl_libraries = {"no"}});
  CHECK_FALSE(none.driver.ok());
  CHECK_FALSE(none.nccl.ok());
}

}  // namespace

std::unique_ptr<Harness> NewHarness() { return std::make_unique<StubHarness>(); }

}  // namespace talweg::gpu
