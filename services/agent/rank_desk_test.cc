// SPDX-License-Identifier: Apache-2.0
#include "services/agent/rank_desk.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "services/agent/memory_order.h"
#include "services/agent/tensor_memory.h"

namespace talweg::agent {
namespace {

using pipeline::Status;
using pipeline::TensorIndex;
using Log = std::vector<std::string>;

// Writes down what the ranks are told. Its memory has still to be given.
class RecordingServer final : public shm::RankServer {
 public:
  Log log;

  const shm::RankServerConfig& config() const override { return config_; }
  int PollRings(shm::RankEventSink&) override { return 0; }
  int PollSockets(shm::RankEventSink&) override { return 0; }
  int WaitDescriptor() const override { return -1; }
  bool PrepareToSleep(Until) override { return true; }
  void Beat() override {}
  void Welcome(shm::RankConnectionId, const shm::WelcomeData&) override {}
  void Refuse(shm::RankConnectionId, shm::RankStatus, std::string_view) override {}
  shm::Outcome<shm::ContributionBuffer> AllocateContribution(shm::RankConnectionId,
                                                             uint64_t bytes) override {
    return shm::ContributionBuffer{{1, 0}, Bytes(bytes), {given_, 0, bytes}};
  }
  shm::Outcome<shm::ResultBuffer> AllocateOnePlace(shm::RankConnectionId, uint64_t bytes) override {
    return AllocateResult(bytes);
  }
  shm::Outcome<shm::SharedPlace> PlanContribution(const shm::BufferShape&, bool) override {
    return shm::SharedPlace{};
  }
  shm::Outcome<shm::Location> PlaceContribution(shm::RankConnectionId,
                                                const shm::SharedPlace&) override {
    return shm::Location{};
  }
  shm::Outcome<shm::ResultBuffer> AllocateResult(uint64_t bytes) override {
    return shm::ResultBuffer{{2, 0}, Bytes(bytes), {given_, 0, bytes}};
  }
  void DropTensorMemory() override {}
  void ReplyDeclared(shm::RankConnectionId, shm::RequestId request,
                     const shm::DeclaredData& data) override {
    log.push_back("declared " + std::to_string(request.value()) + " at round " +
                  std::to_string(data.completed_round.value()));
  }
  void RefuseDeclaration(shm::RankConnectionId, shm::RequestId request, shm::RankStatus,
                         std::string_view text) override {
    log.push_back("refused " + std::to_string(request.value()) + ": " + std::string(text));
  }
  void ReplyExported(shm::RankConnectionId, shm::RequestId, const shm::Exported&) override {}
  void ReplyUnexported(shm::RankConnectionId, shm::RequestId, const shm::Unexported&) override {}
  void ReplyPlaced(shm::RankConnectionId, shm::RequestId, const shm::Placed&) override {}
  void PublishEventsLost(shm::RankConnectionId) override {}
  void Garbage(shm::RankConnectionId, const std::string&, shm::RankEventSink&) override {}
  uint64_t PublishStop(shm::RankConnectionId, uint64_t) override { return 0; }
  uint64_t StepsEnded(shm::RankConnectionId) override { return 0; }
  void PublishEpoch(Epoch) override {}
  void ReplyMembership(shm::RankConnectionId, shm::RequestId, const shm::RankMembership&) override {
  }
  void ReplyTold(shm::RankConnectionId, shm::RequestId, const shm::Told&) override {}
  void Renumber(shm::RankConnectionId, Rank, uint32_t, const shm::RankNumbers&) override {}
  void PublishCompletion(const Completion& completion) override {
    log.push_back("completed " + std::to_string(completion.round.value()));
  }
  void PublishArrival(shm::TensorIndex, uint64_t) override {}
  void FailAll(shm::RankStatus, std::string_view) override {}
  void Disconnect(shm::RankConnectionId, shm::RankStatus, std::string_view) override {}
  void Release(shm::RankConnectionId) override {}
  shm::RankServerCounters counters() const override { return {}; }

 private:
  class Given final : public shm::BackedLater {
    shm::Outcome<bool> Back(uint64_t, uint64_t) override { return true; }
    void BackAhead() override {}
  };
  std::span<std::byte> Bytes(uint64_t bytes) {
    return buffers_.emplace_back(std::vector<std::byte>(bytes));
  }

  const shm::RankServerConfig config_;
  const std::shared_ptr<Given> given_ = std::make_shared<Given>();
  std::vector<std::vector<std::byte>> buffers_;
};

class RecordingEvents final : public RankEvents {
 public:
  Log failures;
  std::vector<pipeline::Declaration> declared;

  void OnRankJoined(LocalRank, uint32_t) override {}
  void OnRanksAttached(bool) override {}
  void OnRanksReady(bool) override {}
  void OnRanksHaveState() override {}
  void OnRankDeclare(LocalRank, uint32_t, const pipeline::Declaration& declaration) override {
    declared.push_back(declaration);
  }
  void OnRankPush(const pipeline::Push&) override {}
  void OnRankLeft(LocalRank, bool, const std::string&) override {}
  void OnRankFailure(const std::string& text) override { failures.push_back(text); }
  void OnRankAtBoundary(LocalRank, uint64_t) override {}
  void OnRanksStop(std::vector<uint64_t>) override {}
  void OnRankFollows(LocalRank, uint32_t, Epoch) override {}
  std::string WhomItWaitsFor(TensorIndex, Round) const override { return ""; }
  const pipeline::AgentCore& Core() const override { return core_; }

 private:
  const pipeline::AgentCore core_{{.self = {NodeRank{0}, Incarnation{1}}, .job_name = "j"}};
};

class LateSource final : public MemorySource {
 public:
  void Ask(OrderNumber number, MemoryOrder) override { asked.push_back(number); }
  std::vector<OrderNumber> asked;
};

// Two ranks. Rank 0 has a tensor of its own, so that its agent sums it.
struct Fixture {
  Fixture() {
    for (uint64_t rank = 0; rank < 2; ++rank) {
      desk.OnRankHello(shm::RankConnectionId{rank + 1},
                       {.local_rank = LocalRank{static_cast<uint32_t>(rank)}});
    }
    MemoryOrder order;
    REQUIRE(memory.Allocate(TensorIndex{0}, spec, {}, &order).ok());
    REQUIRE(memory.OnAllocated(TensorIndex{0}).ok());
  }
  void Reply(uint32_t request, uint64_t held) {
    desk.Do(pipeline::DeclareReply{.local_rank = LocalRank{0},
                                   .request = request,
                                   .tensor = TensorIndex{0},
                                   .held = Round{held}});
  }
  void Complete(uint64_t round) {
    desk.Do(pipeline::CompleteRound{
        .tensor = TensorIndex{0}, .round = Round{round}, .status = Status::kAborted});
  }
  // The kernel answers.
  void Fill(const absl::Status& status = absl::OkStatus()) {
    for (const OrderNumber number : std::exchange(source.asked, {})) {
      orders.OnFilled(number, status);
    }
  }

  pipeline::TensorSpec spec = {
      .name = "w", .collective = Collective::Of(DType::kF32, Op::kSum, 100), .ranks = {Rank{0}}};
  RecordingServer server;
  RecordingEvents events;
  LateSource source;
  MemoryOrders orders{&source};
  AloneRegistrar registrar;
  TensorMemory memory{{.rank_count = 2}, &server, &registrar};
  RankDesk desk{2, "j", &server, &memory, &orders, &events};
};

TEST_CASE("RankDesk: a rank is told of a tensor when its contribution has memory", "[agent]") {
  Fixture f;
  f.Reply(5, 3);
  CHECK(f.source.asked.size() == 1);
  f.Reply(6, 3);  // The rank declares it once more. The same memory is for both.
  CHECK(f.source.asked.size() == 1);
  CHECK(f.server.log.empty());
  f.Fill();
  CHECK(f.server.log == Log{"declared 5 at round 3", "declared 6 at round 3"});
  f.Reply(7, 3);
  CHECK(f.server.log.back() == "declared 7 at round 3");
}

TEST_CASE("RankDesk: a rank that is told late hears of the rounds that ended meanwhile",
          "[agent]") {
  Fixture f;
  f.Reply(5, 3);
  f.Complete(4);
  CHECK(f.server.log == Log{"completed 4"});  // For other ranks.
  f.Complete(5);
  f.server.log.clear();
  f.Fill();
  CHECK(f.server.log == Log{"declared 5 at round 3", "completed 4", "completed 5"});
  f.server.log.clear();
  f.Complete(6);
  CHECK(f.server.log == Log{"completed 6"});
}

TEST_CASE("RankDesk: without memory for its contribution a rank is refused, and the node fails",
          "[agent]") {
  Fixture f;
  f.Reply(5, 0);
  f.Fill(absl::ResourceExhaustedError("no memory"));
  CHECK(f.server.log == Log{"refused 5: no memory"});
  CHECK(f.events.failures == Log{"no memory"});
}

TEST_CASE("RankDesk: a declaration carries where the rank wishes its memory", "[agent]") {
  Fixture f;
  const auto wishes = [&f](const shm::RankDeclaration& declaration) {
    f.desk.OnRankDeclare(shm::RankConnectionId{1}, shm::RequestId{5}, declaration);
    return f.events.declared.back().wishes;
  };
  using Wishes = pipeline::MemoryWishes;
  CHECK(wishes({.name = "w"}) == Wishes{});
  CHECK(wishes({.name = "w", .on_device = true}) == Wishes{.on_device = true});
  CHECK(wishes({.name = "w", .in_place = true}) == Wishes{.in_place = true});
  CHECK(wishes({.name = "w", .in_place = true, .one_place = true}) ==
        Wishes{.in_place = true, .one_place = true});
  // One place is a way of being in place.
  CHECK(wishes({.name = "w", .one_place = true}) == Wishes{});
}

TEST_CASE("RankDesk: only a node's single rank, while it is attached, has one place", "[agent]") {
  Fixture f;
  CHECK(f.desk.OnlyRank() == std::nullopt);
  RankDesk alone(1, "j", &f.server, &f.memory, &f.orders, &f.events);
  CHECK(alone.OnlyRank() == std::nullopt);
  alone.OnRankHello(shm::RankConnectionId{7}, {.local_rank = LocalRank{0}});
  CHECK(alone.OnlyRank() == shm::RankConnectionId{7});
  alone.OnRankGone(shm::RankConnectionId{7}, {.local_rank = LocalRank{0}, .clean = true});
  CHECK(alone.OnlyRank() == std::nullopt);
}

TEST_CASE("RankDesk: nobody is told when the rank has gone, or all ranks have", "[agent]") {
  Fixture f;
  f.Reply(5, 0);
  SECTION("the rank died") {
    f.desk.OnRankGone(shm::RankConnectionId{1}, {.local_rank = LocalRank{0}});
  }
  SECTION("the job has failed") { f.desk.Do(pipeline::FailJob{Status::kJobFailed, "why"}); }
  SECTION("other ranks come") { f.desk.Restart(); }
  f.Fill();
  f.Fill(absl::ResourceExhaustedError("no memory"));
  CHECK(f.server.log.empty());
  CHECK(f.events.failures.empty());
}

}  // namespace
}  // namespace talweg::agent
