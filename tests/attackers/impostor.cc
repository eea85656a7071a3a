// SPDX-License-Identifier: Apache-2.0
//
// A member of one job that tries to pass for a member of another, for tests.
//
//   impostor SCHEDULER none|keyed|tls tcp|libfabric
//   impostor SCHEDULER none|keyed|tls tcp|libfabric|local left|lost|over
//
// It joins a job of its own, and gets its own keys with the view. With them it connects to the
// first aggregator and says Hello several times: in its own name, in the name of node 1 of the
// previous job, and in that name with the address changed to it. Over libfabric it says Hello once
// more in its own name, after it has left its job. It prints how each ended: "answered",
// "refused" or "closed" and why.
//
// In the second form it is one of two members of its job. It leaves the job, is lost, or its job
// ends. Then it says Hello in its own name in several epochs, with its keys of these, also of later
// ones than there have been.
#include <poll.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "libs/runtime/clock.h"
#include "libs/transport/local/local_transport.h"
#include "libs/transport/network/network.h"
#include "libs/transport/proof/data_key.h"
#include "libs/view/placement.h"
#include "libs/wire/frames.h"
#include "tests/attackers/lone_member.h"

namespace talweg {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

class Conversation final : public transport::EventSink {
 public:
  explicit Conversation(transport::Transport* transport) : transport_(transport) {}

  // Returns how an aggregator at that address answers this Hello.
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
  void OnFrame(ConnectionId, std::span<const std::byte> bytes) override {
    const auto parsed = wire::ParseFrame(bytes);
    const auto* frame = std::get_if<wire::Frame>(&parsed);
    const auto* welcomes =
        frame == nullptr ? nullptr : std::get_if<std::vector<wire::Welcome>>(&frame->entries);
    const bool is_refused = welcomes != nullptr && !welcomes->empty() &&
                            welcomes->front().status != wire::WelcomeStatus::kOk;
    outcome_ = is_refused ? "refused: " + std::string(welcomes->front().text) : "answered";
  }
  void OnWriteDone(ConnectionId, uint64_t) override {}

 private:
  transport::Transport* const transport_;
  std::optional<std::string> outcome_;
};

// Returns the address with another member in place of the one that its key belongs to.
std::string WithMember(const std::string& address, const transport::PeerIdentity& member) {
  const size_t key = address.rfind('/') + 1;
  auto parsed = transport::ParseAddressKey(address.substr(key));
  if (!parsed || !parsed->identity) return "";
  parsed->identity = member;
  return address.substr(0, key) + parsed->ToString();
}

wire::Hello HelloOf(const view::View& view, const view::MemberIdentity& self) {
  return {.member = self,
          .rank_count = 1,
          .view_digest = view::PlacementDigest(view),
          .job_name = "impostor",
          .node_name = "impostor"};
}

absl::StatusOr<std::unique_ptr<transport::Transport>> NewTransport(const std::string& setting,
                                                                   const std::string& carrier,
                                                                   const runtime::Clock* clock) {
  if (carrier == "local") return transport::NewLocalTransport({}, clock, nullptr);
  return transport::NewNetworkTransport({.data_security = setting, .data_transport = carrier},
                                        clock, nullptr);
}

// Comes back after it has departed in that `way`.
int ComeBack(const std::string& scheduler, const std::string& setting, const std::string& carrier,
             const std::string& way) {
  const view::MemberIdentity self = {NodeRank(0), Incarnation(0x1234)};
  auto member = std::make_unique<LoneMember>(scheduler, setting, "impostor", self, 2);
  auto other = std::make_unique<LoneMember>(
      scheduler, setting, "impostor", view::MemberIdentity{NodeRank(1), Incarnation(0x5678)}, 2);
  if (!member->WaitForView() || !other->WaitForView()) return 1;
  const view::View view = member->view();
  std::map<uint64_t, std::string> addresses;
  for (const uint64_t ahead : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, uint64_t{1} << 60}) {
    const uint64_t epoch = view.epoch.value() + ahead;
    addresses[epoch] =
        transport::SelectAddress(member->AddressIn(Epoch(epoch)), carrier == "local");
  }
  const runtime::MonotonicClock clock;
  auto transport = NewTransport(setting, carrier, &clock);
  if (!transport.ok()) return 1;
  Conversation conversation(transport->get());
  const wire::Hello own = HelloOf(view, self);
  const auto say = [&](const std::string& address, uint64_t epoch) {
    return conversation.Say(address, own, view.job, Epoch(epoch));
  };
  const std::string& present = addresses.begin()->second;
  std::printf("before: %s\n", say(present, view.epoch.value()).c_str());
  if (way != "lost") member->Leave();
  if (way == "over") other->Leave();
  member.reset();
  // The aggregator hears of that a little later.
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (say(present, view.epoch.value()) == "answered" && std::chrono::steady_clock::now() < end) {
  }
  for (const auto& [epoch, address] : addresses) {
    std::printf("epoch %llu: %s\n", static_cast<unsigned long long>(epoch),
                say(address, epoch).c_str());
  }
  if (way != "over") other->Leave();
  return 0;
}

int Run(const std::string& scheduler, const std::string& setting, const std::string& carrier) {
  const view::MemberIdentity self = {NodeRank(0), Incarnation(0x1234)};
  LoneMember member(scheduler, setting, "impostor", self);
  if (!member.WaitForView()) return 1;
  const view::View& view = member.view();
  const std::string address = view.aggregators[0].data_address;
  const JobId victims(view.job.value() - 1);  // Ids ascend.
  const std::string forged = WithMember(
      address,
      {.job = victims, .epoch = Epoch(1), .node = NodeRank(1), .incarnation = Incarnation(0x5678)});
  if (forged.empty()) {
    std::printf("no key of its own in its view\n");
    return 1;
  }
  const runtime::MonotonicClock clock;
  auto transport = NewTransport(setting, carrier, &clock);
  if (!transport.ok()) return 1;
  Conversation conversation(transport->get());
  const wire::Hello own = HelloOf(view, self);
  std::printf("its own name: %s\n", conversation.Say(address, own, view.job, view.epoch).c_str());
  wire::Hello hello = own;
  hello.member = {NodeRank(1), Incarnation(0x5678)};
  hello.job_name = "default";
  std::printf("another member's name: %s\n",
              conversation.Say(address, hello, victims, Epoch(1)).c_str());
  std::printf("another member's address: %s\n",
              conversation.Say(forged, hello, victims, Epoch(1)).c_str());
  // Other transports let it in, and the aggregator answers.
  if (carrier != "libfabric") return 0;
  member.Leave();
  // The aggregator hears of that a little later.
  const auto end = std::chrono::steady_clock::now() + kPatience;
  std::string outcome;
  do {
    outcome = conversation.Say(address, own, view.job, view.epoch);
  } while (outcome == "answered" && std::chrono::steady_clock::now() < end);
  std::printf("its own name after it has left: %s\n", outcome.c_str());
  return 0;
}

}  // namespace
}  // namespace talweg

int main(int argc, char** argv) {
  if (argc == 5) return talweg::ComeBack(argv[1], argv[2], argv[3], argv[4]);
  if (argc != 4) return 2;
  return talweg::Run(argv[1], argv[2], argv[3]);
}
