// SPDX-License-Identifier: Apache-2.0

// A client with an agent of an earlier minor version, and ranks that see their agent in different
// versions.

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/in_place_testing.h"
#include "clients/c/rank_sums_testing.h"
#include "clients/c/talweg.h"
#include "libs/base/descriptor.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

// Stands between one client and an agent. It changes only the version that the agent names.
class OlderAgent {
 public:
  OlderAgent(const std::string& path, const std::string& agent, uint16_t minor)
      : path_(path), minor_(minor), listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_un address = Address(path);
    REQUIRE(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
            0);
    REQUIRE(::listen(listener_.get(), 1) == 0);
    thread_ = std::thread([this, agent] { Run(agent); });
  }
  ~OlderAgent() {
    thread_.join();  // The thread ends when its client has gone.
    ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  static sockaddr_un Address(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    return address;
  }

  void Run(const std::string& agent) {
    const Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const Descriptor server(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = Address(agent);
    if (::connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
        0) {
      return;
    }
    std::array<pollfd, 2> fds = {pollfd{client.get(), POLLIN, 0}, pollfd{server.get(), POLLIN, 0}};
    for (;;) {
      ::poll(fds.data(), fds.size(), -1);
      if (fds[0].revents != 0 && !Pass(client.get(), server.get(), false)) return;
      if (fds[1].revents != 0 && !Pass(server.get(), client.get(), true)) return;
    }
  }

  // Passes on what has come, with its descriptors. Returns false if no more will come.
  bool Pass(int from, int to, bool by_agent) {
    std::array<std::byte, 65536> bytes;
    iovec part{bytes.data(), bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * shm::kDescriptorsMax)> control;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t count = ::recvmsg(from, &header, MSG_CMSG_CLOEXEC);
    if (count <= 0) return false;
    // This is the Welcome. Its status, major and minor version come first.
    constexpr size_t kMinorOffset = shm::kMessageHeaderBytes + 6;
    if (by_agent && !std::exchange(welcomed_, true)) {
      std::memcpy(bytes.data() + kMinorOffset, &minor_, sizeof(minor_));
    }
    part.iov_len = static_cast<size_t>(count);
    if (header.msg_controllen == 0) header.msg_control = nullptr;
    const bool sent = ::sendmsg(to, &header, MSG_NOSIGNAL) == count;
    for (cmsghdr* item = CMSG_FIRSTHDR(&header); item; item = CMSG_NXTHDR(&header, item)) {
      for (size_t i = 0; i < (item->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
        ::close(fd);
      }
    }
    return sent;
  }

  const std::string path_;
  const uint16_t minor_;
  const Descriptor listener_;
  bool welcomed_ = false;
  std::thread thread_;
};

constexpr uint16_t kBeforeCollectives = shm::kCollectivesMinor - 1;

TEST_CASE("Ranks that know tables of lengths sum beside ranks that do not") {
  const bool ranks_sum = GENERATE(false, true);
  const bool in_place = GENERATE(false, true);
  const size_t count = GENERATE(size_t{10}, size_t{700'001});
  CAPTURE(ranks_sum, in_place, count);
  const TestDirectory directory;
  FakeAgent agent(ranks_sum ? SummingOptions(directory, 3) : AgentOptions(directory, 3));
  const OlderAgent older(directory.Path("older.sock"), agent.socket_path(), kBeforeCollectives);
  std::vector<TestClient> clients;
  clients.emplace_back(agent.socket_path(), 0);
  clients.emplace_back(older.path(), 1);
  clients.emplace_back(agent.socket_path(), 2);
  talweg_tensor tensor = 0;
  for (const TestClient& client : clients) {
    REQUIRE(client.status() == TALWEG_OK);
    tensor = in_place ? DeclareInPlace(client, count) : Declare(client, count);
  }
  for (int32_t round = 1; round <= 4; ++round) {
    std::vector<int32_t> expected(count);
    for (int32_t i = 0; i < 3; ++i) {
      std::vector<int32_t> values(count);
      std::iota(values.begin(), values.end(), 1000 * i + round);
      for (size_t k = 0; k < count; ++k) expected[k] += values[k];
      Push(clients[static_cast<size_t>(i)], tensor, values.data());
    }
    for (const TestClient& client : clients) {
      CHECK((Take<int32_t>(client, tensor, static_cast<talweg_round>(round), count) == expected));
    }
  }
}

TEST_CASE("A client refuses what an older agent does not know, names its version and goes on") {
  const bool ranks_sum = GENERATE(false, true);
  const TestDirectory directory;
  FakeAgent agent(ranks_sum ? SummingOptions(directory, 1) : AgentOptions(directory, 1));
  const OlderAgent older(directory.Path("older.sock"), agent.socket_path(), kBeforeCollectives);
  const TestClient client(older.path(), 0);
  REQUIRE(client.status() == TALWEG_OK);
  talweg_tensor tensor = 0;
  talweg_collective collective{};
  collective.struct_bytes = sizeof(collective);
  collective.dtype = TALWEG_I32;
  collective.op = TALWEG_COPY;
  collective.gives = TALWEG_SHARE_OWN;
  collective.gets = TALWEG_SHARE_WHOLE;
  collective.element_count = 4;
  const auto declare = [&] {
    return talweg_declare_collective(client.get(), "t", &collective, 0, kGenerousNs, &tensor);
  };
  CHECK(declare() == TALWEG_UNSUPPORTED);
  CHECK_THAT(talweg_last_error(), Contains("'t'") && Contains("version 1.4"));
  collective.op = TALWEG_SUM;
  collective.gives = TALWEG_SHARE_WHOLE;
  collective.element_count = 0;
  CHECK(declare() == TALWEG_UNSUPPORTED);
  collective.element_count = 4;
  collective.encoding = TALWEG_TWICE;
  CHECK(declare() == TALWEG_UNSUPPORTED);
  CHECK_THAT(talweg_last_error(), Contains("encodings from 1.11 on"));
  collective.encoding = TALWEG_PLAIN;
  const uint32_t self = 0;  // The group is all ranks of the job.
  collective.ranks = &self;
  collective.rank_count = 1;
  REQUIRE(declare() == TALWEG_OK);

  const std::vector<int32_t> values = {1, 2, 3, 4};
  uint64_t bytes = 8;
  talweg_round round = 0;
  const auto push = [&](uint64_t signature) {
    return talweg_push_parts(client.get(), tensor, values.data(), &bytes, signature,
                             TALWEG_DECLARED_PRIORITY, kGenerousNs, &round);
  };
  CHECK(push(0) == TALWEG_UNSUPPORTED);
  CHECK_THAT(talweg_last_error(), Contains("not full") && Contains("agent's release"));
  bytes = 16;
  for (const uint64_t signature : {uint64_t{0}, uint64_t{77}}) {
    REQUIRE(push(signature) == TALWEG_OK);
    uint64_t length = 0;
    CHECK(talweg_wait_lengths(client.get(), tensor, round, &length, kGenerousNs) == TALWEG_OK);
    CHECK(length == 16);
    CHECK((Take<int32_t>(client, tensor, round, 4) == values));
  }
  CHECK(agent.seen().counters.protocol_errors == 0);
}

}  // namespace
}  // namespace talweg::c
