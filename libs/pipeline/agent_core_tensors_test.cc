// SPDX-License-Identifier: Apache-2.0
// Tensors and ranks: agreement and refusals.
#include <algorithm>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::Fixture;
using testing::Key;
using testing::MakeView;
using testing::Spec;

DeclareReply OnlyReply(const Effects& effects) {
  const auto replies = Fixture::Of<DeclareReply>(effects);
  REQUIRE(replies.size() == 1);
  return replies[0];
}

TEST_CASE("AgentCore: ranks keep their numbers, and mean the same root by them, in every view",
          "[pipeline]") {
  Fixture f(2, 2);
  view::View view = MakeView(1, {1, 1, 2}, 1);
  f.Start(view);
  CHECK(f.member.views().GlobalRank(LocalRank{1}) == Rank{3});
  view.epoch = Epoch{2};
  // Node 0 is gone, so other members number this node's ranks anew.
  view.members.erase(view.members.begin());
  f.OnView(view);
  f.AnswerAll();
  CHECK(f.member.views().GlobalRank(LocalRank{1}) == Rank{3});
  const auto declared_root = [&f](const std::string& name, uint32_t root) {
    f.Declare(0, Spec(name, 10, DType::kU8, Op::kCopy, root));
    const Effects out = f.Allocated(static_cast<uint32_t>(f.member.tensors().size()) - 1);
    const auto declares = f.Entries<wire::Declare>(out);
    REQUIRE(declares.size() == 1);
    f.AgreeTo(out);
    return declares[0].root_rank;
  };
  CHECK(declared_root("own", 3) == 2);
  CHECK(declared_root("other's", 1) == 0);
  CHECK(declared_root("of one that is gone", 0) == wire::kNoRank);
  // No rank has this number. The others have to hear of it, so the declaration carries a number
  // that they do not know.
  CHECK(declared_root("nobody's", 4) == 4);
  CHECK(declared_root("nobody's either", wire::kNoRank) == wire::kNoRank - 1);
  CHECK(f.member.FindTensor(Key("nobody's"))->failed_status == Status::kInvalid);
  // The next rank of this node, in any view, does not count as disagreeing.
  const auto replies = f.Of<DeclareReply>(f.Declare(1, Spec("own", 10, DType::kU8, Op::kCopy, 3)));
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].status == Status::kOk);
}

TEST_CASE("AgentCore: a declaration is answered when all owners have agreed", "[pipeline]") {
  Fixture f;
  f.Join(0);
  const Effects declared = f.Declare(0, Spec("w", 256 * 1024));  // There is no view yet.
  REQUIRE(f.Of<AllocateTensor>(declared).size() == 1);
  CHECK(f.Allocated(0).empty());
  f.OnView(MakeView(1, {1, 1}, 2));
  const Effects sent = f.AnswerAll();
  const auto declares = f.Entries<wire::Declare>(sent);
  REQUIRE(declares.size() == 2);  // 1 MiB is striped over both.
  CHECK(declares[0].name == "w");
  CHECK(declares[0].collective.element_count == 256 * 1024);
  // No rank has been told of the tensor, so this node holds nothing of it: the reports are empty.
  CHECK(f.Entries<wire::Report>(sent).empty());
  CHECK(f.CountFrames(sent, wire::FrameType::kReport) == 2);
  CHECK(f.member.views().phase() == Phase::kActive);
  CHECK(f.Of<DeclareReply>(f.all).empty());
  f.From<wire::Declared>(0, wire::FrameType::kDeclared, {{.key = Key("w")}});
  CHECK(f.Of<DeclareReply>(f.all).empty());
  const DeclareReply reply =
      OnlyReply(f.From<wire::Declared>(1, wire::FrameType::kDeclared, {{.key = Key("w")}}));
  CHECK(reply.status == Status::kOk);
  CHECK(reply.tensor == TensorIndex{0});
  f.Push(0, 0, 1);
  CHECK_FALSE(f.Entries<wire::Contribute>(f.Flush()).empty());
  // A repeated declaration is answered at once.
  CHECK(OnlyReply(f.Declare(0, Spec("w", 256 * 1024))).status == Status::kOk);
}

TEST_CASE("AgentCore: a tensor's memory is as the first accepted declaration wishes",
          "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2, 1}, 1));
  const MemoryWishes refused = {.in_place = true};
  const MemoryWishes first = {.on_device = true};
  const MemoryWishes second = {.in_place = true, .one_place = true};
  CHECK(f.Of<AllocateTensor>(f.Declare(0, Spec("w", ~uint64_t{0}), refused)).empty());
  const auto allocates = f.Of<AllocateTensor>(f.Declare(0, Spec("w", 10), first));
  REQUIRE(allocates.size() == 1);
  CHECK(allocates[0].wishes == first);
  // The second rank shares the memory, whatever it wishes, and agrees on the tensor.
  CHECK(f.Of<AllocateTensor>(f.Declare(1, Spec("w", 10), second)).empty());
  CHECK(f.member.FindTensor(Key("w"))->wishes == first);
  CHECK(f.member.FindTensor(Key("w"))->failed_status == Status::kOk);
}

TEST_CASE("AgentCore: a declaration that makes no sense is refused with the reason", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  const auto text_of = [&](const TensorSpec& spec) {
    const DeclareReply reply = OnlyReply(f.Declare(0, spec));
    CHECK(reply.status == Status::kInvalid);
    return reply.text;
  };
  CHECK(text_of(Spec("", 1)).find("0 bytes") != std::string::npos);
  CHECK(text_of(Spec(std::string(2000, 'x'), 1)).find("2000 bytes") != std::string::npos);
  CHECK(text_of(Spec("a", 1, DType::kI32, Op::kAverage)).find("i32") != std::string::npos);
  CHECK(text_of(Spec("a", 1, static_cast<DType>(99))).find("99") != std::string::npos);
  CHECK(text_of(Spec("a", 1, DType::kF32, static_cast<Op>(77))).find("77") != std::string::npos);
  CHECK(text_of(Spec("a", ~uint64_t{0})).find("split it") != std::string::npos);
  CHECK(f.member.tensors().empty());
  CHECK(f.Declare(5, Spec("a", 1)).empty());  // There is no such rank.
}

TEST_CASE("AgentCore: a job may have only so many tensors", "[pipeline]") {
  AgentCore member({.self = {NodeRank{0}, Incarnation{1}}, .job_name = "j", .tensors_max = 1});
  Effects out;
  member.OnRankJoined(LocalRank{0}, 1, 0, out);
  member.OnRankDeclare(LocalRank{0}, 1, {Spec("a", 1)}, 0, out);
  out.clear();
  member.OnRankDeclare(LocalRank{0}, 2, {Spec("b", 1)}, 0, out);
  const auto replies = Fixture::Of<DeclareReply>(out);  // Then the job's failure answers "a".
  REQUIRE(replies.size() == 2);
  CHECK(replies[0].request == 2);
  CHECK(replies[0].status == Status::kOverBudget);
  // Other nodes may have a place for it, and would wait for this one.
  REQUIRE(Fixture::Of<FailJob>(out).size() == 1);
  CHECK(Fixture::Of<FailJob>(out)[0].text.find("use fewer names") != std::string::npos);
}

TEST_CASE("AgentCore: tensors of one batch are declared in one frame to each owner", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 2));
  Effects out = f.Do([&](Effects& effects) {
    for (uint32_t i = 0; i < 100; ++i) {
      f.member.OnRankDeclare(LocalRank{0}, i, {Spec("w" + std::to_string(i), 10)}, f.now_ns,
                             effects);
      f.member.OnTensorAllocated(TensorIndex{i}, "", effects);
    }
  });
  CHECK(f.Of<Send>(out).empty());
  out = f.Flush();
  CHECK(f.CountFrames(out, wire::FrameType::kDeclare) == 2);
  CHECK(f.Entries<wire::Declare>(out).size() == 100);
  CHECK(f.Of<DeclareReply>(f.AgreeTo(out)).size() == 100);
  CHECK(f.Flush().empty());
}

TEST_CASE("AgentCore: an owner that comes back is told of every tensor once", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(Spec("old", 10));
  f.Do([&](Effects& effects) {
    f.member.OnRankDeclare(LocalRank{0}, 7, {Spec("new", 10)}, f.now_ns, effects);
    f.member.OnTensorAllocated(TensorIndex{1}, "", effects);
  });
  f.Broken(0);  // The connection breaks before the flush.
  CHECK(f.Entries<wire::Declare>(f.Flush()).empty());
  const Effects back = f.AnswerAll();
  CHECK(f.Entries<wire::Declare>(back).size() == 2);
  CHECK(f.Entries<wire::Declare>(f.Flush()).empty());
  CHECK(f.Of<DeclareReply>(f.AgreeTo(back)).size() == 1);
}

TEST_CASE("AgentCore: ranks of one node that disagree poison the tensor everywhere", "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2, 2}, 1));
  f.Declare(0, Spec("w", 100));
  f.AgreeTo(f.Allocated(0));
  f.Push(0, 0, 1);
  const Effects out = f.Declare(1, Spec("w", 200));
  const DeclareReply reply = OnlyReply(out);
  CHECK(reply.status == Status::kMismatch);
  CHECK(reply.text == "tensor 'w': rank 0 declared f32[100] sum, rank 1 declares f32[200] sum");
  REQUIRE(f.Of<FailTensor>(out).size() == 1);
  // Rank 0 waits for round 1, and hears of the failure.
  REQUIRE(f.Of<CompleteRound>(out).size() == 1);
  CHECK(f.Of<CompleteRound>(out)[0].status == Status::kMismatch);
  // The owner hears of it too, so that other nodes do.
  const auto told = f.Entries<wire::Failed>(f.Flush());
  REQUIRE(told.size() == 1);
  CHECK(told[0].key == Key("w"));
  CHECK(told[0].code == wire::FailedCode::kMismatch);
  CHECK(told[0].text == reply.text);
  // Later pushes and declarations get the same answer.
  CHECK(f.Of<CompleteRound>(f.Push(0, 0, 2))[0].status == Status::kMismatch);
  CHECK(OnlyReply(f.Declare(0, Spec("w", 100))).status == Status::kMismatch);
  // In a new view the owner hears of it again.
  f.OnView(MakeView(2, {2, 2}, 1));
  const Effects frozen = f.From(0, wire::FrameType::kFenceAck);
  CHECK(f.Entries<wire::Declare>(frozen).size() == 1);
  CHECK(f.Entries<wire::Failed>(frozen) == told);
}

TEST_CASE("AgentCore: the owners hear of a disagreement that came before the memory",
          "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2, 2}, 1));
  f.Declare(0, Spec("w", 100));
  const auto replies = f.Of<DeclareReply>(f.Declare(1, Spec("w", 200)));
  REQUIRE(replies.size() == 2);  // The ranks need not wait for the memory.
  CHECK(replies[0].status == Status::kMismatch);
  CHECK(replies[1].status == Status::kMismatch);
  const auto new_view = GENERATE(false, true);
  if (new_view) {
    // The new view's owner hears of it with everything else.
    f.OnView(MakeView(2, {2, 2}, 1));
    CHECK(f.Entries<wire::Failed>(f.From(0, wire::FrameType::kFenceAck)).size() == 1);
  }
  // Whether there is memory no longer matters.
  const Effects told = f.Allocated(0, GENERATE("", "no memory"));
  CHECK(f.Entries<wire::Failed>(told).size() == (new_view ? 0 : 1));
  CHECK(f.Entries<wire::Declare>(told).size() == (new_view ? 0 : 1));
  CHECK_FALSE(f.member.views().has_failed());
}

TEST_CASE("AgentCore: the owners of each later view hear what an owner said about a tensor",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 2));
  f.Open(Spec("w", 100));
  f.Open(Spec("v", 100));
  const uint32_t primary = f.member.FindTensor(Key("w"))->primary.value();
  f.From<wire::Failed>(
      primary, wire::FrameType::kFailed,
      {{.key = Key("w"), .code = wire::FailedCode::kAborted, .text = "round 3 is lost"}});
  CHECK(f.Flush().empty());  // The owner that said so tells the others in this view.
  f.OnView(MakeView(2, {1, 1}, 1));
  const Effects frozen = f.AnswerAll();
  // Only the other tensor is reported. The order is: declared, failed, reported.
  REQUIRE(f.Entries<wire::Report>(frozen).size() == 1);
  CHECK(f.Entries<wire::Report>(frozen)[0].key == Key("v"));
  const auto told = f.Entries<wire::Failed>(frozen);
  REQUIRE(told.size() == 1);
  CHECK(told[0].code == wire::FailedCode::kAborted);
  CHECK(told[0].text == "round 3 is lost");
  std::vector<wire::FrameType> order;
  for (const Send& send : f.Of<Send>(frozen)) order.push_back(send.type);
  const auto at = [&](wire::FrameType type) { return std::find(order.begin(), order.end(), type); };
  CHECK(at(wire::FrameType::kDeclare) < at(wire::FrameType::kFailed));
  CHECK(at(wire::FrameType::kFailed) < at(wire::FrameType::kReport));
  f.Broken(0);
  CHECK(f.Entries<wire::Failed>(f.AnswerAll()) == told);
}

TEST_CASE("AgentCore: ranks that declare or wait hear of a disagreement that an owner found",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Declare(0, Spec("w", 100));
  f.Allocated(0);
  const Effects refused = f.From<wire::Declared>(
      0, wire::FrameType::kDeclared,
      {{.key = Key("w"), .status = wire::DeclaredStatus::kMismatch, .text = "both sides"}});
  CHECK(OnlyReply(refused).status == Status::kMismatch);
  CHECK(OnlyReply(refused).text == "both sides");

  f.Open(Spec("v", 100));
  f.Push(0, 1, 1);
  f.Flush();
  const Effects failed = f.From<wire::Failed>(
      0, wire::FrameType::kFailed,
      {{.key = Key("v"), .code = wire::FailedCode::kMismatch, .text = "late side"}});
  CHECK(f.Of<CompleteRound>(failed)[0].text == "late side");
  CHECK(f.member.views().phase() == Phase::kActive);

  const Effects over = [&] {
    f.Declare(0, Spec("u", 100));
    f.Allocated(2);
    return f.From<wire::Declared>(
        0, wire::FrameType::kDeclared,
        {{.key = Key("u"), .status = wire::DeclaredStatus::kOverBudget, .text = "figures"}});
  }();
  CHECK(OnlyReply(over).status == Status::kOverBudget);

  f.Declare(0, Spec("t", 100));
  f.Allocated(3);
  const Effects aborted = f.From<wire::Declared>(
      0, wire::FrameType::kDeclared,
      {{.key = Key("t"), .status = wire::DeclaredStatus::kAborted, .text = "false reports"}});
  CHECK(OnlyReply(aborted).status == Status::kAborted);
}

TEST_CASE("AgentCore: an owner that gives up the job ends it here and tells the scheduler",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Declare(0, Spec("w", 100));
  const Effects out = f.From<wire::Failed>(
      0, wire::FrameType::kFailed, {{.code = wire::FailedCode::kJobFailed, .text = "no memory"}});
  CHECK(f.Of<ReportLost>(out).size() == 1);
  CHECK(f.Of<FailJob>(out)[0].text.find("no memory") != std::string::npos);
  CHECK(f.Of<Close>(out).size() == 1);
  CHECK(OnlyReply(out).status == Status::kJobFailed);
  CHECK(OnlyReply(f.Declare(0, Spec("x", 1))).status == Status::kJobFailed);
}

TEST_CASE("AgentCore: a broadcast fails when no rank has the root's number", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Declare(0, Spec("b", 10, DType::kU8, Op::kCopy, 2));
  const Effects out = f.Allocated(0);
  CHECK(OnlyReply(out).status == Status::kInvalid);
  CHECK(OnlyReply(out).text.find("there is no rank 2") != std::string::npos);
  CHECK(f.Entries<wire::Declare>(out).size() == 1);  // The others hear of it from the primary.
}

TEST_CASE("AgentCore: a tensor with too many slices is refused, with the size that would do",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Declare(0, Spec("huge", uint64_t{4} * kGiB / 4));
  const DeclareReply reply = OnlyReply(f.Allocated(0));
  CHECK(reply.status == Status::kInvalid);
  CHECK(reply.text.find("slice size of at least") != std::string::npos);
}

TEST_CASE("AgentCore: a tensor that gets no memory is an error for the whole job", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Declare(0, Spec("w", 100));
  const Effects out = f.Allocated(0, "64 GiB are used of 64 GiB");
  CHECK(f.Of<ReportLost>(out).size() == 1);

  Fixture alone;
  alone.Start(MakeView(1, {1}, 0));
  alone.Declare(0, Spec("w", 100));
  const Effects local = alone.Allocated(0, "64 GiB are used of 64 GiB");
  CHECK(OnlyReply(local).status == Status::kOverBudget);
  CHECK(alone.member.views().phase() == Phase::kActive);
}

TEST_CASE("AgentCore: the scheduler's word ends every wait, with its text", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Declare(0, Spec("w", 100));
  const Effects out =
      f.Do([&](Effects& effects) { f.member.OnJobFailed("node 1 died", f.now_ns, effects); });
  CHECK(f.Of<FailJob>(out)[0].text == "node 1 died");
  CHECK(OnlyReply(out).text == "node 1 died");
  CHECK(f.Of<ReportLost>(out).empty());
  CHECK(f.Push(0, 0, 1).empty());
  CHECK(f.Flush().empty());
  CHECK(f.Tick().empty());
  CHECK(f.OnView(MakeView(2, {1, 1}, 1)).empty());
}

TEST_CASE("AgentCore: a clean end says goodbye to every aggregator", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 2));
  const Effects out = f.Do([&](Effects& effects) { f.member.Leave(effects); });
  CHECK(f.CountFrames(out, wire::FrameType::kGoodbye) == 2);
  CHECK(f.Of<Close>(out).empty());
}

TEST_CASE("AgentCore: a slice whose tensor fails while it is reduced gives its credit back",
          "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2, 1}, 1), 64 * kKiB);
  f.Open(Spec("bad", 16 * 1024));
  f.Open(Spec("good", 16 * 1024));
  for (uint32_t t = 0; t < 2; ++t) {
    f.Push(0, t, 1);
    f.Push(1, t, 1);
  }
  const auto reduces = f.Of<ReduceSlice>(f.Flush());
  REQUIRE(reduces.size() == 1);
  f.From<wire::Failed>(0, wire::FrameType::kFailed,
                       {{.key = Key("bad"), .code = wire::FailedCode::kMismatch}});
  CHECK(f.Flush().empty());
  f.Reduced(reduces[0].ticket);
  CHECK(f.Of<ReduceSlice>(f.Flush()).size() == 1);
}

}  // namespace
}  // namespace talweg::pipeline
