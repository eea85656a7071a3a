// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "services/aggregator/aggregator_data_plane.h"
#include "services/aggregator/aggregator_data_plane_fixture.h"

// What rules mean for jobs and tenants, and how many connections there may be (docs/quotas.md).
namespace talweg::aggregator {
namespace {

TEST_CASE("AggregatorDataPlane: sums of jobs that wait are made by weight", "[aggregator]") {
  constexpr int kTensors = 30;
  // One sum is made each time that the aggregator polls the network.
  Pool pool({.memory_bytes_max = 64 * kMiB, .sum_bytes_per_poll = 1});
  std::vector<std::string> names;
  for (int i = 0; i < kTensors; ++i) names.push_back("t" + std::to_string(i));
  const std::vector<float> values(256, 1.0f);
  std::vector<HandAgent*> last;
  for (const uint64_t id : {1, 2}) {
    const view::View view = MakeView(id, 2);
    const view::JobQuota quota =
        id == 2 ? view::JobQuota{.weight = 4, .tenant_weight = 4} : view::JobQuota{};
    pool.data_plane->OnJobView("job" + std::to_string(id), view, quota);
    HandAgent& first = pool.AddAgent(view, 0);
    HandAgent& second = pool.AddAgent(view, 1);
    pool.Start({&first, &second}, names, values.size());
    for (const std::string& name : names) first.Push(name, 1, values);
    last.push_back(&second);
  }
  const auto job = [&](size_t i) { return pool.data_plane->jobs()[i]; };
  pool.Until([&] {
    return job(0)->counters().contributions == kTensors &&
           job(1)->counters().contributions == kTensors;
  });
  // All their sums can be made at once now.
  for (HandAgent* agent : last) {
    std::vector<wire::Contribute> entries;
    for (const std::string& name : names) {
      entries.push_back({.key = KeyOf(name),
                         .round = Round{1},
                         .rank_count = 2,
                         .length_bytes = static_cast<uint32_t>(values.size() * sizeof(float)),
                         .travel_bytes = static_cast<uint32_t>(values.size() * sizeof(float)),
                         .form = wire::Form::kInline,
                         .bytes = std::as_bytes(std::span(values))});
    }
    agent->Say(FrameType::kContribute, entries);
  }
  // Each job has two results of each tensor.
  pool.Until([&] { return job(1)->counters().results == 2 * kTensors; });
  // Until then the other job gets a quarter, and what was summed before both frames came.
  CHECK(job(0)->counters().results <= 30);
  pool.Until([&] { return job(0)->counters().results == 2 * kTensors; });
  // Each job has 60 contributions, 30 sums of two and 60 results.
  for (const uint64_t id : {1, 2}) {
    CHECK(pool.data_plane->ServedBytes(JobId{id}) > 180 * values.size() * sizeof(float));
  }
}

// Two jobs share a full link. The first has pushed more than its part.
struct SharedLink {
  static constexpr uint64_t kBytes = 64 * kKiB;

  SharedLink() {
    pool.clock.Stop();
    for (const uint64_t id : {1, 2}) {
      const uint32_t weight = id == 1 ? 1 : 4;
      const view::View view = MakeView(id, 1);
      pool.data_plane->OnJobView("job", view, {.weight = weight, .tenant_weight = weight});
      agents.push_back(&pool.AddAgent(view, 0));
      pool.Start({agents.back()}, {"w"}, values.size());
      agents.back()->contribute_flags = wire::kFlagMore;
    }
    // This lets the aggregator measure what the link carries.
    for (int i = 0; i < 12; ++i) {
      Push(0);
      Push(1);
      pool.clock.skipped_ns += 100'000'000;
    }
    for (int i = 0; i < 4; ++i) Push(0);
  }
  void Push(size_t job) {
    agents[job]->Push("w", ++rounds[job], values);
    pool.Until([&] { return agents[job]->Count<wire::Result>() == rounds[job]; });
  }
  bool HasAllCredit() const { return agents[0]->credit_bytes == rounds[0] * kBytes; }

  Pool pool;
  const std::vector<float> values = std::vector<float>(kBytes / sizeof(float), 1.0f);
  std::vector<HandAgent*> agents;
  std::vector<uint64_t> rounds = {0, 0};
};

TEST_CASE("AggregatorDataPlane: on a full link, a job that is ahead waits for its credit",
          "[aggregator]") {
  SharedLink link;
  CHECK(link.pool.data_plane->totals().credit_held_bytes > 0);
  CHECK_FALSE(link.HasAllCredit());
  SECTION("It waits until the other job has had its part") {
    for (int i = 0; i < 16; ++i) link.Push(1);
    link.pool.Until([&] { return link.HasAllCredit(); });
  }
  SECTION("It waits until the other job has nothing more") {
    link.agents[1]->contribute_flags = 0;
    link.Push(1);
    link.pool.Until([&] { return link.HasAllCredit(); });
  }
  SECTION("It waits until the other job's connection is over") {
    link.agents[1]->transport->Close(link.agents[1]->connection);
    link.pool.Until([&] { return link.HasAllCredit(); });
  }
  SECTION("It waits until a fence, and then there is no credit to come") {
    const view::View next = MakeView(1, 1, 2);
    link.pool.data_plane->OnJobView("job", next, {});
    HandAgent& agent = *link.agents[0];
    agent.Follow(next);
    agent.Say(FrameType::kFence, std::vector<wire::Report>());
    const uint64_t credit_bytes = agent.credit_bytes;
    link.pool.Until([&] { return agent.HasFrame(FrameType::kFenceAck); });
    link.agents[1]->contribute_flags = 0;
    for (int i = 0; i < 4; ++i) link.Push(1);
    CHECK(agent.credit_bytes == credit_bytes);
  }
}

TEST_CASE("AggregatorDataPlane: a job whose members do not announce more is not held up",
          "[aggregator]") {
  SharedLink link;
  link.agents[0]->contribute_flags = 0;  // Members of older releases send no flags.
  link.Push(0);
  link.pool.Until([&] { return link.HasAllCredit(); });
}

TEST_CASE("AggregatorDataPlane: members behind one address do not share its bound",
          "[aggregator]") {
  const TransportMaker over = GENERATE(&OverLibfabric, &OverTcp);
  Pool pool({.memory_bytes_max = 64 * kMiB, .peer_connections_max = 2}, over);
  const view::View view = MakeView(1, 4);
  pool.data_plane->OnJobView("job", view);
  // Strangers at that address have used up the bound.
  std::vector<HandAgent*> nobodies;
  for (uint64_t i = 0; i < 3; ++i) {
    nobodies.push_back(&pool.AddNobody(view));
    pool.Until([&] { return pool.data_plane->totals().connections == i + 1; });
  }
  pool.Until([&] { return !nobodies[0]->connected; });  // The oldest one has gone.
  CHECK(pool.data_plane->totals().connections_over_limit == 1);
  for (uint32_t node = 0; node < 4; ++node) {
    HandAgent& agent = pool.AddAgent(view, node);
    agent.SayHello();
    pool.Until([&] { return agent.Count<wire::Welcome>() == 1; });
    CHECK(agent.Last<wire::Welcome>().status == wire::WelcomeStatus::kOk);
  }
  CHECK(pool.data_plane->totals().connections_over_limit == 1);
  CHECK(nobodies[1]->connected);
  CHECK(nobodies[2]->connected);
}

TEST_CASE("AggregatorDataPlane: a member has no more connections than it may", "[aggregator]") {
  Pool pool({.memory_bytes_max = 64 * kMiB, .peer_connections_max = 3}, OverTcp);
  const view::View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& other = pool.AddAgent(view, 1);  // This one is older than all of those, and silent.
  pool.Until([&] { return pool.data_plane->totals().connections == 1; });
  std::vector<HandAgent*> silent;
  for (uint64_t i = 0; i < 4; ++i) {
    silent.push_back(&pool.AddAgent(view, 0));
    pool.Until([&] { return pool.data_plane->totals().connections == i + 2; });
  }
  pool.Until([&] { return !silent[0]->connected; });
  CHECK(silent[1]->connected);
  CHECK(other.connected);
  // Connections that read why they are refused do not count as silent. So the new one is refused.
  pool.clock.Stop();
  view::View differs = view;
  differs.slice_bytes_max *= 2;
  for (size_t i = 1; i < 4; ++i) silent[i]->transport->Close(silent[i]->connection);
  std::vector<HandAgent*> wrong;
  for (uint64_t i = 0; i < 4; ++i) {
    wrong.push_back(&pool.AddAgent(differs, 0));
    wrong[i]->SayHello();
    pool.Until([&] { return wrong[i]->Count<wire::Welcome>() == 1; });
  }
  CHECK(wrong[2]->Last<wire::Welcome>().status == wire::WelcomeStatus::kViewDiffers);
  CHECK(wrong[3]->Last<wire::Welcome>().text ==
        "node 0 of job 1 has the peer_connections_max=3 connections that one member may have to "
        "aggregator 'agg': an agent needs one, and one more where that breaks");
  other.SayHello();
  pool.Until([&] { return other.Count<wire::Welcome>() == 1; });
  CHECK(other.Last<wire::Welcome>().status == wire::WelcomeStatus::kOk);
}

TEST_CASE("AggregatorDataPlane: of the connections of a member that wait for a view, one stays",
          "[aggregator]") {
  Pool pool({.memory_bytes_max = 64 * kMiB}, OverTcp);
  const view::View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  // One waits for a newer view of the job, one for a job that is not known here.
  for (const uint64_t job : {1, 2}) {
    HandAgent& first = pool.AddAgent(MakeView(job, 2, 2), 0);
    first.SayHello();
    pool.Until([&] { return pool.data_plane->totals().connections == 2 * job - 1; });
    HandAgent& second = pool.AddAgent(MakeView(job, 2, 2), 0);
    second.SayHello();
    pool.Until([&] { return !first.connected; });
    CHECK(second.connected);
  }
}

TEST_CASE("AggregatorDataPlane: a member may connect again beside a connection that broke",
          "[aggregator]") {
  Pool pool({.memory_bytes_max = 64 * kMiB, .peer_connections_max = 1}, OverTcp);
  const view::View view = MakeView(1, 1);
  pool.data_plane->OnJobView("job", view);
  for (size_t i = 0; i < 2; ++i) {
    HandAgent& agent = pool.AddAgent(view, 0);
    agent.SayHello();
    pool.Until([&] { return agent.Count<wire::Welcome>() == 1; });
    CHECK(agent.Last<wire::Welcome>().status == wire::WelcomeStatus::kOk);
  }
}

TEST_CASE("AggregatorDataPlane: the oldest of the connections that say nothing are closed",
          "[aggregator]") {
  Pool pool({.memory_bytes_max = 64 * kMiB, .unproven_connections_max = 2});
  const view::View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& member = pool.AddAgent(view, 0);
  member.SayHello();
  pool.Until([&] { return member.Count<wire::Welcome>() == 1; });
  std::vector<HandAgent*> silent;
  for (uint64_t i = 0; i < 3; ++i) {
    silent.push_back(&pool.AddNobody(view));
    pool.Until([&] { return pool.data_plane->totals().connections == i + 2; });
  }
  pool.Until([&] { return !silent[0]->connected; });
  CHECK(silent[1]->connected);
  CHECK(silent[2]->connected);
  CHECK(member.connected);
}

TEST_CASE("AggregatorDataPlane: jobs of one tenant share its limit", "[aggregator]") {
  Pool pool;
  const view::JobQuota quota = {.tenant = "t", .tenant_limit = {.memory_bytes_max = 4000}};
  std::vector<HandAgent*> agents;
  for (const uint64_t id : {1, 2}) {
    const view::View view = MakeView(id, 1);
    pool.data_plane->OnJobView("job", view, quota);
    agents.push_back(&pool.AddAgent(view, 0));
    pool.Start({agents.back()}, {"w"}, 300);  // 2 x 1216 bytes.
  }
  CHECK(agents[0]->Last<wire::Declared>().status == wire::DeclaredStatus::kOk);
  CHECK(agents[1]->Last<wire::Declared>().status == wire::DeclaredStatus::kOverBudget);
  // The rules change, and one job is over.
  pool.data_plane->OnJobClosed(JobId{1}, "over");
  pool.clock.skipped_ns += 10'000'000'000;
  pool.Until([&] { return pool.data_plane->jobs().size() == 1; });
  agents[1]->Say(FrameType::kDeclare, std::vector{agents[1]->DeclareOf("v", 300, Op::kSum)});
  pool.Until([&] { return agents[1]->Count<wire::Declared>() == 2; });
  CHECK(agents[1]->Last<wire::Declared>().status == wire::DeclaredStatus::kOk);
}

TEST_CASE("AggregatorDataPlane: a member that does not read is closed before much waits for it",
          "[aggregator]") {
  Pool pool({.memory_bytes_max = 64 * kMiB, .waiting_frames_bytes_max = 2 * kMiB}, OverTcp);
  const view::View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& other = pool.AddAgent(view, 1);
  HandAgent& deaf = pool.AddAgent(view, 0);
  pool.Start({&other, &deaf}, {"w"}, 8);
  deaf.Say(FrameType::kFailed,
           std::vector{wire::Failed{.key = KeyOf("w"), .text = std::string(2000, 'x')}});
  pool.Until([&] { return deaf.Count<wire::Failed>() == 1; });
  const std::vector<wire::Declare> again(100, deaf.DeclareOf("w", 8, Op::kSum));
  // It sends as long as it is connected, and does not poll, so it reads nothing.
  const ConnectionId id{2};
  REQUIRE(pool.data_plane->JobOf(id) != nullptr);
  uint64_t waiting_max = 0;
  for (int frame = 0; frame < 10'000 && pool.data_plane->JobOf(id) != nullptr; ++frame) {
    deaf.Say(FrameType::kDeclare, again);
    pool.data_plane->Poll();
    waiting_max = std::max(waiting_max, pool.transport->PendingBytes(id));
  }
  CHECK(pool.data_plane->JobOf(id) == nullptr);
  CHECK(waiting_max < 4 * kMiB);
  pool.Until([&] { return !deaf.connected; });
  CHECK(other.connected);
}

TEST_CASE("AggregatorDataPlane: a member that asks again and again is closed, though it reads",
          "[aggregator]") {
  Pool pool({.memory_bytes_max = 64 * kMiB, .refusals_max = 1000}, OverTcp);
  const view::View view = MakeView(1, 1);
  pool.data_plane->OnJobView("job", view);
  HandAgent& agent = pool.AddAgent(view, 0);
  pool.Start({&agent}, {"w"}, 8);
  agent.Say(FrameType::kFailed, std::vector{wire::Failed{.key = KeyOf("w"), .text = "no"}});
  const std::vector<wire::Declare> again(100, agent.DeclareOf("w", 8, Op::kSum));
  for (int frame = 0; frame < 10; ++frame) agent.Say(FrameType::kDeclare, again);
  pool.Until([&] { return agent.Count<wire::Declared>() == 1001; });
  CHECK(agent.connected);
  agent.Say(FrameType::kDeclare, again);
  pool.Until([&] { return !agent.connected; });
}

}  // namespace
}  // namespace talweg::aggregator
