// SPDX-License-Identifier: Apache-2.0
// A member of one job who would pass for a member of another, for tests.
//
//   impostor SCHEDULER none|keyed|tls
//
// Joins a job of its own, gets its own keys with the view, connects to the first aggregator with
// them, and says Hello: in its own name, in that of node 1 of job 1, and in that name with the
// address changed to it. Prints what came of each: "answered", or "closed".
#include <poll.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include "libs/runtime/clock.h"
#include "libs/transport/tcp/tcp_transport.h"
#include "libs/view/placement.h"
#include "libs/wire/frames.h"
#include "tests/attackers/lone_member.h"

namespace talweg {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

class Conversation final : public transport::EventSink {
 public:
  explicit Conversation(transport::Transport* transport) : transport_(transport) {}

  // What an aggregator at that address makes of this Hello.
  std::string Say(const std::string& address, const wire::Hello& hello, JobId job, Epoch epoch) {
    outcome_.reset();
    const auto connection = transport_->Connect(address);
    if (!connection.ok()) return std::string(connection.status().message());
    wire::FrameWriter writer(wire::FrameType::kHello, job, epoch);
    writer.Add(hello);
    transport_->PostFrame(*connection, writer.Take());
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!outcome_ && std::chrono::steady_clock::now() < end) {
      if (transport_->Poll(*this, 64) > 0 || !transport_->PrepareToSleep()) continue;
      pollfd descriptor{transport_->WaitDescriptor(), POLLIN, 0};
      poll(&descriptor, 1, 1000);
    }
    transport_->Close(*connection);
    return outcome_.value_or("nothing");
  }

  void OnAccepted(ConnectionId) override {}
  void OnConnected(ConnectionId) override {}
  void OnDisconnected(ConnectionId, const std::string& reason) override {
    outcome_ = "closed: " + reason;
  }
  void OnFrame(ConnectionId, std::span<const std::byte>) override { outcome_ = "answered"; }
  void OnWriteDone(ConnectionId, uint64_t) override {}

 private:
  transport::Transport* const transport_;
  std::optional<std::string> outcome_;
};

int Run(const std::string& scheduler, const std::string& setting) {
  const MemberIdentity self = {NodeRank(0), Incarnation(0x1234)};
  const LoneMember member(scheduler, setting, "impostor", self);
  if (!member.is_in()) return 1;
  const View& view = member.view();
  const std::string address = view.aggregators[0].data_address;
  auto parsed = transport::ParseTcpAddress(address);
  if (!parsed.ok() || !parsed->identity) {
    std::printf("no key of its own in its view\n");
    return 1;
  }
  const MonotonicClock clock;
  auto transport = transport::NewTcpTransport({.security = parsed->security}, &clock, nullptr);
  if (!transport.ok()) return 1;
  Conversation conversation(transport->get());
  wire::Hello hello = {.member = self,
                       .rank_count = 1,
                       .view_digest = PlacementDigest(view),
                       .job_name = "impostor",
                       .node_name = "impostor"};
  std::printf("its own name: %s\n", conversation.Say(address, hello, view.job, view.epoch).c_str());
  hello.member = {NodeRank(1), Incarnation(0x5678)};
  hello.job_name = "default";
  std::printf("another member's name: %s\n",
              conversation.Say(address, hello, JobId(1), Epoch(1)).c_str());
  parsed->identity = transport::PeerIdentity{
      .job = JobId(1), .epoch = Epoch(1), .node = NodeRank(1), .incarnation = Incarnation(0x5678)};
  std::printf("another member's address: %s\n",
              conversation.Say(parsed->ToString(), hello, JobId(1), Epoch(1)).c_str());
  return 0;
}

}  // namespace
}  // namespace talweg

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return talweg::Run(argv[1], argv[2]);
}
