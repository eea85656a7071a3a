// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/loopback/loopback_transport.h"

#include <algorithm>

#include "libs/transport/testing/harness.h"

namespace talweg::transport {
namespace {

class LoopbackHarness final : public Harness, private LoopbackDevices {
 public:
  std::unique_ptr<Transport> NewTransport() override { return network_->NewTransport(); }
  std::string NobodysAddress() override { return "loopback://1000000"; }
  bool CrossesProcesses() const override { return false; }
  TestDevice* device() override { return &device_; }

 private:
  void Read(uint64_t address, std::span<std::byte> target) override {
    const std::span<const std::byte> from = device_.At(address, target.size());
    std::copy(from.begin(), from.end(), target.begin());
  }
  void Write(uint64_t address, std::span<const std::byte> source) override {
    std::copy(source.begin(), source.end(), device_.At(address, source.size()).begin());
  }

  RemoteDevice device_;
  std::unique_ptr<LoopbackNetwork> network_ = NewLoopbackNetwork(this);
};

}  // namespace

std::unique_ptr<Harness> NewHarness() { return std::make_unique<LoopbackHarness>(); }

}  // namespace talweg::transport
