// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "libs/membership/scheduler_core.h"
#include "libs/membership/texts.h"

// The aggregators' events.
namespace talweg::membership {
namespace {

// Logs an aggregator that has come too late: otherwise nobody would look for it.
void NoteIfLate(const view::ViewAggregator& aggregator, const JobTable& jobs, Turn& turn) {
  size_t without = 0;
  const LiveJob* example = nullptr;
  for (const auto& [id, job] : jobs.all()) {
    if (job.state != JobState::kRunning || job.view->IndexOfAggregator(aggregator.incarnation)) {
      continue;
    }
    if (without++ == 0) example = &job;
  }
  if (without == 0) return;
  turn.Log(AggregatorText(aggregator) + " is not used by job '" + example->name + "'" +
           (without > 1 ? " and " + std::to_string(without - 1) + " more" : "") +
           ", whose view was made without it; jobs that begin from now on use it, and those that "
           "get another view");
}

}  // namespace

Answer SchedulerCore::OnRegister(const view::ViewAggregator& aggregator, const SecretHash& secret,
                                 int64_t now_ns, std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) { return pool_.Register(aggregator, secret, turn); });
}

Answer SchedulerCore::OnRenewAggregator(const PoolCaller& caller, int64_t now_ns,
                                        std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) { return pool_.Renew(caller, turn.now_ns); });
}

DeregisterAnswer SchedulerCore::OnDeregister(const PoolCaller& caller, bool leave,
                                             const std::string& text, int64_t now_ns,
                                             std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) {
    LiveAggregator* aggregator = nullptr;
    DeregisterAnswer answer{pool_.FindFor(caller, aggregator)};
    if (!answer.answer.ok()) {
      // The aggregator has said so before, or is refused anyway.
      if (leave && answer.answer.code == Code::kRefused) answer.answer = {};
      return answer;
    }
    for (const auto& [id, job] : jobs_.all()) {
      if (job.state != JobState::kRunning || !job.view->IndexOfAggregator(caller.incarnation)) {
        continue;
      }
      ++answer.job_count;
      turn.Touch(job);
    }
    if (leave) {
      pool_.Lose(*aggregator, "was stopped" + (text.empty() ? "" : ": " + text), turn);
    } else {
      pool_.Drain(*aggregator, text, turn);
    }
    return answer;
  });
}

Answer SchedulerCore::OnAggregatorAttached(StreamId stream, const PoolCaller& caller,
                                           const std::vector<HeldJob>& held, int64_t now_ns,
                                           std::vector<Effect>& out, bool knows_standbys) {
  return Perform(now_ns, out, [&](Turn& turn) {
    LiveAggregator* aggregator = nullptr;
    const Answer answer = pool_.FindFor(caller, aggregator);
    if (!answer.ok()) return answer;
    const Answer believed = CheckHeldJobs(held, turn.now_ns);
    if (!believed.ok()) return believed;
    const bool is_first = pool_.Attach(*aggregator, stream, knows_standbys, turn);
    if (is_first) NoteIfLate(aggregator->record.aggregator, jobs_, turn);
    turn.Say(TellAggregator{stream, Attached{}});
    for (const auto& [id, epoch] : held) {
      LiveJob* const job = jobs_.Find(id);
      if (job == nullptr) numbers_.ObserveJob(id, turn);
      if (job == nullptr || job->Over()) {
        const std::string why =
            job == nullptr ? "the scheduler knows no job " + std::to_string(id.value()) +
                                 "; was it started without the store that has the job (in_memory, "
                                 "or another store_path)?"
                           : job->text;
        turn.Say(TellAggregator{stream, JobClosed{id, why}});
      } else {
        JobLife::ObserveEpoch(*job, epoch, turn);
      }
    }
    for (const auto& [id, job] : jobs_.all()) {
      if (job.state == JobState::kRunning) {
        turn.Say(TellAggregator{stream, JobView{job.name, SharedView{job.view}, QuotaOf(job).share,
                                                job.GoneFromView()}});
      }
      // Members may have waited for an aggregator.
      turn.Touch(job);
    }
    return Answer{};
  });
}

Answer SchedulerCore::CheckHeldJobs(const std::vector<HeldJob>& held, int64_t now_ns) const {
  for (const auto& [id, epoch] : held) {
    const LiveJob* const job = jobs_.Find(id);
    const Answer answer =
        job == nullptr ? numbers_.CheckJob(id, now_ns)
                       : numbers_.CheckEpoch(*job, true, job->view != nullptr, epoch, now_ns);
    if (!answer.ok()) return answer;
  }
  return {};
}

}  // namespace talweg::membership
