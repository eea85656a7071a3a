// SPDX-License-Identifier: Apache-2.0
// Conformance of transports over TCP: connections that are cut after any number of bytes.
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/descriptor.h"
#include "libs/base/random.h"
#include "libs/transport/testing/harness.h"
#include "libs/transport/testing/test_port.h"

namespace talweg::transport {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The listener's address by way of another port of loopback.
std::string Through(const std::string& address, uint16_t port) {
  const size_t host = address.find("://") + 3;
  const size_t end = address.find('/', host);
  return address.substr(0, host) + "127.0.0.1:" + std::to_string(port) +
         (end == std::string::npos ? "" : address.substr(end));
}

// Where a connection is cut: before byte `after` of one direction, counted from 0.
struct Cut {
  bool to_server = true;
  size_t after = SIZE_MAX;
  bool resets = false;  // By RST, which drops what has not been read. Else by FIN.
};

// Hands one connection's bytes on, and cuts it.
class Forwarder {
 public:
  Forwarder(Harness* harness, std::string target, const Cut& cut)
      : harness_(harness), target_(std::move(target)), cut_(cut) {
    port_.Listen();
  }

  uint16_t port() const { return port_.port(); }
  size_t passed(bool to_server) const { return passed_[to_server ? 0 : 1]; }
  bool is_cut() const { return is_cut_; }
  // Whether both ends have hung up after the cut.
  bool is_over() const { return is_cut_ && hung_up_[0] && hung_up_[1]; }

  // Returns how much it has done.
  int PassOn() {
    if (!has_begun_) {
      pollfd waiting{port_.descriptor(), POLLIN, 0};
      if (poll(&waiting, 1, 0) <= 0) return 0;
      ends_[0] = port_.Accept();
      ends_[1] = Descriptor(harness_->ConnectRaw(target_));
      REQUIRE(ends_[1].valid());
      has_begun_ = true;
      return 1;
    }
    return PassOn(0) + PassOn(1);
  }
  std::vector<int> descriptors() const {
    if (!has_begun_) return {port_.descriptor()};
    std::vector<int> open;
    for (const size_t i : {0, 1}) {
      if (!hung_up_[i]) open.push_back(ends_[i].get());
    }
    return open;
  }

 private:
  // Hands on what end `from` has sent: 0 is the client's, 1 the server's.
  int PassOn(size_t from) {
    if (hung_up_[from]) return 0;
    std::vector<std::byte>& held = held_[from];
    int work = 0;
    if (held.empty()) {
      std::byte bytes[16 * 1024];
      const ssize_t got = recv(ends_[from].get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) return 0;
      ++work;
      if (got <= 0) {
        hung_up_[from] = true;
        if (!is_cut_) CutNow();
        return work;
      }
      if (is_cut_) return work;  // Nobody hears it any more.
      held.assign(bytes, bytes + got);
    }
    const bool to_server = from == 0;
    const size_t left = cut_.to_server == to_server
                            ? cut_.after - std::min(cut_.after, passed(to_server))
                            : SIZE_MAX;
    const ssize_t sent = send(ends_[1 - from].get(), held.data(), std::min(held.size(), left),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      passed_[from] += static_cast<size_t>(sent);
      held.erase(held.begin(), held.begin() + sent);
      ++work;
    }
    if (!held.empty() && static_cast<size_t>(std::max<ssize_t>(sent, 0)) == left) CutNow();
    return work;
  }

  void CutNow() {
    is_cut_ = true;
    for (const size_t i : {0, 1}) {
      held_[i].clear();
      if (cut_.resets) {
        const linger now{.l_onoff = 1, .l_linger = 0};
        setsockopt(ends_[i].get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        ends_[i] = Descriptor();
        hung_up_[i] = true;
      } else {
        shutdown(ends_[i].get(), SHUT_WR);
      }
    }
  }

  Harness* const harness_;
  const std::string target_;
  const Cut cut_;
  TestPort port_;
  std::array<Descriptor, 2> ends_;
  std::array<std::vector<std::byte>, 2> held_;
  std::array<size_t, 2> passed_ = {0, 0};
  std::array<bool, 2> hung_up_ = {false, false};
  bool has_begun_ = false;
  bool is_cut_ = false;
};

// The sizes of what is said: the client sends a frame, a write and a frame, and the server answers
// the second frame with a frame.
struct Sizes {
  size_t first;
  size_t write;
  size_t second;
  size_t reply;
};

// A client and a server that converse, over a new connection each time.
class Conversation {
 public:
  Conversation(Harness* harness, const Sizes& sizes)
      : harness_(harness),
        sizes_(sizes),
        client_{harness->NewTransport()},
        server_{harness->NewTransport()},
        source_(Pattern(77, sizes.write)),
        target_(sizes.write) {
    const auto address = server_.transport->Listen({});
    REQUIRE(address.ok());
    address_ = *address;
    auto from = client_.transport->Register(source_);
    auto to = server_.transport->Register(target_);
    REQUIRE(from.ok());
    REQUIRE(to.ok());
    from_ = *std::move(from);
    to_ = *std::move(to);
    server_.sink.on_frame = [this](ConnectionId connection, std::span<const std::byte> frame) {
      if (NumberOf(frame) == kSecond) {
        server_.transport->PostFrame(connection, FrameOf(kReply, sizes_.reply));
      }
    };
  }

  const std::string& address() const { return address_; }

  // Converses until all is said, or the connection is cut. Checks what has come. Returns the bytes
  // that have passed to the server and to the client.
  std::array<size_t, 2> Run(const Cut& cut, bool is_whole = false) {
    INFO("to the server: " << cut.to_server << ", after " << cut.after
                           << " bytes, RST: " << cut.resets);
    std::fill(target_.begin(), target_.end(), std::byte{0});
    client_.sink.frames.clear();
    server_.sink.frames.clear();
    const size_t ended = client_.sink.disconnected.size();
    Forwarder forwarder(harness_, address_, cut);
    const auto connection = client_.transport->Connect(Through(address_, forwarder.port()));
    REQUIRE(connection.ok());
    client_.transport->PostFrame(*connection, FrameOf(kFirst, sizes_.first));
    client_.transport->PostWrite(*connection, from_.Slice(0, source_.size()), to_.Ref(), 1);
    client_.transport->PostFrame(*connection, FrameOf(kSecond, sizes_.second));
    REQUIRE(Until(forwarder, [&] { return forwarder.is_cut() || !client_.sink.frames.empty(); }));
    const bool is_cut = forwarder.is_cut();
    const std::array<size_t, 2> passed = {forwarder.passed(true), forwarder.passed(false)};
    if (!is_cut) client_.transport->Close(*connection);
    // Both sides are told, each about this connection alone.
    REQUIRE(Until(forwarder, [&] {
      return forwarder.is_over() && client_.sink.disconnected.size() == ended + (is_cut ? 1 : 0) &&
             server_.sink.disconnected.size() == server_.sink.accepted.size();
    }));
    // What came before the RST may still wait to be read.
    if (cut.resets) PollUntilIdle({&client_, &server_});
    if (is_cut) CHECK(client_.sink.disconnected.back().first == *connection);
    CheckWhatHasCome(*connection);
    CHECK((!is_whole || !is_cut));
    if (!is_cut) CHECK(server_.sink.frames.size() == 2);
    return passed;
  }

  // No event of a connection comes late.
  void End() {
    PollUntilIdle({&client_, &server_});
    CHECK(server_.sink.disconnected.size() == server_.sink.accepted.size());
  }

 private:
  static constexpr uint64_t kFirst = 11;
  static constexpr uint64_t kSecond = 12;
  static constexpr uint64_t kReply = 13;

  template <typename Done>
  bool Until(Forwarder& forwarder, const Done& done) {
    const auto deadline = SteadyClock::now() + std::chrono::minutes(1);
    while (!done()) {
      const int work = client_.Poll() + server_.Poll() + forwarder.PassOn();
      if (work > 0) continue;
      if (SteadyClock::now() > deadline) return false;
      if (!client_.transport->PrepareToSleep() || !server_.transport->PrepareToSleep()) continue;
      std::vector<pollfd> waits = {{client_.transport->WaitDescriptor(), POLLIN, 0},
                                   {server_.transport->WaitDescriptor(), POLLIN, 0}};
      for (const int each : forwarder.descriptors()) waits.push_back({each, POLLIN, 0});
      poll(waits.data(), waits.size(), 20);
    }
    return true;
  }

  void CheckWhatHasCome(ConnectionId connection) {
    const std::array said = {FrameOf(kFirst, sizes_.first), FrameOf(kSecond, sizes_.second)};
    const auto& frames = server_.sink.frames;
    REQUIRE(frames.size() <= said.size());
    for (size_t i = 0; i < frames.size(); ++i) {
      CHECK(frames[i].first == server_.sink.accepted.back());
      CHECK(frames[i].second == said[i]);
    }
    // The bytes of a write come before the frame after it. Others are its own, or have not come.
    const bool has_landed = frames.size() == 2;
    size_t wrong = 0;
    for (size_t i = 0; i < target_.size(); ++i) {
      const bool is_own = target_[i] == source_[i];
      wrong += is_own || (!has_landed && target_[i] == std::byte{0}) ? 0 : 1;
    }
    CHECK(wrong == 0);
    REQUIRE(client_.sink.frames.size() <= 1);
    for (const auto& [of, frame] : client_.sink.frames) {
      CHECK(of == connection);
      CHECK(frame == FrameOf(kReply, sizes_.reply));
    }
  }

  Harness* const harness_;
  const Sizes sizes_;
  Endpoint client_;
  Endpoint server_;
  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
  Region from_;
  Region to_;
  std::string address_;
};

// Whether the connections of this transport are TCP's alone, so that bytes can be handed on.
bool IsTcpAlone(Harness& harness, const std::string& address) {
  return address.find("tcp://") != std::string::npos && address.find(',') == std::string::npos &&
         Descriptor(harness.ConnectRaw(address)).valid();
}

TEST_CASE("Transport: a connection that is cut after any byte delivers whole frames alone",
          "[transport]") {
  const auto harness = NewHarness();
  Conversation conversation(harness.get(), {.first = 64, .write = 200, .second = 100, .reply = 50});
  if (!IsTcpAlone(*harness, conversation.address())) return;
  const std::array<size_t, 2> total = conversation.Run({}, /*is_whole=*/true);
  for (const bool to_server : {true, false}) {
    for (size_t after = 0; after < total[to_server ? 0 : 1]; ++after) {
      conversation.Run({.to_server = to_server, .after = after});
      if (after % 16 == 0) conversation.Run({}, /*is_whole=*/true);
    }
  }
  conversation.Run({}, /*is_whole=*/true);
  conversation.End();
}

TEST_CASE("Transport: a long connection that is cut somewhere delivers whole frames alone",
          "[transport]") {
  const auto harness = NewHarness();
  Conversation conversation(harness.get(),
                            {.first = 60'000, .write = 400'000, .second = 30'000, .reply = 60'000});
  if (!IsTcpAlone(*harness, conversation.address())) return;
  const std::array<size_t, 2> total = conversation.Run({}, /*is_whole=*/true);
  Random random(21);
  for (int i = 0; i < 60; ++i) {
    const bool to_server = !random.OneIn(3);
    conversation.Run({.to_server = to_server,
                      .after = random.Below(total[to_server ? 0 : 1]),
                      .resets = random.OneIn(2)});
  }
  conversation.Run({}, /*is_whole=*/true);
  conversation.End();
}

}  // namespace
}  // namespace talweg::transport
