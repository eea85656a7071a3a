// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/loopback/loopback_transport.h"

#include "libs/transport/testing/harness.h"

namespace talweg::transport {
namespace {

class LoopbackHarness final : public Harness {
 public:
  std::unique_ptr<Transport> NewTransport() override { return network_->NewTransport(); }
  std::string NobodysAddress() override { return "loopback://1000000"; }
  bool CrossesProcesses() const override { return false; }

 private:
  std::unique_ptr<LoopbackNetwork> network_ = NewLoopbackNetwork();
};

}  // namespace

std::unique_ptr<Harness> NewHarness() { return std::make_unique<LoopbackHarness>(); }

}  // namespace talweg::transport
