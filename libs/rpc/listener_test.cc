// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <optional>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/rpc/local_users.h"

namespace talweg::rpc {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = port;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

sockaddr_in AddressOf(const Descriptor& descriptor) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  REQUIRE(getsockname(descriptor.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return address;
}

Descriptor Listen() {
  Descriptor listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(0);
  REQUIRE(bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(listening.get(), 8) == 0);
  return listening;
}

Descriptor Connect(const Descriptor& listening) {
  Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in to = AddressOf(listening);
  REQUIRE(connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  return client;
}

std::string From(const Descriptor& client) {
  return "127.0.0.1:" + std::to_string(ntohs(AddressOf(client).sin_port));
}

TEST_CASE("Listener: a connection from this machine counts as its user's", "[rpc]") {
  LocalUsers users;
  Descriptor listening = Listen();
  const Descriptor client = Connect(listening);
  std::promise<Descriptor> accepted;
  Listener listener(std::move(listening), 8, 8, &users,
                    [&](int, Descriptor connection) { accepted.set_value(std::move(connection)); });
  const Descriptor connection = accepted.get_future().get();
  CHECK(users.Find(From(client)) == "user " + std::to_string(geteuid()));
}

TEST_CASE("Listener: a connection that its process has closed is not root's", "[rpc]") {
  LocalUsers users;
  Descriptor listening = Listen();
  std::string from;
  {
    const Descriptor client = Connect(listening);
    from = From(client);
  }
  std::promise<Descriptor> accepted;
  Listener listener(std::move(listening), 8, 8, &users,
                    [&](int, Descriptor connection) { accepted.set_value(std::move(connection)); });
  const Descriptor connection = accepted.get_future().get();
  CHECK(users.Find(from) == "unknown users of this machine");
}

}  // namespace
}  // namespace talweg::rpc
