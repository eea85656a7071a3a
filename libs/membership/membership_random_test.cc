// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/membership/membership.h"
#include "libs/membership/membership_fixture.h"

namespace talweg::membership {
namespace {

TEST_CASE("Membership: random lives keep their promises", "[membership]") {
  uint64_t views = 0;
  uint64_t failures = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Fixture f;
    uint64_t incarnation = 1000;
    std::vector<std::pair<JobId, MemberIdentity>> members;
    std::vector<uint64_t> aggregators;
    const JobSpec spec = Spec(1 + static_cast<uint32_t>(random.Below(3)), 4,
                              random.OneIn(3) ? LossPolicy::kFailJob : LossPolicy::kContinue);
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
            for (const MemberIdentity& member : waits_for) f.Quiesced(job_id, member, quiesce);
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
      for (const auto& [id, job] : f.core->jobs()) {
        CHECK(job.Over() + (job.state == JobState::kForming) + (job.view != nullptr) >= 1);
        if (job.state == JobState::kFailed) ++failures;
        if (job.state != JobState::kRunning) continue;
        CHECK((job.epoch_floor == job.view->epoch || job.recovers));
        views = std::max(views, job.view->epoch.value());
      }
    }
  }
  CHECK(views > 5);
  CHECK(failures > 100);
}

}  // namespace
}  // namespace talweg::membership
