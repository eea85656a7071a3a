// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "libs/base/check.h"
#include "libs/membership/scheduler_core.h"
#include "libs/membership/turn.h"

// The pool of aggregators.
namespace talweg::membership {
namespace {

constexpr size_t kLostAggregatorsMax = 256;

Answer Refuse(Code code, std::string text) { return {.code = code, .text = std::move(text)}; }

}  // namespace

Answer SchedulerCore::OnRegister(const view::ViewAggregator& aggregator, const SecretHash& secret,
                                 int64_t now_ns, std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) {
    const std::string problem = ProblemOf(aggregator);
    if (!problem.empty()) return Refuse(Code::kInvalid, problem);
    LiveAggregator* known = nullptr;
    const Answer before = FindAggregator({aggregator.incarnation, secret}, known);
    if (before.code != Code::kUnknown) {
      if (known != nullptr) known->lease_end_ns = turn.now_ns + config_.lease_ns;
      return before;
    }
    size_t live = 0;
    for (auto& [id, other] : aggregators_) {
      if (other.record.state == AggregatorState::kLost) continue;
      ++live;
      if (other.record.aggregator.name != aggregator.name) continue;
      if (other.attached_before) {
        return Refuse(Code::kHeld, "the name '" + aggregator.name + "' is held by the " +
                                       AggregatorText(other.record.aggregator) +
                                       ", which is alive; choose another name or stop it");
      }
      Lose(other,
           "was replaced by incarnation " + HexText(aggregator.incarnation) +
               " before it opened its stream",
           turn);
      --live;
    }
    if (live >= config_.aggregators_max) {
      return Refuse(Code::kFull,
                    "aggregator '" + aggregator.name + "' would be one more than the " +
                        std::to_string(config_.aggregators_max) + " that this scheduler takes");
    }
    LiveAggregator& added = aggregators_[aggregator.incarnation];
    added.record.aggregator = aggregator;
    added.record.secret = secret;
    added.lease_end_ns = turn.now_ns + config_.lease_ns;
    turn.Store(added);
    // Its data address would let whoever reads it in.
    turn.Log(AggregatorText(aggregator) + " registered" +
             (aggregator.admin_address.empty() ? "" : ", admin at " + aggregator.admin_address));
    return Answer{};
  });
}

Answer SchedulerCore::FindAggregator(const PoolCaller& caller, LiveAggregator*& aggregator) {
  const auto found = aggregators_.find(caller.incarnation);
  if (found == aggregators_.end()) {
    return Refuse(Code::kUnknown, "this scheduler knows no aggregator of incarnation " +
                                      HexText(caller.incarnation) + "; register again");
  }
  if (!SameSecret(found->second.record.secret, caller.secret)) {
    return Refuse(Code::kUnproven, "the caller does not show the secret that the aggregator '" +
                                       found->second.record.aggregator.name +
                                       "' has registered with; only that process may speak for it");
  }
  if (found->second.record.state == AggregatorState::kLost) {
    return Refuse(Code::kRefused, found->second.record.text);
  }
  aggregator = &found->second;
  return {};
}

Answer SchedulerCore::OnRenewAggregator(const PoolCaller& caller, int64_t now_ns,
                                        std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) {
    LiveAggregator* aggregator = nullptr;
    const Answer answer = FindAggregator(caller, aggregator);
    if (answer.ok()) aggregator->lease_end_ns = turn.now_ns + config_.lease_ns;
    return answer;
  });
}

DeregisterAnswer SchedulerCore::OnDeregister(const PoolCaller& caller, bool leave,
                                             const std::string& text, int64_t now_ns,
                                             std::vector<Effect>& out) {
  return Perform(now_ns, out, [&](Turn& turn) {
    LiveAggregator* aggregator = nullptr;
    DeregisterAnswer answer{FindAggregator(caller, aggregator)};
    if (!answer.answer.ok()) {
      // Said before, or not worth more words.
      if (leave && answer.answer.code == Code::kRefused) answer.answer = {};
      return answer;
    }
    for (const auto& [id, job] : jobs_) {
      if (job.state != JobState::kRunning || !job.view->IndexOfAggregator(caller.incarnation)) {
        continue;
      }
      ++answer.job_count;
      turn.Touch(job);
    }
    if (leave) {
      Lose(*aggregator, "was stopped" + (text.empty() ? "" : ": " + text), turn);
    } else if (aggregator->record.state != AggregatorState::kDraining) {
      aggregator->record.state = AggregatorState::kDraining;
      aggregator->lease_end_ns = turn.now_ns + config_.lease_ns;
      turn.Store(*aggregator);
      turn.Log(AggregatorText(aggregator->record.aggregator) + " drains: " + text);
    }
    return answer;
  });
}

Answer SchedulerCore::OnAggregatorAttached(StreamId stream, const PoolCaller& caller,
                                           const std::vector<HeldJob>& held, int64_t now_ns,
                                           std::vector<Effect>& out, bool knows_standbys) {
  TALWEG_CHECK(!streams_.contains(stream));
  return Perform(now_ns, out, [&](Turn& turn) {
    LiveAggregator* aggregator = nullptr;
    const Answer answer = FindAggregator(caller, aggregator);
    if (!answer.ok()) return answer;
    const Answer believed = CheckHeldJobs(held, turn.now_ns);
    if (!believed.ok()) return believed;
    EndStream(aggregator->stream,
              Refuse(Code::kReplaced, "the aggregator has opened a newer stream"), turn);
    aggregator->stream = stream;
    aggregator->knows_standbys = knows_standbys;
    if (!std::exchange(aggregator->attached_before, true)) NoteIfLate(*aggregator, turn);
    aggregator->lease_end_ns = turn.now_ns + config_.lease_ns;
    streams_[stream] = {.aggregator = caller.incarnation};
    turn.Say(TellAggregator{stream, Attached{}});
    for (const HeldJob& job : held) {
      const auto known = jobs_.find(job.job);
      if (known == jobs_.end()) ObserveJobId(job.job, turn);
      if (known == jobs_.end() || known->second.Over()) {
        turn.Say(TellAggregator{
            stream,
            JobClosed{job.job, known == jobs_.end()
                                   ? "job " + std::to_string(job.job.value()) + " is not known"
                                   : known->second.text}});
      } else {
        ObserveEpoch(known->second, job.epoch, turn);
      }
    }
    for (const auto& [id, job] : jobs_) {
      if (job.state == JobState::kRunning) {
        turn.Say(TellAggregator{stream, JobView{job.name, *job.view, QuotaOf(job).share}});
      }
      // Some may have waited for an aggregator.
      turn.Touch(job);
    }
    return Answer{};
  });
}

// Nobody would look for it where nothing is said.
void SchedulerCore::NoteIfLate(const LiveAggregator& aggregator, Turn& turn) const {
  size_t without = 0;
  const LiveJob* example = nullptr;
  for (const auto& [id, job] : jobs_) {
    if (job.state != JobState::kRunning ||
        job.view->IndexOfAggregator(aggregator.record.aggregator.incarnation)) {
      continue;
    }
    if (without++ == 0) example = &job;
  }
  if (without == 0) return;
  turn.Log(AggregatorText(aggregator.record.aggregator) + " is not used by job '" + example->name +
           "'" + (without > 1 ? " and " + std::to_string(without - 1) + " more" : "") +
           ", whose view was made without it; jobs that begin from now on use it, and those that "
           "get another view");
}

void SchedulerCore::Lose(LiveAggregator& aggregator, const std::string& text, Turn& turn) {
  AggregatorRecord& record = aggregator.record;
  record.state = AggregatorState::kLost;
  record.text = AggregatorText(record.aggregator) + " " + text;
  turn.Log(record.text);
  EndStream(aggregator.stream, Refuse(Code::kRefused, record.text), turn);
  turn.Store(aggregator);
  for (const auto& [id, job] : jobs_) {
    if (job.state == JobState::kRunning &&
        job.view->IndexOfAggregator(record.aggregator.incarnation)) {
      turn.Touch(job);
    }
  }
  aggregators_lost_.push_back(record.aggregator.incarnation);
}

void SchedulerCore::CollectAggregators(Turn& turn) {
  while (aggregators_lost_.size() > kLostAggregatorsMax) {
    aggregators_.erase(aggregators_lost_.front());
    turn.write.aggregators_removed.push_back(aggregators_lost_.front());
    aggregators_lost_.erase(aggregators_lost_.begin());
  }
}

}  // namespace talweg::membership
