// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/membership/scheduler_core.h"
#include "libs/membership/scheduler_core_fixture.h"

namespace talweg::membership {
namespace {

// Checks that a job begins as soon as begin_members are ready, and with fewer only when it has
// gathered.
class BeginCheck {
 public:
  void Look(const Fixture& f) {
    for (const auto& [id, job] : f.core->jobs()) {
      const auto ready = static_cast<uint64_t>(
          std::count_if(job.members.begin(), job.members.end(),
                        [](const auto& entry) { return entry.second.stream.has_value(); }));
      const uint32_t begin = job.spec.BeginMembers();
      if (job.state == JobState::kForming) {
        const bool has_aggregator = std::any_of(
            f.core->aggregators().begin(), f.core->aggregators().end(), [](const auto& entry) {
              return entry.second.record.state == AggregatorState::kLive && entry.second.stream;
            });
        CHECK_FALSE((ready >= begin && has_aggregator));
        if (ready >= job.spec.min_members) {
          gathers_since_ns_.emplace(id, f.now_ns);
        } else {
          gathers_since_ns_.erase(id);
        }
      } else if (job.state == JobState::kRunning && begun_.insert(id).second) {
        const size_t members = job.view->members.size();
        if (members >= begin) {
          ++complete;
          continue;
        }
        ++incomplete;
        const auto since_ns = gathers_since_ns_.find(id);
        const bool is_seen = since_ns != gathers_since_ns_.end();
        CHECK((job.spec.gather_ns == 0 || is_seen));
        if (is_seen) CHECK(f.now_ns >= since_ns->second + job.spec.gather_ns);
      }
    }
  }

  uint64_t complete = 0;
  uint64_t incomplete = 0;

 private:
  std::map<JobId, int64_t> gathers_since_ns_;
  std::set<JobId> begun_;
};

TEST_CASE("SchedulerCore: random lives keep their promises", "[membership]") {
  uint64_t views = 0;
  uint64_t failures = 0;
  uint64_t complete = 0;
  uint64_t incomplete = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Fixture f;
    uint64_t incarnation = 1000;
    std::vector<std::pair<JobId, view::MemberIdentity>> members;
    std::vector<uint64_t> aggregators;
    JobSpec spec = Spec(1 + static_cast<uint32_t>(random.Below(3)), 4,
                        random.OneIn(3) ? LossPolicy::kFailJob : LossPolicy::kContinue);
    if (random.OneIn(2)) {
      spec.begin_members = spec.min_members + static_cast<uint32_t>(random.Below(2));
      spec.gather_ns = static_cast<int64_t>(random.Below(20)) * kSecond;
    }
    BeginCheck begins;
    for (int step = 0; step < 150; ++step) {
      const auto any = [&](auto& list) { return list[random.Below(list.size())]; };
      switch (random.Below(12)) {
        case 0:
        case 1: {
          const auto node = static_cast<uint32_t>(random.Below(5));
          const JoinAnswer answer =
              f.Join(Fixture::Request(random.OneIn(4) ? "b" : "a", node, ++incarnation, spec));
          if (answer.answer.ok()) members.emplace_back(answer.job, Id(node, incarnation));
          break;
        }
        case 2:
        case 3:
        case 4:
          if (!members.empty()) {
            const auto [job, id] = any(members);
            f.Attach(job, id, Epoch{random.OneIn(10) ? random.Below(20) : 0});
          }
          break;
        case 5: f.BreakStream(StreamId{1 + random.Below(60)}); break;
        case 6:
          if (!members.empty()) {
            const auto [job, id] = any(members);
            f.Leave(job, id, random.OneIn(2) ? LeaveReason::kFinished : LeaveReason::kStopped);
          }
          break;
        case 7: {
          const std::string name = "a" + std::to_string(random.Below(3));
          if (f.Register(Fixture::Named(name, ++incarnation)).ok()) {
            aggregators.push_back(incarnation);
          }
          break;
        }
        case 8:
          if (!aggregators.empty()) f.AttachAggregator(any(aggregators));
          break;
        case 9:
          for (const auto& [id, job] : f.core->jobs()) {
            if (!job.quiesce) continue;
            const auto waits_for = job.quiesce->waits_for;
            const JobId job_id = id;
            const QuiesceId quiesce = job.quiesce->id;
            for (const view::MemberIdentity& member : waits_for)
              f.Quiesced(job_id, member, quiesce);
            break;
          }
          break;
        case 10: f.Pass(static_cast<int64_t>(random.Below(4)) * kSecond); break;
        case 11:
          if (random.OneIn(3)) f.Start();
          if (!aggregators.empty() && random.OneIn(4)) {
            f.Deregister(any(aggregators), random.OneIn(2));
          }
          break;
      }
      begins.Look(f);
      for (const auto& [id, job] : f.core->jobs()) {
        CHECK(job.Over() + (job.state == JobState::kForming) + (job.view != nullptr) >= 1);
        if (job.state == JobState::kFailed) ++failures;
        if (job.state != JobState::kRunning) continue;
        CHECK((job.epoch_floor == job.view->epoch || job.recovers));
        views = std::max(views, job.view->epoch.value());
      }
    }
    complete += begins.complete;
    incomplete += begins.incomplete;
  }
  CHECK(views > 5);
  CHECK(failures > 100);
  CHECK(complete > 20);
  CHECK(incomplete > 20);
}

}  // namespace
}  // namespace talweg::membership
