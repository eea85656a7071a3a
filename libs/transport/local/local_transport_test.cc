// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/local/local_transport.h"

#include <catch2/catch.hpp>

#include "libs/base/check.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/descriptor.h"
#include "libs/transport/local/handshake.h"
#include "libs/transport/testing/harness.h"

namespace talweg::transport {
namespace {

class LocalHarness final : public Harness {
 public:
  std::unique_ptr<Transport> NewTransport() override {
    auto transport = NewLocalTransport({}, &clock_, nullptr);
    TALWEG_CHECK(transport.ok());
    return *std::move(transport);
  }
  std::string NobodysAddress() override { return "local:@talweg-nobody-listens-here"; }
  int ConnectRaw(const std::string& address) override {
    absl::StatusOr<Descriptor> socket = ConnectUnix(address.substr(address.find(':') + 1));
    return socket.ok() ? socket->Release() : -1;
  }

 private:
  MonotonicClock clock_;
};

}  // namespace

std::unique_ptr<Harness> NewHarness() { return std::make_unique<LocalHarness>(); }

}  // namespace talweg::transport
