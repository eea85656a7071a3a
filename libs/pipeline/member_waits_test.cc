// SPDX-License-Identifier: Apache-2.0
// Whom a member waits for, and for how long: aggregators that refuse or do not answer, quiesces
// (docs/protocol.md, sections 6 and 8).
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/member_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::Fixture;
using testing::MakeView;
using testing::Spec;

TEST_CASE("Member: views that cannot be used end the job with the reason", "[pipeline]") {
  const auto text_of = [](View view) {
    Fixture f;
    f.Start(MakeView(1, {1, 1}, 1));
    f.OnView(view);
    return f.member.failed_text();
  };
  CHECK(text_of(MakeView(2, {1, 1}, 0)).find("no aggregator") != std::string::npos);
  CHECK(text_of(MakeView(2, {3, 1}, 1)).find("3 ranks, but it has 1") != std::string::npos);
  View other_job = MakeView(2, {1, 1}, 1);
  other_job.job = JobId{8};
  CHECK(text_of(other_job).find("job 8") != std::string::npos);
  View without = MakeView(2, {1, 1}, 1);
  without.members.erase(without.members.begin());
  CHECK(text_of(without).find("not in the view of epoch 2") != std::string::npos);
  View unordered = MakeView(2, {1, 1}, 1);
  std::swap(unordered.members[0], unordered.members[1]);
  CHECK_FALSE(text_of(unordered).empty());
}

TEST_CASE("Member: refusals of a greeting are tried again, or end the job", "[pipeline]") {
  const auto refuse = [](wire::WelcomeStatus status) {
    Fixture f;
    f.OnView(MakeView(1, {1, 1}, 1));
    f.Connected(0);
    f.From<wire::Welcome>(0, wire::FrameType::kWelcome, {{.status = status, .text = "why"}});
    return std::pair(f.member.phase(),
                     f.member.owners().empty() ? OwnerState::kReady : f.OwnerAt(0).state);
  };
  CHECK(refuse(wire::WelcomeStatus::kUnknownJob) ==
        std::pair(Phase::kFencing, OwnerState::kBackoff));
  CHECK(refuse(wire::WelcomeStatus::kNotInView) ==
        std::pair(Phase::kFencing, OwnerState::kBackoff));
  CHECK(refuse(wire::WelcomeStatus::kViewDiffers).first == Phase::kFailed);
  CHECK(refuse(wire::WelcomeStatus::kVersion).first == Phase::kFailed);
  // Another life of that aggregator answers: not the one that the view names.
  CHECK(refuse(wire::WelcomeStatus::kOk) == std::pair(Phase::kFencing, OwnerState::kBackoff));
}

TEST_CASE("Member: aggregators that do not answer are named at growing intervals", "[pipeline]") {
  Fixture f;
  f.OnView(MakeView(1, {1, 1}, 2));
  f.Connected(1);
  f.Welcome(1);
  int notices = 0;
  for (int i = 0; i < 5; ++i) {
    f.now_ns = f.member.NextTickNs();
    for (const LogWaiting& notice : f.Of<LogWaiting>(f.Tick())) {
      CHECK(notice.what == LogWaiting::For::kAggregators);
      CHECK(notice.missing == std::vector<uint32_t>{0});
      ++notices;
    }
  }
  CHECK(notices == 5);
}

TEST_CASE("Member: what nobody answers for is not waited for without end", "[pipeline]") {
  constexpr int64_t kSecond = 1'000'000'000;
  const auto next_tick = [](Fixture& f) {
    f.now_ns = f.member.NextTickNs();
    return f.Tick();
  };
  Fixture f;
  f.member = Member({.self = {NodeRank{0}, Incarnation{100}},
                     .job_name = "job",
                     .rank_count = 1,
                     .unreachable_ns = 30 * kSecond});
  f.OnView(MakeView(1, {1, 1}, 2));
  SECTION("an aggregator that never answered") {
    f.Connected(1);
    f.Welcome(1);
  }
  SECTION("one that did, long ago") {
    f.AnswerAll();
    f.now_ns += 1000 * kSecond;
    f.Tick();
    CHECK(f.member.phase() != Phase::kFailed);
  }
  const int64_t since_ns = f.now_ns;
  f.Broken(0);
  while (f.member.phase() != Phase::kFailed) {
    const Effects effects = next_tick(f);
    if (f.member.phase() != Phase::kFailed && f.OwnerAt(0).state == OwnerState::kConnecting) {
      f.Broken(0);
    }
    // Never late, and not for ever.
    REQUIRE(f.now_ns <= since_ns + 30 * kSecond);
  }
  CHECK(f.now_ns == since_ns + 30 * kSecond);
  CHECK(f.member.failed_text().find("aggregator 'aggregator-0' for 30000 ms (reset by peer)") !=
        std::string::npos);
  CHECK(f.Of<ReportLost>(f.all).size() == 1);
}

TEST_CASE("Member: an aggregator that comes back in time has been missed by nobody", "[pipeline]") {
  constexpr int64_t kSecond = 1'000'000'000;
  Fixture f;
  f.member = Member({.self = {NodeRank{0}, Incarnation{100}},
                     .job_name = "job",
                     .rank_count = 1,
                     .unreachable_ns = 30 * kSecond});
  f.OnView(MakeView(1, {1, 1}, 1));
  f.AnswerAll();
  for (int i = 0; i < 3; ++i) {
    f.Broken(0);
    f.now_ns += 29 * kSecond;
    f.Tick();
    f.AnswerAll();
    REQUIRE(f.OwnerAt(0).state == OwnerState::kReady);
  }
  f.Broken(0);
  f.now_ns += 29 * kSecond;
  f.OnView(MakeView(2, {1, 1}, 1));  // The scheduler has spoken: the time begins afresh.
  f.now_ns += 29 * kSecond;
  f.Tick();
  CHECK(f.member.phase() == Phase::kFencing);
}

TEST_CASE("Member: an aggregator that refuses for too long ends the job here, in its words",
          "[pipeline]") {
  constexpr int64_t kSecond = 1'000'000'000;
  Fixture f;
  f.member = Member({.self = {NodeRank{0}, Incarnation{100}},
                     .job_name = "job",
                     .rank_count = 1,
                     .unreachable_ns = 30 * kSecond});
  f.OnView(MakeView(1, {1, 1}, 1));
  while (f.member.phase() != Phase::kFailed) {
    if (f.OwnerAt(0).state == OwnerState::kConnecting) {
      f.Connected(0);
      f.From<wire::Welcome>(0, wire::FrameType::kWelcome,
                            {{.status = wire::WelcomeStatus::kUnknownJob, .text = "it is over"}});
    }
    f.now_ns = f.member.NextTickNs();
    f.Tick();
    REQUIRE(f.now_ns <= 31 * kSecond);
  }
  CHECK(f.member.failed_text().find("30000 ms (it refused this agent: it is over)") !=
        std::string::npos);
}

TEST_CASE("Member: a quiesce ends with the next view; held pushes go on", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(Spec("w", 10));
  f.Do([&](Effects& out) { f.member.OnQuiesce(1, f.now_ns, out); });
  CHECK(f.member.quiesced());
  f.Push(0, 0, 1);
  f.OnView(MakeView(2, {1, 1, 1}, 1));
  f.AgreeTo(f.AnswerAll());
  CHECK_FALSE(f.member.quiesced());
  f.Decide("w", wire::Verdict::kRedo, 1);
  CHECK(f.Entries<wire::Contribute>(f.Flush()).size() == 1);
}

TEST_CASE("Member: a quiesce that is asked for behind a view waits for what that view lets go on",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(Spec("w", 10));
  const auto quiesce = [&](uint64_t id) {
    return f.Of<Quiesced>(f.Do([&](Effects& out) { f.member.OnQuiesce(id, f.now_ns, out); }));
  };
  CHECK(quiesce(1).size() == 1);
  const bool pushed = GENERATE(true, false);
  if (pushed) f.Push(0, 0, 1);  // Held back.
  f.OnView(MakeView(2, {1, 1}, 1));
  CHECK(quiesce(2).empty());  // It fences: nothing is agreed in this view yet.
  f.AgreeTo(f.AnswerAll());
  const Effects decided = f.Decide("w", wire::Verdict::kRedo, 1);
  const Effects sent = f.Flush();
  if (!pushed) {
    CHECK(f.Of<Quiesced>(decided).size() == 1);
    return;
  }
  CHECK(f.Of<Quiesced>(decided).empty());
  CHECK(f.Of<Quiesced>(sent).empty());
  const auto quiesced = f.Of<Quiesced>(f.Results(sent));
  REQUIRE(quiesced.size() == 1);
  CHECK(quiesced[0].id == 2);
}

TEST_CASE("Member: a quiesce is answered also where its view has no tensor to decide",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.OnView(MakeView(2, {1, 1}, 1));
  f.Do([&](Effects& out) { f.member.OnQuiesce(1, f.now_ns, out); });
  CHECK(f.Of<Quiesced>(f.AnswerAll()).size() == 1);
}

TEST_CASE("Member: a push that is let go by a view may end the job", "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2, 1}, 1));
  f.Open(Spec("w", 10));
  f.Do([&](Effects& out) { f.member.OnQuiesce(1, f.now_ns, out); });
  f.Push(0, 0, 1);
  f.Leave(1, true);
  CHECK(f.member.phase() == Phase::kActive);
  const Effects out = f.OnView(MakeView(2, {2, 1}, 1));
  CHECK(f.Of<FailJob>(out).size() == 1);
  CHECK(f.CountFrames(out, wire::FrameType::kFence) == 0);
  CHECK(f.member.owners().empty());
}

}  // namespace
}  // namespace talweg::pipeline
