// SPDX-License-Identifier: Apache-2.0
// Keyed connections that the tests of faults wrap with delays, and that daemons use beside shared
// memory.
#include "libs/transport/composite/composite_transport.h"
#include "libs/transport/faulty/faulty_transport.h"
#include "libs/transport/local/local_transport.h"
#include "libs/transport/tcp/tcp_harness.h"

namespace talweg::transport {
namespace {

class WrappedHarness final : public TcpHarness {
 public:
  WrappedHarness() : TcpHarness(DataSecurity::kKeyed) {}

  std::unique_ptr<Transport> NewTransport() override {
    auto local = NewLocalTransport({}, &clock(), nullptr);
    TALWEG_CHECK(local.ok());
    auto both = NewCompositeTransport(TcpHarness::NewTransport(), *std::move(local));
    TALWEG_CHECK(both.ok());
    return NewFaultyTransport(*std::move(both), {.seed = ++seed_, .frame_delay_ns_max = 200'000},
                              &clock());
  }
  std::unique_ptr<Transport> NewWatchful(const runtime::Clock*, const Hearts&) override {
    return nullptr;
  }

 private:
  uint64_t seed_ = 0;
};

}  // namespace

std::unique_ptr<Harness> NewHarness() { return std::make_unique<WrappedHarness>(); }

}  // namespace talweg::transport
