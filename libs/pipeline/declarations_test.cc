// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/declarations.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/core_parts_fixture.h"

namespace talweg::pipeline {
namespace {

using Catch::Contains;
using testing::CoreParts;
using testing::Key;
using testing::MakeView;
using testing::Spec;

constexpr LocalRank kFirst{0};
constexpr LocalRank kSecond{1};

struct Declaring : CoreParts {
  explicit Declaring(const view::View& view = MakeView(1, {2, 1}, 2))
      : CoreParts(view, view.members[0].rank_count) {
    MakeOwnersReady();
  }

  void Declare(LocalRank rank, const TensorSpec& spec, const MemoryWishes& wishes = {}) {
    declarations.OnRankDeclare(rank, next_request++, {spec, wishes}, out);
  }
  // The only rank that declares has memory for its tensor, and the owners have heard of it.
  AgentTensor& Declared(const TensorSpec& spec) {
    Declare(kFirst, spec);
    AgentTensor& tensor = tensors.At(Key(spec.name));
    declarations.OnAllocated(tensor.index, "", out);
    SendDue();
    out.clear();
    return tensor;
  }
  void Answer(AgentTensor& tensor, AggregatorIndex from, const wire::Declared& answer) {
    wire::Declared entry = answer;
    entry.key = tensor.key;
    declarations.OnDeclared(from, entry, out);
    tensors.CheckInvariants();
  }
  void AllAgree(AgentTensor& tensor) {
    std::vector<AggregatorIndex> owners;
    for (const auto& [index, agreement] : tensor.owners) owners.push_back(index);
    for (const AggregatorIndex owner : owners) Answer(tensor, owner, {.slot = {1, 64}});
  }
  void SendDue() {
    for (const auto& [index, owner] : links.all()) declarations.SendDue(owner, out);
  }
  template <typename Entry>
  std::vector<Entry> Entries() const {
    return testing::Fixture::Entries<Entry>(out);
  }

  uint32_t next_request = 1;
  Recovery recovery{&config, &views, &tensors, &links, &rounds, &quiesce, &failures, &counters};
  Declarations declarations{&config, &views,    &tensors,  &links,
                            &rounds, &recovery, &failures, &counters};
};

TEST_CASE("Declarations: a tensor gets memory once, for whichever rank declares it first",
          "[pipeline]") {
  Declaring d;
  d.Declare(kSecond, Spec("w", 8), {.in_place = true});
  d.Declare(kFirst, Spec("w", 8));
  const auto orders = d.Of<AllocateTensor>();
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].spec.name == "w");
  CHECK(orders[0].wishes == MemoryWishes{.in_place = true});
  CHECK(d.tensors.At(orders[0].tensor).declared_by == kSecond);
  CHECK(d.Of<DeclareReply>().empty());
}

TEST_CASE("Declarations: ranks are answered when there is memory and all owners agree",
          "[pipeline]") {
  Declaring d;
  // Three slices and a primary owner, at both aggregators.
  const TensorSpec spec = Spec("w", 3 * 16 * 1024);
  d.Declare(kFirst, spec);
  AgentTensor& tensor = d.tensors.At(Key("w"));
  d.SendDue();
  CHECK(d.Entries<wire::Declare>().empty());  // No owner hears of it before it has memory.
  d.declarations.OnAllocated(tensor.index, "", d.out);
  CHECK(tensor.state == TensorState::kDeclaring);
  d.SendDue();
  const auto declared = d.Entries<wire::Declare>();
  REQUIRE(declared.size() == 2);
  CHECK(declared[0].key == tensor.key);
  CHECK(declared[0].name == "w");
  CHECK(declared[0].collective == spec.collective);
  d.SendDue();
  CHECK(d.Entries<wire::Declare>().size() == 2);  // Each owner hears of it once.
  d.Declare(kSecond, spec);
  d.Answer(tensor, AggregatorIndex{0}, {.slot = {1, 64}, .held = Round{3}});
  CHECK(d.Of<DeclareReply>().empty());
  CHECK_FALSE(tensor.announced());
  d.Answer(tensor, AggregatorIndex{1}, {.slot = {2, 64}, .held = Round{3}});
  CHECK(tensor.state == TensorState::kOpen);
  CHECK(tensor.owners.at(AggregatorIndex{1}).slot == wire::RemoteRef{2, 64});
  const auto replies = d.Of<DeclareReply>();
  REQUIRE(replies.size() == 2);
  for (const DeclareReply& reply : replies) {
    CHECK(reply.status == Status::kOk);
    CHECK(reply.tensor == tensor.index);
    CHECK(reply.held == Round{3});
  }
  CHECK(replies[0].local_rank == kFirst);
  CHECK(replies[0].request == 1);
  CHECK(replies[1].local_rank == kSecond);
  CHECK(tensor.told == std::vector<bool>{true, true});
}

TEST_CASE("Declarations: a rank that declares an open tensor is answered at once", "[pipeline]") {
  Declaring d;
  AgentTensor& tensor = d.Declared(Spec("w", 8));
  d.AllAgree(tensor);
  CHECK(tensor.told == std::vector<bool>{true, false});
  d.out.clear();
  d.Declare(kSecond, Spec("w", 8));
  REQUIRE(d.Of<DeclareReply>().size() == 1);
  CHECK(d.Of<DeclareReply>()[0].status == Status::kOk);
  CHECK(tensor.told == std::vector<bool>{true, true});
  CHECK(d.Of<AllocateTensor>().empty());
}

TEST_CASE("Declarations: a declaration that cannot be is refused, and makes no tensor",
          "[pipeline]") {
  Declaring d;
  Status status = Status::kInvalid;
  std::string text;
  SECTION("it makes no sense") {
    d.Declare(kFirst, Spec("", 8));
    text = "a tensor's name has 0 bytes";
  }
  SECTION("the agent has as many as it may") {
    d.config.tensors_max = 0;
    d.Declare(kFirst, Spec("w", 8));
    status = Status::kOverBudget;
    text = "would be one more than the 0 that this agent allows";
  }
  SECTION("the job has failed") {
    d.failures.FailJob("why", d.out);
    d.Declare(kFirst, Spec("w", 8));
    status = Status::kJobFailed;
    text = "why";
  }
  REQUIRE(d.Of<DeclareReply>().size() == 1);
  CHECK(d.Of<DeclareReply>()[0].status == status);
  CHECK_THAT(d.Of<DeclareReply>()[0].text, Contains(text));
  CHECK(d.tensors.all().empty());
  CHECK(d.Of<AllocateTensor>().empty());
}

TEST_CASE("Declarations: ranks of a node that declare a tensor differently poison it everywhere",
          "[pipeline]") {
  Declaring d;
  AgentTensor& tensor = d.Declared(Spec("w", 8));
  d.Declare(kSecond, Spec("w", 9));
  CHECK(tensor.state == TensorState::kFailed);
  CHECK(tensor.failed_text == "tensor 'w': rank 0 declared f32[8] sum, rank 1 declares f32[9] sum");
  const auto replies = d.Of<DeclareReply>();
  REQUIRE(replies.size() == 2);
  for (const DeclareReply& reply : replies) CHECK(reply.status == Status::kMismatch);
  d.out.clear();
  d.SendDue();
  // Each owner hears what the tensor is, and then that it has failed.
  CHECK(d.Entries<wire::Declare>().size() == tensor.owners.size());
  const auto failed = d.Entries<wire::Failed>();
  REQUIRE(failed.size() == tensor.owners.size());
  CHECK(failed[0].key == tensor.key);
  CHECK(failed[0].code == wire::FailedCode::kMismatch);
  CHECK(failed[0].text == tensor.failed_text);
  // Who declares it later, as it was, hears of that too.
  d.out.clear();
  d.Declare(kSecond, Spec("w", 8));
  REQUIRE(d.Of<DeclareReply>().size() == 1);
  CHECK(d.Of<DeclareReply>()[0].status == Status::kMismatch);
}

TEST_CASE("Declarations: the owners hear of a disagreement that came before the memory",
          "[pipeline]") {
  Declaring d;
  d.Declare(kFirst, Spec("w", 8));
  d.Declare(kSecond, Spec("w", 9));
  AgentTensor& tensor = d.tensors.At(Key("w"));
  d.SendDue();
  CHECK(d.Entries<wire::Failed>().empty());  // Nobody knows yet who owns it.
  d.declarations.OnAllocated(tensor.index, "", d.out);
  CHECK(tensor.state == TensorState::kFailed);
  d.SendDue();
  CHECK_FALSE(d.Entries<wire::Failed>().empty());
  d.out.clear();
  d.declarations.OnAllocated(tensor.index, "", d.out);
  d.SendDue();
  CHECK(d.out.empty());
}

TEST_CASE("Declarations: a tensor that gets no memory fails, and the job if others wait for it",
          "[pipeline]") {
  SECTION("others would wait") {
    Declaring d;
    d.Declare(kFirst, Spec("w", 8));
    d.declarations.OnAllocated(TensorIndex{0}, "the limit is 1 GiB", d.out);
    CHECK(d.views.failed_text() == "node 0 has no memory for tensor 'w': the limit is 1 GiB");
    CHECK(d.Of<ReportLost>().size() == 1);
  }
  SECTION("the node is the whole job") {
    Declaring d(MakeView(1, {2}, 0));
    d.Declare(kFirst, Spec("w", 8));
    d.declarations.OnAllocated(TensorIndex{0}, "the limit is 1 GiB", d.out);
    CHECK_FALSE(d.views.has_failed());
    REQUIRE(d.Of<DeclareReply>().size() == 1);
    CHECK(d.Of<DeclareReply>()[0].status == Status::kOverBudget);
    CHECK(d.Of<DeclareReply>()[0].text == "the limit is 1 GiB");
  }
}

TEST_CASE("Declarations: a node that is the whole job asks nobody", "[pipeline]") {
  Declaring d(MakeView(1, {2}, 0));
  d.Declare(kFirst, Spec("w", 8));
  d.declarations.OnAllocated(TensorIndex{0}, "", d.out);
  CHECK(d.tensors.At(TensorIndex{0}).state == TensorState::kOpen);
  REQUIRE(d.Of<DeclareReply>().size() == 1);
  CHECK(d.Of<DeclareReply>()[0].status == Status::kOk);
}

TEST_CASE("Declarations: memory that comes while a view is fenced waits for that view",
          "[pipeline]") {
  Declaring d;
  d.Declare(kFirst, Spec("w", 8));
  d.views.Enter(MakeView(2, {2, 1}, 2));
  d.declarations.OnAllocated(TensorIndex{0}, "", d.out);
  const AgentTensor& tensor = d.tensors.At(TensorIndex{0});
  CHECK(tensor.state == TensorState::kDeclaring);
  CHECK(tensor.slices.empty());
  CHECK(tensor.owners.empty());
  d.declarations.OnAllocated(TensorIndex{9}, "", d.out);  // There is no such tensor.
}

TEST_CASE("Declarations: an owner's refusal fails the tensor, whoever waits for it", "[pipeline]") {
  struct Case {
    wire::DeclaredStatus refusal;
    Status status;
  };
  const Case each = GENERATE(Case{wire::DeclaredStatus::kMismatch, Status::kMismatch},
                             Case{wire::DeclaredStatus::kOverBudget, Status::kOverBudget},
                             Case{wire::DeclaredStatus::kInvalid, Status::kInvalid},
                             Case{wire::DeclaredStatus::kAborted, Status::kAborted});
  Declaring d;
  AgentTensor& tensor = d.Declared(Spec("w", 8));
  d.Answer(tensor, tensor.primary, {.status = each.refusal, .text = "why"});
  CHECK(tensor.state == TensorState::kFailed);
  CHECK(tensor.failed_status == each.status);
  REQUIRE(d.Of<DeclareReply>().size() == 1);
  CHECK(d.Of<DeclareReply>()[0].status == each.status);
  CHECK(d.Of<DeclareReply>()[0].text == "why");
  // What its owners say later does not bring it back.
  d.AllAgree(tensor);
  CHECK(tensor.state == TensorState::kFailed);
}

TEST_CASE("Declarations: answers of who does not own the tensor are counted, and do nothing",
          "[pipeline]") {
  Declaring d;
  AgentTensor& tensor = d.Declared(Spec("w", 8));
  REQUIRE(tensor.owners.size() == 1);
  const AggregatorIndex other{1 - tensor.primary.value()};
  d.Answer(tensor, other, {.status = wire::DeclaredStatus::kMismatch});
  CHECK(d.counters.frames_ignored == 1);
  d.declarations.OnDeclared(tensor.primary, {.key = Key("unknown")}, d.out);
  CHECK(d.counters.frames_ignored == 2);
  d.declarations.OnFailed({.key = Key("unknown")}, d.out);
  CHECK(d.counters.frames_ignored == 3);
  CHECK(tensor.state == TensorState::kDeclaring);
  CHECK(d.out.empty());
}

TEST_CASE("Declarations: the primary owner says which round comes first, until a rank is told",
          "[pipeline]") {
  Declaring d;
  AgentTensor& tensor = d.Declared(Spec("w", 3 * 16 * 1024));
  REQUIRE(tensor.owners.size() == 2);
  const AggregatorIndex other{1 - tensor.primary.value()};
  d.Answer(tensor, other, {.held = Round{9}});
  CHECK(tensor.held.round == Round{0});
  d.Answer(tensor, tensor.primary, {.held = Round{3}});
  CHECK(tensor.held.round == Round{3});
  CHECK_FALSE(tensor.held.has_result());  // There are no bytes here.
  REQUIRE(tensor.announced());
  d.Answer(tensor, tensor.primary, {.held = Round{5}});
  CHECK(tensor.held.round == Round{3});
}

TEST_CASE("Declarations: an owner's word that a tensor has failed is final", "[pipeline]") {
  Declaring d;
  AgentTensor& tensor = d.Declared(Spec("w", 8));
  d.AllAgree(tensor);
  d.declarations.OnFailed({.key = tensor.key, .code = wire::FailedCode::kAborted, .text = "why"},
                          d.out);
  CHECK(tensor.state == TensorState::kFailed);
  CHECK(tensor.failed_status == Status::kAborted);
  REQUIRE(d.Of<FailTensor>().size() == 1);
  CHECK(d.Of<FailTensor>()[0].text == "why");
}

TEST_CASE("Declarations: an owner that comes back is told of every tensor that has memory",
          "[pipeline]") {
  Declaring d;
  AgentTensor& first = d.Declared(Spec("a", 3 * 16 * 1024));
  AgentTensor& dead = d.Declared(Spec("b", 3 * 16 * 1024));
  dead.is_dead = true;
  d.Declare(kFirst, Spec("c", 8));
  d.out.clear();
  d.declarations.SendAll(d.links.At(AggregatorIndex{0}), d.out);
  REQUIRE(d.Of<Send>().size() == 1);
  CHECK(d.Of<Send>()[0].connection == d.ConnectionTo(0));
  CHECK(d.Of<Send>()[0].tensors == std::vector<TensorIndex>{first.index, dead.index});
  const auto entries = d.Entries<wire::Declare>();
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].root_rank == 0);
  CHECK(entries[1].root_rank == wire::kNoRank);  // It has lost a rank that it needs.
}

TEST_CASE("Declarations: when ranks follow a view their tensors' numbers follow", "[pipeline]") {
  Declaring d(MakeView(1, {1, 1, 1}, 1));
  TensorSpec spec = Spec("w", 8);
  spec.ranks = {Rank{0}, Rank{2}};
  AgentTensor& placed = d.Declared(spec);
  // It has no memory yet. It means the ranks of the numbers that its rank used.
  TensorSpec later = Spec("x", 8);
  later.ranks = {Rank{0}, Rank{2}};
  d.Declare(kFirst, later);
  AgentTensor& waiting = d.tensors.At(Key("x"));
  view::View next = MakeView(2, {1, 1, 1}, 1);
  next.members.erase(next.members.begin() + 1);
  d.EnterAndFreeze(next);
  d.declarations.Follow(next, d.out);
  const std::vector<Rank> renumbered = {Rank{0}, Rank{1}};
  CHECK(placed.spec.ranks == renumbered);
  CHECK(waiting.spec.ranks == renumbered);
  CHECK(waiting.group == placed.group);
  CHECK(d.views.numbers()->epoch == Epoch{2});
}

}  // namespace
}  // namespace talweg::pipeline
