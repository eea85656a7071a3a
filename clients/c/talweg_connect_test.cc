// SPDX-License-Identifier: Apache-2.0

// Connecting to an agent: how it is found, which place it gives, and how something else is noticed.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/talweg.h"
#include "libs/base/descriptor.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

TEST_CASE("Without an agent the error says how to start one") {
  const TestDirectory directory;
  const TestClient client(directory.Path("agent.sock"), 0);
  CHECK(client.status() == TALWEG_NO_AGENT);
  CHECK(client.get() == nullptr);
  CHECK_THAT(client.error(), Contains(directory.Path("agent.sock")) && Contains("No such file") &&
                                 Contains("talweg agent") && Contains("talweg run"));

  { FakeAgent agent(AgentOptions(directory, 1)); }
  talweg_client* none = nullptr;
  ::unsetenv("TALWEG_AGENT_SOCKET");
  CHECK(talweg_connect(nullptr, &none) == TALWEG_NO_AGENT);
  CHECK_THAT(talweg_last_error(), Contains("TALWEG_AGENT_SOCKET is not set"));
  const TestClient too_long("/tmp/" + std::string(200, 'x'), 0);
  CHECK(too_long.status() == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(too_long.error(), Contains("205 bytes"));
}

TEST_CASE("A client waits for an agent that comes a little later") {
  const TestDirectory directory;
  talweg_options options;
  talweg_options_init(&options);
  const std::string path = directory.Path("agent.sock");
  options.agent_socket = path.c_str();
  options.local_rank = 0;
  options.agent_wait_ns = kGenerousNs;
  std::unique_ptr<FakeAgent> agent;
  std::thread starter([&] { agent = std::make_unique<FakeAgent>(AgentOptions(directory, 1)); });
  talweg_client* client = nullptr;
  CHECK(talweg_connect(&options, &client) == TALWEG_OK);
  starter.join();
  talweg_free(client);
}

TEST_CASE("The environment names the socket and the local rank") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 3));
  ::setenv("TALWEG_AGENT_SOCKET", agent.socket_path().c_str(), 1);
  ::setenv("LOCAL_RANK", "1", 1);
  talweg_client* client = nullptr;
  CHECK(talweg_connect(nullptr, &client) == TALWEG_OK);
  CHECK(talweg_local_rank(client) == 1);
  ::setenv("TALWEG_LOCAL_RANK", "2", 1);
  talweg_client* other = nullptr;
  CHECK(talweg_connect(nullptr, &other) == TALWEG_OK);
  CHECK(talweg_local_rank(other) == 2);
  ::setenv("TALWEG_LOCAL_RANK", "two", 1);
  talweg_client* none = nullptr;
  CHECK(talweg_connect(nullptr, &none) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("'two'"));
  ::setenv("TALWEG_LOCAL_RANK", " -18446744073709551615", 1);  // As an unsigned number it is 1.
  CHECK(talweg_connect(nullptr, &none) == TALWEG_INVALID_ARGUMENT);
  ::setenv("TALWEG_LOCAL_RANK", "0", 1);
  ::setenv("TALWEG_CACHE_BYTES", "35 MB", 1);
  CHECK(talweg_connect(nullptr, &none) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("TALWEG_CACHE_BYTES") && Contains("'35 MB'"));
  ::setenv("TALWEG_CACHE_BYTES", " -1", 1);
  CHECK(talweg_connect(nullptr, &none) == TALWEG_INVALID_ARGUMENT);
  for (const char* name :
       {"TALWEG_AGENT_SOCKET", "TALWEG_LOCAL_RANK", "LOCAL_RANK", "TALWEG_CACHE_BYTES"}) {
    ::unsetenv(name);
  }
  talweg_free(client);
  talweg_free(other);
}

TEST_CASE("A local rank that is taken or beyond the node is refused, and so is one rank too many") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  const TestClient first(agent.socket_path(), 0);
  REQUIRE(first.status() == TALWEG_OK);
  const TestClient same(agent.socket_path(), 0);
  CHECK(same.status() == TALWEG_RANK_TAKEN);
  CHECK_THAT(same.error(),
             Contains("local rank 0") && Contains("pid " + std::to_string(::getpid())));
  const TestClient any(agent.socket_path(), TALWEG_ANY_LOCAL_RANK);
  CHECK(any.status() == TALWEG_RANK_TAKEN);
  CHECK_THAT(any.error(), Contains("all 1 local ranks"));
  const TestClient beyond(agent.socket_path(), 5);
  CHECK(beyond.status() == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(beyond.error(), Contains("local rank 5") && Contains("has 1"));
  CHECK(agent.seen().counters.ranks_refused == 3);
}

TEST_CASE("A rank that is not admitted in time gets a timeout, and its place is free again") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 2);
  options.waits_for_all = true;
  FakeAgent agent(options);
  const TestClient alone(agent.socket_path(), 0, 10'000'000);
  CHECK(alone.status() == TALWEG_TIMEOUT);
  CHECK_THAT(alone.error(), Contains("0.010 s"));
  agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.gone_unclean == 1; });
}

// Something that listens at an agent's path and is no agent. It answers with given bytes, then
// keeps the connection open.
class Stranger {
 public:
  Stranger(const std::string& path, std::vector<std::byte> answer, bool hangs_up)
      : path_(path), listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(::listen(listener_.get(), 4) == 0);
    thread_ = std::thread([this, answer = std::move(answer), hangs_up] {
      const Descriptor peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      ::send(peer.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
      std::array<char, 4096> bytes;
      while (!hangs_up && ::recv(peer.get(), bytes.data(), bytes.size(), 0) > 0) {
      }
    });
  }
  ~Stranger() {
    thread_.join();
    ::unlink(path_.c_str());
  }

 private:
  std::string path_;
  Descriptor listener_;
  std::thread thread_;
};

std::vector<std::byte> Encoded(const shm::Message& message) {
  std::vector<std::byte> bytes(shm::kEncodedBytesMax);
  bytes.resize(shm::EncodeMessage(message, bytes));
  return bytes;
}

TEST_CASE("An agent of another major version is refused, and the error names both versions") {
  const TestDirectory directory;
  const Stranger stranger(directory.Path("agent.sock"),
                          Encoded({.body = shm::Welcome{.major = 7, .minor = 3}}), false);
  const TestClient client(directory.Path("agent.sock"), 0);
  CHECK(client.status() == TALWEG_VERSION_MISMATCH);
  CHECK_THAT(client.error(), Contains("1.12") && Contains("7.3"));
}

TEST_CASE("A client notices that it has not reached an agent") {
  const TestDirectory directory;
  const std::string path = directory.Path("agent.sock");
  SECTION("It answers with other bytes") {
    const char text[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    const auto* bytes = reinterpret_cast<const std::byte*>(text);
    const Stranger stranger(path, {bytes, bytes + sizeof(text)}, false);
    const TestClient client(path, 0);
    CHECK(client.status() == TALWEG_PROTOCOL);
    CHECK_THAT(client.error(), Contains(path) && Contains("not a message of a Talweg agent"));
  }
  SECTION("It sends a Welcome without a control segment") {
    const Stranger stranger(
        path, Encoded({.body = shm::Welcome{.ring_capacity = 64, .tensors_max = 64}}), false);
    const TestClient client(path, 0);
    CHECK(client.status() == TALWEG_PROTOCOL);
    CHECK_THAT(client.error(), Contains("no control segment"));
  }
  SECTION("It sends half a message, then the end") {
    std::vector<std::byte> half = Encoded({.body = shm::Welcome{}});
    half.resize(20);
    const Stranger stranger(path, half, true);
    const TestClient client(path, 0);
    CHECK(client.status() == TALWEG_AGENT_LOST);
  }
  SECTION("It says nothing") {
    const Stranger stranger(path, {}, false);
    const TestClient client(path, 0, 10'000'000);
    CHECK(client.status() == TALWEG_TIMEOUT);
  }
}

}  // namespace
}  // namespace talweg::c
