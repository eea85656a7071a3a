// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/job_table.h"

#include <catch2/catch.hpp>

namespace talweg::membership {
namespace {

JoinRequest Request(uint64_t incarnation) {
  JoinRequest request{.job_name = "j",
                      .member = {.id = {NodeRank{0}, Incarnation{incarnation}}, .rank_count = 1}};
  request.secret.bytes.fill(static_cast<uint8_t>(incarnation));
  return request;
}

void Enter(LiveJob& job, const JoinRequest& request) {
  job.members[request.member.id.node].record = {.member = request.member, .secret = request.secret};
}

TEST_CASE("JobTable: a name belongs to the job that is not over", "[membership]") {
  JobTable jobs({}, {}, Epoch{0}, 0);
  CHECK(jobs.FindOpen("j") == nullptr);
  LiveJob& job = jobs.Add(JobId{1}, Request(1), 0);
  CHECK(jobs.FindOpen("j") == &job);
  CHECK(jobs.OpenCount() == 1);
  job.state = JobState::kFailed;
  CHECK(jobs.FindOpen("j") == nullptr);
  CHECK(jobs.OpenCount() == 0);
  CHECK(jobs.Find(JobId{1}) == &job);
  CHECK(jobs.Find(JobId{2}) == nullptr);
}

TEST_CASE("JobTable: the newest job of a name says whether the name's job has finished",
          "[membership]") {
  JobTable jobs({}, {}, Epoch{0}, 0);
  CHECK_FALSE(jobs.HasFinished("j"));
  LiveJob& first = jobs.Add(JobId{1}, Request(1), 0);
  CHECK_FALSE(jobs.HasFinished("j"));
  first.state = JobState::kFailed;
  CHECK_FALSE(jobs.HasFinished("j"));
  first.state = JobState::kFinished;
  CHECK(jobs.HasFinished("j"));
  CHECK_FALSE(jobs.HasFinished("other"));
  LiveJob& second = jobs.Add(JobId{2}, Request(2), 0);
  CHECK_FALSE(jobs.HasFinished("j"));
  second.state = JobState::kFinished;
  CHECK(jobs.HasFinished("j"));
}

TEST_CASE("JobTable: a repeated Join that shows the same secret gets the same answer",
          "[membership]") {
  JobTable jobs({}, {}, Epoch{0}, 0);
  LiveJob& job = jobs.Add(JobId{1}, Request(1), 0);
  CHECK_FALSE(jobs.JoinedBefore(Request(1)));
  Enter(job, Request(1));
  REQUIRE(jobs.JoinedBefore(Request(1)));
  CHECK(jobs.JoinedBefore(Request(1))->answer.ok());
  CHECK(jobs.JoinedBefore(Request(1))->job == JobId{1});
  CHECK_FALSE(jobs.JoinedBefore(Request(2)));

  JoinRequest stranger = Request(1);
  stranger.secret = Request(2).secret;
  REQUIRE(jobs.JoinedBefore(stranger));
  CHECK(jobs.JoinedBefore(stranger)->answer.code == Code::kUnproven);
  CHECK(jobs.JoinedBefore(stranger)->job == JobId{0});

  MemberRecord gone = job.members.at(NodeRank{0}).record;
  gone.text = "it died";
  job.members.clear();
  job.gone.push_back(gone);
  REQUIRE(jobs.JoinedBefore(Request(1)));
  CHECK(jobs.JoinedBefore(Request(1))->answer.code == Code::kRefused);
  CHECK(jobs.JoinedBefore(Request(1))->answer.text.starts_with("it died; it must join"));
}

TEST_CASE("JobTable: jobs from the store keep their epochs, and leases start afresh",
          "[membership]") {
  JobRecord record{.id = JobId{3}, .name = "j", .epoch_floor = Epoch{7}};
  record.members.push_back({.member = Request(1).member});
  record.members.push_back({.member = Request(2).member, .state = MemberState::kLost});
  const Config config;
  JobTable jobs(config, {.jobs = {record}}, Epoch{5}, 100);
  const LiveJob* job = jobs.Find(JobId{3});
  REQUIRE(job != nullptr);
  CHECK(job->epoch_floor == Epoch{7});
  CHECK(job->epoch_stored == Epoch{7});
  CHECK(job->epoch_start == Epoch{5});
  REQUIRE(job->members.size() == 1);
  CHECK(job->members.at(NodeRank{0}).from_store);
  CHECK(job->members.at(NodeRank{0}).lease_end_ns == 100 + config.lease_ns);
  CHECK(job->gone.size() == 1);
  CHECK(job->Record() == record);
}

TEST_CASE("JobTable: the oldest of the jobs that are over are forgotten", "[membership]") {
  JobTable jobs({.history_ns = 100, .history_jobs_max = 2}, {}, Epoch{0}, 0);
  for (uint64_t id = 1; id <= 4; ++id) {
    LiveJob& job = jobs.Add(JobId{id}, Request(1), 0);
    job.state = JobState::kFinished;
    job.over_at_ns = static_cast<int64_t>(10 * id);
  }
  // This job is over, but its members are not gone yet.
  Enter(*jobs.Find(JobId{1}), Request(1));
  Turn turn(50);
  jobs.Collect(turn);
  CHECK(turn.write.jobs_removed == std::vector{JobId{2}});
  Turn later(130);
  jobs.Collect(later);
  CHECK(later.write.jobs_removed == std::vector{JobId{3}});
  CHECK(jobs.all().size() == 2);
}

}  // namespace
}  // namespace talweg::membership
