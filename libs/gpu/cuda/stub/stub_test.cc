// SPDX-License-Identifier: Apache-2.0
//
// libs/gpu/cuda under the conformance suite, on the stub driver and the stub NCCL: our own calls,
// on any machine. What real hardware makes of them //libs/gpu/cuda:conformance_test asks.
#include <algorithm>
#include <array>
#include <cstdlib>

#include <catch2/catch.hpp>

#include "libs/gpu/cuda/cuda_platform.h"
#include "libs/gpu/testing/harness.h"

namespace talweg::gpu {
namespace {

using Catch::Matchers::Contains;

constexpr char kStub[] = "";  // This program, for dlopen.
constexpr std::array<std::byte, 16> kImage = {};

CudaOptions StubOptions() {
  return {
      .driver_library = kStub, .nccl_libraries = {"no-such-nccl", kStub}, .kernel_image = kImage};
}

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
    // Each question runs a piece of work.
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
  // Any question about an event moves the stub.
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
    setenv("TALWEG_STUB_CUINIT", failure.result, 1);
    const auto platform = NewCudaPlatform(StubOptions());
    unsetenv("TALWEG_STUB_CUINIT");
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
                                                               Contains("nvidia-nccl-cu13"));
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

TEST_CASE("cuda: the facts need no context", "[gpu]") {
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
