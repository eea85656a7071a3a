// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_TCP_HARNESS_H_
#define TALWEG_LIBS_TRANSPORT_TCP_TCP_HARNESS_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"
#include "libs/runtime/clock.h"
#include "libs/transport/tcp/tcp_transport.h"
#include "libs/transport/testing/harness.h"
#include "libs/transport/testing/test_port.h"

namespace talweg::transport {

inline uint16_t PortOf(const std::string& address) {
  const size_t colon = address.find(':', address.find("://") + 3);
  return static_cast<uint16_t>(std::stoi(address.substr(colon + 1)));
}

// Returns a socket that is connected to that port of loopback, or -1 if nobody listens.
inline int ConnectToPort(uint16_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(port);
  Descriptor descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(descriptor.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return -1;
  return descriptor.Release();
}

class TcpHarness : public Harness {
 public:
  explicit TcpHarness(DataSecurity security) : security_(security) {}

  std::unique_ptr<Transport> NewTransport() override { return New({.security = security_}); }
  std::unique_ptr<Transport> NewWatchful(const runtime::Clock* clock,
                                         const Hearts& hearts) override {
    return New({.security = security_,
                .heartbeat_ns = hearts.heartbeat_ns,
                .silence_ns = hearts.silence_ns},
               clock);
  }
  std::string NobodysAddress() override {
    return TcpAddress{.host_port = "127.0.0.1:" + std::to_string(deaf_.port()),
                      .security = security_,
                      .key = {.key = NewDataKey()}}
        .ToString();
  }
  int ConnectRaw(const std::string& address) override { return ConnectToPort(PortOf(address)); }

  std::unique_ptr<Transport> New(const TcpOptions& options, const runtime::Clock* clock = nullptr,
                                 telemetry::CounterSet* counters = nullptr) {
    auto transport = NewTcpTransport(options, clock == nullptr ? &clock_ : clock, counters);
    TALWEG_CHECK(transport.ok());
    return *std::move(transport);
  }
  const runtime::MonotonicClock& clock() const { return clock_; }

 private:
  const DataSecurity security_;
  runtime::MonotonicClock clock_;
  TestPort deaf_;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_TCP_HARNESS_H_
