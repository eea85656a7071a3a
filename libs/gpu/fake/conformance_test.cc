// SPDX-License-Identifier: Apache-2.0
//
// Runs the conformance suite on the fake machine.
#include <catch2/catch.hpp>

#include "libs/gpu/fake/fake_machine.h"
#include "libs/gpu/testing/harness.h"
#include "libs/runtime/manual_clock.h"

namespace talweg::gpu {
namespace {

class FakeHarness final : public Harness {
 public:
  FakeHarness()
      : machine_(clock_, {.gpu_count = 3, .gpu_memory_bytes = uint64_t{512} << 20}),
        platform_(machine_.NewProcess()) {}

  Platform& platform() override { return *platform_; }

  bool RunUntil(const std::function<bool()>& done) override {
    const int64_t deadline_ns = clock_.NowNs() + 60'000'000'000;
    while (!done()) {
      if (clock_.NowNs() > deadline_ns) return false;
      const std::optional<int64_t> next = machine_.NextEndNs();
      clock_.Advance(next && *next > clock_.NowNs() ? *next - clock_.NowNs() : 10'000);
    }
    return true;
  }

  std::unique_ptr<Peer> NewPeer(const GpuUuid& uuid) override {
    return NewPlatformPeer(machine_.NewProcess(), uuid,
                           [this](const std::function<bool()>& done) { return RunUntil(done); });
  }

  uint64_t TooManyBytes(Device& device) override { return device.Memory()->free_bytes + 1; }

  void CheckClean() override {
    for (const std::string& violation : machine_.violations()) FAIL_CHECK(violation);
    CHECK(machine_.context_count(0) <= 1);  // The peer's context.
    platform_.reset();
  }

 private:
  runtime::ManualClock clock_;
  fake::FakeMachine machine_;
  std::unique_ptr<Platform> platform_;
};

}  // namespace

std::unique_ptr<Harness> NewHarness() { return std::make_unique<FakeHarness>(); }

}  // namespace talweg::gpu
