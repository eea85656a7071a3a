// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/pushes.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/signature_text.h"
#include "libs/pipeline/core_parts_fixture.h"

namespace talweg::pipeline {
namespace {

using Catch::Contains;
using testing::CoreParts;
using testing::MakeView;
using testing::Spec;

constexpr int64_t kSecond = 1'000'000'000;

TensorSpec Patient(TensorSpec spec) {
  spec.collective.patience_ms = 20;
  return spec;
}

struct Pushing : CoreParts {
  explicit Pushing(uint32_t rank_count = 2, const view::View& view = MakeView(1, {2, 1}, 1))
      : CoreParts(view, rank_count) {
    MakeOwnersReady();
  }
  // A node that is the whole job.
  static Pushing Alone(uint32_t rank_count) {
    return Pushing(rank_count, MakeView(1, {rank_count}, 0));
  }

  struct Given {
    int32_t priority = 0;
    RoundSignature signature = 0;
    std::vector<uint32_t> lengths;
  };
  void Push(uint32_t rank, const AgentTensor& tensor, uint64_t round, Given given) {
    pushes.OnPush({.rank = LocalRank{rank},
                   .tensor = tensor.index,
                   .round = Round{round},
                   .priority = given.priority,
                   .signature = given.signature,
                   .lengths = given.lengths},
                  now_ns, out);
    if (!views.has_failed()) tensors.CheckInvariants();
  }
  void Push(uint32_t rank, const AgentTensor& tensor, uint64_t round = 1) {
    Push(rank, tensor, round, {});
  }
  // Returns the text with which the only rank that broke the rules has failed.
  std::string Refused() const {
    const auto failed = Of<FailRank>();
    REQUIRE(failed.size() == 1);
    return failed[0].text;
  }
  void Tick() { pushes.OnTick(now_ns, out); }

  int64_t now_ns = kSecond;
  Pushes pushes{&config, &views, &ranks, &tensors, &quiesce, &rounds, &failures, &timer};
};

TEST_CASE("Pushes: a round is queued when all local ranks have pushed it", "[pipeline]") {
  Pushing p;
  AgentTensor& tensor = p.Open(Spec("w", 8));
  p.Push(1, tensor, 1, {.priority = -4});
  CHECK(tensor.round_state() == RoundState::kFilling);
  CHECK(p.queue.waiting_count() == 0);
  p.Push(0, tensor, 1, {.priority = -7});
  CHECK(tensor.round_state() == RoundState::kTravelling);
  CHECK(p.queue.waiting_count() == 1);
  CHECK(tensor.priority == -4);  // It is as urgent as its most urgent push.
  CHECK(tensor.given.lengths == std::vector<uint64_t>{32});
}

TEST_CASE("Pushes: the tensor that was ready first is first, whichever rank pushed first",
          "[pipeline]") {
  Pushing p;
  AgentTensor& first = p.Open(Spec("a", 8));
  AgentTensor& second = p.Open(Spec("b", 8));
  p.Push(0, first);
  p.Push(0, second);
  p.Push(1, second);
  p.Push(1, first);
  CHECK(second.order < first.order);
}

TEST_CASE("Pushes: the first push of a dead tensor's round ends it for all local ranks",
          "[pipeline]") {
  Pushing p;
  AgentTensor& tensor = p.Open(Spec("w", 8, DType::kF32, Op::kCopy, 1));
  tensor.is_dead = true;
  SECTION("at once") {
    p.Push(1, tensor);
    REQUIRE(p.Of<CompleteRound>().size() == 1);
    CHECK(p.Of<CompleteRound>()[0].round == Round{1});
    CHECK(p.Of<CompleteRound>()[0].status == Status::kAborted);
    CHECK_THAT(p.Of<CompleteRound>()[0].text, Contains("one of its ranks is gone"));
    p.out.clear();
    p.Push(0, tensor);
    REQUIRE(p.Of<CompleteRound>().size() == 1);
    CHECK(p.Of<CompleteRound>()[0].status == Status::kAborted);
  }
  SECTION("not before its primary owner has decided about the round before") {
    tensor.AwaitDecision({});
    p.Push(1, tensor);
    CHECK(p.Of<CompleteRound>().empty());
    CHECK(tensor.failed_status == Status::kOk);
  }
}

TEST_CASE("Pushes: a push that breaks the rules fails its rank, with the reason", "[pipeline]") {
  Pushing p;
  AgentTensor& tensor = p.Open(Spec("w", 8));
  SECTION("of a tensor that there is not") {
    p.pushes.OnPush({.rank = LocalRank{0}, .tensor = TensorIndex{9}}, p.now_ns, p.out);
    CHECK_THAT(p.Refused(), Contains("rank 0 (local rank 0 of node 0, pid 1) pushed tensor 9, "
                                     "which it has not been told of; declare it first"));
  }
  SECTION("of a tensor that no rank has been told of") {
    tensor.told.assign(2, false);
    p.Push(0, tensor);
    CHECK_THAT(p.Refused(), Contains("which it has not been told of"));
  }
  SECTION("of a round to come") {
    p.Push(0, tensor, 2);
    CHECK_THAT(p.Refused(), Contains("pushed round 2 of tensor 'w'; the next is 1"));
  }
  SECTION("of a round that is over") {
    tensor.held = {.round = Round{1}, .sum_epoch = Epoch{1}};
    p.Push(0, tensor, 1);
    CHECK_THAT(p.Refused(), Contains("pushed round 1 of tensor 'w'; the next is 2"));
  }
  SECTION("twice") {
    p.Push(0, tensor);
    p.Push(0, tensor);
    CHECK_THAT(p.Refused(), Contains("again before round 1 was taken"));
    CHECK(tensor.pushed_count == 1);
  }
  SECTION("with lengths of parts that there are not") {
    p.Push(0, tensor, 1, {.lengths = {32, 0}});
    CHECK_THAT(p.Refused(), Contains("with 2 lengths for 1 part"));
  }
  SECTION("with more than a part holds") {
    p.Push(0, tensor, 1, {.lengths = {36}});
    CHECK_THAT(p.Refused(), Contains("a part of 36 bytes; a part has at most 32"));
  }
  SECTION("with half an element") {
    p.Push(0, tensor, 1, {.lengths = {30}});
    CHECK_THAT(p.Refused(), Contains("in elements of 4"));
  }
  SECTION("by a rank that takes no part") {
    TensorSpec some = Spec("s", 8);
    some.ranks = {Rank{0}, Rank{2}};
    p.Push(1, p.Open(some));
    CHECK_THAT(p.Refused(), Contains("which it takes no part in: f32[8] sum among ranks 0, 2"));
  }
  SECTION("by a rank that waits at the end of a step") {
    p.quiesce.Ask(7, 5, p.out);
    p.quiesce.OnRankAtBoundary(LocalRank{0}, 5, p.out);
    p.Push(0, tensor);
    CHECK_THAT(p.Refused(), Contains("while it waits at the end of step 5"));
  }
  CHECK(p.queue.waiting_count() == 0);
}

TEST_CASE("Pushes: a side tensor is pushed also at the end of a step", "[pipeline]") {
  Pushing p;
  TensorSpec spec = Spec("w", 8);
  spec.collective.side = true;
  spec.ranks = {Rank{0}, Rank{1}, Rank{2}};
  AgentTensor& tensor = p.Open(spec);
  p.quiesce.Ask(7, 5, p.out);
  p.quiesce.OnRankAtBoundary(LocalRank{0}, 5, p.out);
  p.Push(0, tensor);
  CHECK(p.Of<FailRank>().empty());
  CHECK(tensor.pushed_count == 1);
}

TEST_CASE("Pushes: a push of a round that has failed is answered, and breaks no rule",
          "[pipeline]") {
  Pushing p;
  AgentTensor& tensor = p.Open(Spec("w", 8));
  const auto answer = [&](uint64_t round) {
    p.out.clear();
    p.Push(0, tensor, round);
    CHECK(p.Of<FailRank>().empty());
    REQUIRE(p.Of<CompleteRound>().size() == 1);
    CHECK(p.Of<CompleteRound>()[0].round == Round{round});
    return p.Of<CompleteRound>()[0];
  };
  SECTION("the tensor has failed") {
    p.failures.FailTensor(tensor, Status::kMismatch, "why", p.out);
    CHECK(answer(1).status == Status::kMismatch);
    CHECK(answer(7).text == "why");
  }
  SECTION("the round was aborted, and the one after it") {
    p.rounds.Abort(tensor, Status::kAborted, "why", p.out);
    p.rounds.Abort(tensor, Status::kAborted, "why", p.out);
    CHECK(answer(1).status == Status::kAborted);
    CHECK(answer(2).text == "round 2 of tensor 'w' was aborted");
    CHECK(tensor.pushed_count == 0);
    p.out.clear();
    p.Push(0, tensor, 3);
    CHECK(p.out.empty());
    CHECK(tensor.pushed_count == 1);
  }
}

TEST_CASE("Pushes: when the job has failed nothing is taken", "[pipeline]") {
  Pushing p;
  AgentTensor& tensor = p.Open(Spec("w", 8));
  p.failures.FailJob("why", p.out);
  p.out.clear();
  p.Push(0, tensor);
  CHECK(p.out.empty());
  CHECK(tensor.pushed_count == 0);
}

TEST_CASE("Pushes: ranks of a node that give different things are both named", "[pipeline]") {
  Pushing p;
  const Collective eight = Spec("w", 8).collective;
  const Collective other = Spec("w", 8, DType::kF64).collective;
  SECTION("they say different things") {
    AgentTensor& tensor = p.Open(Spec("w", 8));
    p.Push(0, tensor, 1, {.signature = SignatureOf(eight, 8)});
    p.Push(1, tensor, 1, {.signature = SignatureOf(other, 8)});
    CHECK(tensor.given.disagreement ==
          "rank 0 (local rank 0 of node 0, pid 1) gives f32[8] sum, "
          "rank 1 (local rank 1 of node 0, pid 1) gives f64[8] sum");
    CHECK(tensor.contributed());  // The owner tells the other nodes.
  }
  SECTION("they give different lengths to what is combined") {
    AgentTensor& tensor = p.Open(Spec("w", 8));
    p.Push(0, tensor, 1, {.lengths = {32}});
    p.Push(1, tensor, 1, {.lengths = {16}});
    CHECK_THAT(tensor.given.disagreement,
               Contains("gives 32 bytes, ") && Contains("gives 16 bytes"));
  }
  SECTION("they give different lengths to their own parts: they agree") {
    TensorSpec spec = Spec("w", 8, DType::kF32, Op::kCopy);
    spec.collective.gives = Share::kOwn;
    spec.ranks = {Rank{0}, Rank{1}, Rank{2}};
    AgentTensor& tensor = p.Open(spec);
    p.Push(0, tensor, 1, {.lengths = {32, 0, 0}});
    p.Push(1, tensor, 1, {.lengths = {0, 16, 0}});
    CHECK(tensor.given.disagreement.empty());
    CHECK(tensor.given.lengths == std::vector<uint64_t>{32, 16, 0});
  }
}

TEST_CASE("Pushes: a rank that has no more data agrees with whatever comes", "[pipeline]") {
  Pushing p(3, MakeView(1, {3, 1}, 1));
  AgentTensor& tensor = p.Open(Spec("w", 8));
  const Collective eight = Spec("w", 8).collective;
  const Collective other = Spec("w", 8, DType::kF64).collective;
  p.Push(0, tensor, 1, {.signature = kFitsAll});
  p.Push(1, tensor, 1, {.signature = SignatureOf(eight, 8)});
  CHECK(tensor.given.signature == SignatureOf(eight, 8));
  SECTION("all others say the same") {
    p.Push(2, tensor, 1, {.signature = SignatureOf(eight, 8)});
    CHECK(tensor.given.disagreement.empty());
  }
  SECTION("two others disagree: these are named") {
    p.Push(2, tensor, 1, {.signature = SignatureOf(other, 8)});
    CHECK_THAT(tensor.given.disagreement,
               Contains("rank 1 (") && Contains("rank 2 (") && !Contains("rank 0 ("));
  }
}

TEST_CASE("Pushes: a round that needs a rank which has left fails", "[pipeline]") {
  Pushing p;
  TensorSpec some = Spec("s", 8);
  some.ranks = {Rank{0}, Rank{1}};
  AgentTensor& tensor = p.Open(some);
  SECTION("it leaves after the other has pushed") {
    p.Push(0, tensor);
    p.ranks.Leave(LocalRank{1});
    p.pushes.OnRankLeft(p.out);
  }
  SECTION("it has left before") {
    p.ranks.Leave(LocalRank{1});
    p.pushes.OnRankLeft(p.out);
    CHECK(tensor.failed_status == Status::kOk);  // Nobody waits for it.
    p.Push(0, tensor);
  }
  CHECK(tensor.failed_status == Status::kAborted);
  CHECK(tensor.failed_text ==
        "rank 1 (local rank 1 of node 0, pid 1) has left the job, but rank 0 (local rank 0 of node "
        "0, pid 1) pushed round 1 of tensor 's', which needs it");
  CHECK_FALSE(p.views.has_failed());
}

TEST_CASE("Pushes: a round of every rank that needs a rank which has left fails the job",
          "[pipeline]") {
  Pushing p;
  AgentTensor& tensor = p.Open(Spec("w", 8));
  p.ranks.Leave(LocalRank{1});
  p.Push(0, tensor);
  CHECK_THAT(p.views.failed_text(), Contains("which needs every rank"));
}

TEST_CASE("Pushes: ranks that others here wait for are named at growing intervals", "[pipeline]") {
  Pushing p(3, MakeView(1, {3, 1}, 1));
  AgentTensor& tensor = p.Open(Spec("w", 8));
  p.Push(1, tensor);
  CHECK(p.timer.next_ns() == p.now_ns + p.config.waiting_first_ns);
  std::vector<int64_t> at;
  const int64_t pushed_ns = p.now_ns;
  for (int i = 0; i < 4; ++i) {
    p.now_ns = p.timer.next_ns();
    p.timer.Clear();
    p.out.clear();
    p.Tick();
    const auto notices = p.Of<LogWaiting>();
    REQUIRE(notices.size() == 1);
    CHECK(notices[0].what == LogWaiting::For::kLocalRanks);
    CHECK(notices[0].round == Round{1});
    CHECK(notices[0].missing == std::vector<uint32_t>{0, 2});
    CHECK(notices[0].waited_ns == static_cast<uint64_t>(p.now_ns - pushed_ns));
    at.push_back((p.now_ns - pushed_ns) / kSecond);
  }
  CHECK(at == std::vector<int64_t>{1, 2, 4, 8});
  p.out.clear();
  p.Tick();  // Too early for the next.
  CHECK(p.out.empty());
  p.Push(0, tensor);
  p.Push(2, tensor);
  p.out.clear();
  p.now_ns += 100 * kSecond;
  p.Tick();
  CHECK(p.Of<LogWaiting>().empty());
}

TEST_CASE("Pushes: a node that is alone goes on without late ranks when half are there",
          "[pipeline]") {
  Pushing p = Pushing::Alone(3);
  AgentTensor& tensor = p.Open(Patient(Spec("w", 8)));
  p.Push(0, tensor);
  CHECK(tensor.hurry_ns == 0);
  p.Push(2, tensor);
  CHECK(tensor.hurry_ns == p.now_ns + 20'000'000);
  CHECK(p.timer.next_ns() == tensor.hurry_ns);
  p.now_ns = tensor.hurry_ns - 1;
  p.Tick();
  CHECK_FALSE(tensor.contributed());
  p.now_ns += 1;
  p.Tick();
  CHECK(tensor.contributed());
  CHECK(tensor.LeavesOut(LocalRank{1}));
  CHECK_FALSE(tensor.LeavesOut(LocalRank{0}));
  // The late push is taken, and changes nothing of what is given.
  p.Push(1, tensor, 1, {.lengths = {16}});
  CHECK(p.Of<FailRank>().empty());
  CHECK(tensor.given.lengths == std::vector<uint64_t>{32});
  CHECK(tensor.given.disagreement.empty());
}

TEST_CASE("Pushes: a node with others waits for their owner's word", "[pipeline]") {
  Pushing p;
  AgentTensor& tensor = p.Open(Patient(Spec("w", 8)));
  p.Push(0, tensor);
  CHECK(tensor.hurry_ns == 0);
  p.pushes.OnHurry(tensor, Round{1}, p.now_ns);
  CHECK(tensor.hurry_ns == p.now_ns + 20'000'000);
  p.pushes.OnHurry(tensor, Round{1}, p.now_ns + 5);  // The first word counts.
  CHECK(tensor.hurry_ns == p.now_ns + 20'000'000);
  SECTION("the late rank comes in time") {
    p.Push(1, tensor);
    p.now_ns = tensor.hurry_ns;
    p.Tick();
    CHECK(tensor.left_out.empty());
  }
  SECTION("the tensor fails meanwhile") {
    p.failures.FailTensor(tensor, Status::kMismatch, "why", p.out);
    p.now_ns += kSecond;
    p.Tick();
    CHECK(tensor.left_out.empty());
  }
  SECTION("no rank has come: the node gives nothing, at full length") {
    AgentTensor& none = p.Open(Patient(Spec("x", 8)));
    p.pushes.OnHurry(none, Round{1}, p.now_ns);
    p.now_ns += 20'000'000;
    p.Tick();
    CHECK(none.contributed());
    CHECK(none.pushed_count == 0);
    CHECK(none.given.signature == kFitsAll);
    CHECK(none.given.lengths == std::vector<uint64_t>{32});
  }
}

TEST_CASE("Pushes: a word of a round to come counts from when it came", "[pipeline]") {
  Pushing p;
  AgentTensor& tensor = p.Open(Patient(Spec("w", 8)));
  p.pushes.OnHurry(tensor, Round{2}, p.now_ns);
  p.pushes.OnHurry(tensor, Round{2}, p.now_ns + 5);
  p.pushes.Flush();
  CHECK(tensor.hurry_ns == 0);
  tensor.held = {.round = Round{1}, .sum_epoch = Epoch{1}};
  p.tensors.OpenNextRound(tensor);
  p.pushes.Flush();
  CHECK(tensor.hurry_ns == p.now_ns + 20'000'000);
}

TEST_CASE("Pushes: a word hurries no round that is over, and no tensor without patience",
          "[pipeline]") {
  Pushing p;
  AgentTensor& patient = p.Open(Patient(Spec("w", 8)));
  patient.held = {.round = Round{3}, .sum_epoch = Epoch{1}};
  p.pushes.OnHurry(patient, Round{3}, p.now_ns);
  CHECK(patient.hurry_ns == 0);
  AgentTensor& other = p.Open(Spec("x", 8));
  p.pushes.OnHurry(other, Round{1}, p.now_ns);
  CHECK(other.hurry_ns == 0);
}

TEST_CASE("Pushes: a rank hears how the round ended that went on without it", "[pipeline]") {
  Pushing p;
  AgentTensor& tensor = p.Open(Patient(Spec("w", 8)));
  p.Push(0, tensor);
  p.pushes.OnHurry(tensor, Round{1}, p.now_ns);
  p.now_ns += 20'000'000;
  p.Tick();
  tensor.held = {.round = Round{1},
                 .sum_epoch = Epoch{1},
                 .ranks_summed = 3,
                 .lengths = {32},
                 .left_out = tensor.left_out};
  p.tensors.OpenNextRound(tensor);
  p.out.clear();
  p.Push(1, tensor, 1);
  REQUIRE(p.Of<CompleteRound>().size() == 1);
  CHECK(p.Of<CompleteRound>()[0].round == Round{1});
  CHECK(p.Of<CompleteRound>()[0].left_out == std::vector<bool>{false, true});
  CHECK_FALSE(tensor.Owes(LocalRank{1}));
  CHECK(tensor.pushed_count == 0);  // It was no push of the open round.
  p.Push(1, tensor, 1);
  CHECK_THAT(p.Refused(), Contains("the next is 2"));
}

}  // namespace
}  // namespace talweg::pipeline
