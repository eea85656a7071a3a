// SPDX-License-Identifier: Apache-2.0
// Measures how fast bytes get from one process's memory to another's, and at what cost. A frame
// follows each write, and at most kWindow writes are in flight. Two threads sleep when there is
// nothing to do. Compare with the copies that are unavoidable: docs/architecture.md, "The life of a
// gradient".
#include <benchmark/benchmark.h>
#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/runtime/clock.h"
#include "libs/transport/libfabric/fabric_transport.h"
#include "libs/transport/local/local_transport.h"
#include "libs/transport/tcp/tcp_transport.h"

namespace talweg::transport {
namespace {

constexpr uint64_t kWindow = 8;
constexpr int64_t kSpinNs = 20'000;

enum Implementation : int64_t { kFabric, kLocal, kNone, kKeyed, kTls };

double ProcessCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// One thread's transport. It counts what it sees.
class Side final : public EventSink {
 public:
  Side(Implementation implementation, const runtime::Clock* clock) : clock_(clock) {
    auto made = Make(implementation, clock);
    TALWEG_CHECK(made.ok());
    transport = *std::move(made);
  }

  void OnAccepted(ConnectionId connection) override { peer = connection; }
  void OnConnected(ConnectionId connection) override { peer = connection; }
  void OnDisconnected(ConnectionId, const std::string&) override { over = true; }
  void OnFrame(ConnectionId connection, std::span<const std::byte>) override {
    ++frames;
    if (answers) transport->PostFrame(connection, std::vector<std::byte>(64));
  }
  void OnWriteDone(ConnectionId, uint64_t) override {}

  // Polls once. After a while without work, it sleeps until there is some.
  void Turn() {
    if (transport->Poll(*this, 64) > 0) {
      idle_since_ns_ = clock_->NowNs();
    } else if (clock_->NowNs() - idle_since_ns_ > kSpinNs && transport->PrepareToSleep()) {
      pollfd descriptor{transport->WaitDescriptor(), POLLIN, 0};
      poll(&descriptor, 1, 1000);
      idle_since_ns_ = clock_->NowNs();
    }
  }

  std::unique_ptr<Transport> transport;
  ConnectionId peer;
  uint64_t frames = 0;
  bool answers = false;
  bool over = false;

 private:
  static absl::StatusOr<std::unique_ptr<Transport>> Make(Implementation implementation,
                                                         const runtime::Clock* clock) {
    switch (implementation) {
      case kFabric: return NewFabricTransport({}, clock, nullptr);
      case kLocal: return NewLocalTransport({}, clock, nullptr);
      case kNone: return NewTcpTransport({.security = DataSecurity::kNone}, clock, nullptr);
      case kKeyed: return NewTcpTransport({.security = DataSecurity::kKeyed}, clock, nullptr);
      case kTls: break;
    }
    return NewTcpTransport({.security = DataSecurity::kTls}, clock, nullptr);
  }

  const runtime::Clock* const clock_;
  int64_t idle_since_ns_ = 0;
};

void BM_WriteAndFrame(benchmark::State& state) {
  const auto implementation = static_cast<Implementation>(state.range(0));
  const auto size = static_cast<size_t>(state.range(1));
  runtime::MonotonicClock clock;
  std::atomic<bool> ready{false};
  std::string address;
  wire::RemoteRef target;

  std::thread server([&] {
    Side side(implementation, &clock);
    side.answers = true;
    std::vector<std::byte> memory(kWindow * size, std::byte{1});
    const auto region = side.transport->Register(memory);
    address = *side.transport->Listen({});
    target = region->Ref();
    ready = true;
    while (!side.over) side.Turn();
  });
  while (!ready) std::this_thread::yield();
  {
    Side side(implementation, &clock);
    std::vector<std::byte> memory(kWindow * size, std::byte{2});
    const auto region = side.transport->Register(memory);
    const ConnectionId connection = *side.transport->Connect(address);
    uint64_t posted = 0;
    const auto write = [&] {
      while (posted - side.frames >= kWindow) side.Turn();
      const size_t offset = (posted % kWindow) * size;
      side.transport->PostWrite(connection, region->Slice(offset, size),
                                {target.key, target.address + offset}, posted);
      side.transport->PostFrame(connection, std::vector<std::byte>(128));
      ++posted;
    };
    // Touches every page of both sides, and of the buffers between them, before it measures.
    for (uint64_t i = 0; i < 2 * kWindow; ++i) write();
    const double cpu_before = ProcessCpuSeconds();
    for (auto _ : state) write();
    while (side.frames < posted) side.Turn();
    const double bytes = static_cast<double>(state.iterations()) * static_cast<double>(size);
    state.SetBytesProcessed(static_cast<int64_t>(bytes));
    state.counters["cpu_s_per_GB"] = (ProcessCpuSeconds() - cpu_before) / (bytes * 1e-9);
    side.transport->Close(connection);
  }
  server.join();
}
// Compares libfabric's tcp with Talweg's own with data_security none, keyed and tls: one stream.
void Arguments(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t bytes : {64 << 10, 1 << 20, 4 << 20, 16 << 20}) {
    for (const Implementation each : {kFabric, kNone, kKeyed, kTls, kLocal}) {
      benchmark->Args({each, bytes});
    }
  }
}

BENCHMARK(BM_WriteAndFrame)
    ->ArgNames({"fabric_local_none_keyed_tls", "bytes"})
    ->Apply(Arguments)
    ->UseRealTime();

}  // namespace
}  // namespace talweg::transport
