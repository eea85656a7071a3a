// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TESTING_TEST_PORT_H_
#define TALWEG_LIBS_TRANSPORT_TESTING_TEST_PORT_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"

namespace talweg::transport {

// A TCP port of loopback, bound so that no other process gets it.
class TestPort {
 public:
  TestPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    TALWEG_CHECK(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    TALWEG_CHECK(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
    port_ = ntohs(address.sin_port);
  }
  uint16_t port() const { return port_; }
  int descriptor() const { return socket_.get(); }
  void Listen() { TALWEG_CHECK(listen(socket_.get(), 8) == 0); }
  // Waits for a connection.
  Descriptor Accept() { return Descriptor(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

 private:
  Descriptor socket_;
  uint16_t port_ = 0;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TESTING_TEST_PORT_H_
