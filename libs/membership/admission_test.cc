// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <catch2/catch.hpp>

#include "libs/membership/quotas.h"
#include "libs/membership/scheduler_core.h"
#include "libs/membership/scheduler_core_fixture.h"

// What the rules of docs/quotas.md mean for nodes that want to join.
namespace talweg::membership {
namespace {

struct Ruled : Fixture {
  explicit Ruled(const std::string& rules) { SetQuotas(rules); }

  // A node asks to join a job of the tenant.
  Answer Ask(const std::string& job, uint32_t node, JobSpec spec = Spec(1, 4),
             const std::string& tenant = "t") {
    spec.tenant = tenant;
    return Join(Request(job, node, IncarnationOf(job, node), spec)).answer;
  }
  static uint64_t IncarnationOf(const std::string& job, uint32_t node) {
    return 1000 * static_cast<uint64_t>(job[0]) + node;
  }
  JobId JobOf(const std::string& name) const {
    JobId found{0};
    for (const auto& [id, job] : core->jobs()) {
      if (job.name == name) found = id;
    }
    return found;
  }
  void EndJob(const std::string& name) {
    const LiveJob job = core->jobs().at(JobOf(name));
    for (const auto& [node, member] : job.members) {
      REQUIRE(Leave(job.id, member.record.member.id).ok());
    }
  }
};

TEST_CASE("Admission: a job past its tenant's jobs_max waits until another ends", "[membership]") {
  Ruled f("tenant t jobs_max=2\n");
  CHECK(f.Ask("a", 0).ok());
  CHECK(f.Ask("b", 0).ok());
  const Answer wait = f.Ask("c", 0);
  CHECK(wait.code == Code::kNotYet);
  CHECK(wait.text ==
        "job 'c' waits: tenant 't' has 2 of the jobs_max=2 jobs that it may have in the "
        "scheduler's quotas_file ('a', 'b'); it begins when one of them ends");
  REQUIRE(f.core->waiting().size() == 1);
  CHECK(f.core->waiting()[0].text == wait.text);
  CHECK_FALSE(f.core->waiting()[0].node);
  // Other tenants' jobs do not wait for this tenant's, and members of an admitted job are let in.
  CHECK(f.Ask("d", 0, Spec(1, 4), "other").ok());
  CHECK(f.Ask("e", 0, Spec(1, 4), "").ok());
  CHECK(f.Ask("b", 1).ok());
  f.EndJob("a");
  CHECK(f.Ask("c", 0).ok());
  CHECK(f.core->waiting().empty());
}

TEST_CASE("Admission: jobs of a tenant begin in the order in which they came", "[membership]") {
  Ruled f("tenant t members_max=4\n");
  CHECK(f.Ask("a", 0, Spec(3, 3)).ok());
  CHECK(f.Ask("b", 0, Spec(4, 4)).code == Code::kNotYet);
  const Answer small = f.Ask("c", 0, Spec(1, 1));
  CHECK(small.code ==
        Code::kNotYet);  // There is room for it, but then there would never be room for the other.
  CHECK(Contains(small.text,
                 "job 'b' of tenant 't' came before it and waits: job 'b' waits: it "
                 "needs min_members=4, and jobs of tenant 't' hold 3 ('a') of the "
                 "members_max=4"));
  SECTION("The first stops asking, and is not waited for") {
    f.Pass(9 * kSecond);
    CHECK(f.Ask("c", 0, Spec(1, 1)).code == Code::kNotYet);
    f.Pass(2 * kSecond);
    CHECK(f.core->waiting().size() == 1);
  }
  SECTION("The first is let in when there is room") {
    f.EndJob("a");
    CHECK(f.Ask("c", 0, Spec(1, 1)).code == Code::kNotYet);
    CHECK(f.Ask("b", 0, Spec(4, 4)).ok());
    CHECK(f.Ask("c", 0, Spec(1, 1)).code == Code::kNotYet);
  }
}

TEST_CASE("Admission: a job that was admitted gets the members that it needs", "[membership]") {
  Ruled f("tenant t members_max=5\n");
  // A job holds what it needs, even before its members have come.
  CHECK(f.Ask("a", 0, Spec(3, 9)).ok());
  CHECK(f.Ask("b", 0, Spec(2, 9)).ok());
  CHECK(f.Ask("c", 0, Spec(1, 9)).code == Code::kNotYet);
  CHECK(f.Ask("b", 1, Spec(2, 9)).ok());
  const Answer more = f.Ask("b", 2, Spec(2, 9));
  CHECK(more.code == Code::kNotYet);
  CHECK(more.text ==
        "node 2 of job 'b' waits: jobs of tenant 't' hold 5 nodes of the members_max=5 in the "
        "scheduler's quotas_file; it enters when there is room");
  CHECK(f.Ask("a", 1, Spec(3, 9)).ok());
  CHECK(f.Ask("a", 2, Spec(3, 9)).ok());
  f.EndJob("a");
  CHECK(f.Ask("b", 2, Spec(2, 9)).ok());
}

TEST_CASE("Admission: a job that can never be admitted is refused at once", "[membership]") {
  Ruled f("job a* members_max=2\ntenant t members_max=3\n");
  const Answer job = f.Ask("a", 0, Spec(3, 3));
  CHECK(job.code == Code::kRefused);
  CHECK(job.text ==
        "job 'a' needs min_members=3, and it may have members_max=2 in the scheduler's "
        "quotas_file; ask for fewer, or raise it there");
  const Answer tenant = f.Ask("b", 0, Spec(4, 4));
  CHECK(tenant.code == Code::kRefused);
  CHECK(Contains(tenant.text, "tenant 't' may have members_max=3"));
  CHECK(f.core->jobs().empty());
}

TEST_CASE("Admission: a job has the members_max of its rule, and begins with them",
          "[membership]") {
  Ruled f("job a members_max=2\n");
  f.AddAggregator("a0", 100);
  JobSpec spec = Spec(1, 8);
  spec.gather_ns = 3600 * kSecond;
  const JobId job = f.Enter("a", 0, 10, spec);
  CHECK(f.StateOf(job) == JobState::kForming);
  CHECK(Contains(f.core->StateText(f.core->jobs().at(job)), "waits for 1 more member of 2"));
  f.Enter("a", 1, 11, spec);
  CHECK(f.StateOf(job) == JobState::kRunning);
  const Answer third = f.Join(Fixture::Request("a", 2, 12, spec)).answer;
  CHECK(third.code == Code::kFull);
  CHECK(third.text ==
        "job 'a' has the members_max=2 that it may have in the scheduler's quotas_file; raise it "
        "there");
  // Rules remove no members that are in.
  f.SetQuotas("job a members_max=1\n");
  CHECK(f.core->jobs().at(job).members.size() == 2);
  CHECK(f.StateOf(job) == JobState::kRunning);
  f.SetQuotas("");
  CHECK(f.Join(Fixture::Request("a", 2, 12, spec)).answer.ok());
}

TEST_CASE("Admission: a job that may not have begin_members begins with those of its rule",
          "[membership]") {
  Ruled f("job a members_max=2\n");
  f.AddAggregator("a0", 100);
  JobSpec spec = Spec(1, 8);
  spec.begin_members = 3;
  spec.gather_ns = 3600 * kSecond;
  const JobId job = f.Enter("a", 0, 10, spec);
  CHECK(f.StateOf(job) == JobState::kForming);
  f.Enter("a", 1, 11, spec);
  CHECK(f.StateOf(job) == JobState::kRunning);
}

TEST_CASE("Admission: an agent cannot name another tenant than the rule does", "[membership]") {
  Ruled f("job a tenant=t\ntenant t jobs_max=1\n");
  const Answer other = f.Ask("a", 0, Spec(1, 2), "u");
  CHECK(other.code == Code::kRefused);
  CHECK(other.text ==
        "job 'a' is of tenant 't' by a rule in the scheduler's quotas_file, and the agent of node "
        "0 (host-0, incarnation 7ae8) says tenant 'u'; leave its option tenant out");
  CHECK(f.Ask("a", 0, Spec(1, 2), "").ok());
  CHECK(f.core->UseOf("t").jobs.size() == 1);
  CHECK(f.Ask("b", 0).code == Code::kNotYet);
  // All agents of a job must name the same tenant.
  CHECK(Contains(f.Ask("a", 1, Spec(1, 2), "t").text,
                 "tenant is '' in the job and 't' in the request"));
}

TEST_CASE("Admission: aggregators hear what rules say of a job, and when that changes",
          "[membership]") {
  Ruled f("job a weight=3 priority=high\n");
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("a", 0, 10, Spec(1, 1));
  f.Enter("b", 0, 20, Spec(1, 1));
  const auto views = f.AggregatorTold<JobView>(100);
  REQUIRE(views.size() == 2);
  CHECK(views[0].quota ==
        view::JobQuota{.priority = view::Priority::kHigh, .weight = 3, .tenant_weight = 3});
  CHECK(views[1].quota == view::JobQuota{});
  f.SetQuotas("job a weight=4\n");
  const view::JobQuota changed = {.weight = 4, .tenant_weight = 4};
  CHECK(f.AggregatorTold<JobQuotaChanged>(100) ==
        std::vector{JobQuotaChanged{.job = job, .quota = changed}});
  // An aggregator that comes later hears the same.
  f.AddAggregator("a1", 101);
  CHECK(f.AggregatorTold<JobView>(101)[0].quota == changed);
}

TEST_CASE("Admission: a restart remembers whose job it was", "[membership]") {
  Ruled f("");
  CHECK(f.Ask("a", 0).ok());
  f.Start();
  f.SetQuotas("tenant t jobs_max=1\n");
  CHECK(f.Ask("b", 0).code == Code::kNotYet);
}

}  // namespace
}  // namespace talweg::membership
