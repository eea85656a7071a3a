// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/aggregator_pool.h"

#include <utility>

#include "libs/membership/texts.h"

namespace talweg::membership {
namespace {

constexpr size_t kLostAggregatorsMax = 256;

}  // namespace

AggregatorPool::AggregatorPool(const Config& config, const Snapshot& snapshot, int64_t now_ns,
                               const Leases* leases, Streams* streams)
    : aggregators_max_(config.aggregators_max), leases_(leases), streams_(streams) {
  for (const AggregatorRecord& record : snapshot.aggregators) {
    const Incarnation id = record.aggregator.incarnation;
    aggregators_[id] = {
        .record = record, .attached_before = true, .lease_end_ns = leases_->EndNs(now_ns)};
    if (record.state == AggregatorState::kLost) lost_.push_back(id);
  }
}

const LiveAggregator* AggregatorPool::Find(Incarnation incarnation) const {
  const auto found = aggregators_.find(incarnation);
  return found == aggregators_.end() ? nullptr : &found->second;
}

Answer AggregatorPool::FindFor(const PoolCaller& caller, LiveAggregator*& aggregator) {
  const auto found = aggregators_.find(caller.incarnation);
  if (found == aggregators_.end()) {
    return Refuse(Code::kUnknown, "this scheduler knows no aggregator of incarnation " +
                                      view::HexText(caller.incarnation) + "; register again");
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

Answer AggregatorPool::Register(const view::ViewAggregator& aggregator, const SecretHash& secret,
                                Turn& turn) {
  const std::string problem = ProblemOf(aggregator);
  if (!problem.empty()) return Refuse(Code::kInvalid, problem);
  LiveAggregator* known = nullptr;
  const Answer before = FindFor({aggregator.incarnation, secret}, known);
  if (before.code != Code::kUnknown) {
    if (known != nullptr) known->lease_end_ns = leases_->EndNs(turn.now_ns);
    return before;
  }
  size_t live = 0;
  for (auto& [id, other] : aggregators_) {
    if (other.record.state == AggregatorState::kLost) continue;
    ++live;
    if (other.record.aggregator.name != aggregator.name) continue;
    const std::string held = "the name '" + aggregator.name + "' is held by the " +
                             AggregatorText(other.record.aggregator) + ", ";
    if (other.stream) {
      return Refuse(Code::kHeld, held + "which is alive; choose another name or stop it");
    }
    if (other.attached_before) return Refuse(Code::kNotYet, held + kSilentHolder);
    Lose(other,
         "was replaced by incarnation " + view::HexText(aggregator.incarnation) +
             " before it opened its stream",
         turn);
    --live;
  }
  if (live >= aggregators_max_) {
    return Refuse(Code::kFull, "aggregator '" + aggregator.name + "' would be one more than the " +
                                   std::to_string(aggregators_max_) + " that this scheduler takes");
  }
  LiveAggregator& added = aggregators_[aggregator.incarnation];
  added.record.aggregator = aggregator;
  added.record.secret = secret;
  added.lease_end_ns = leases_->EndNs(turn.now_ns);
  turn.Store(added.record);
  // The log does not show the data address, because it would let a reader in.
  turn.Log(AggregatorText(aggregator) + " registered" +
           (aggregator.admin_address.empty() ? "" : ", admin at " + aggregator.admin_address));
  return {};
}

Answer AggregatorPool::Renew(const PoolCaller& caller, int64_t now_ns) {
  LiveAggregator* aggregator = nullptr;
  const Answer answer = FindFor(caller, aggregator);
  if (answer.ok()) aggregator->lease_end_ns = leases_->EndNs(now_ns);
  return answer;
}

bool AggregatorPool::Attach(LiveAggregator& aggregator, StreamId stream, bool knows_standbys,
                            Turn& turn) {
  streams_->End(aggregator.stream,
                Refuse(Code::kReplaced, "the aggregator has opened a newer stream"), turn);
  streams_->Open(stream, aggregator.record.aggregator.incarnation, aggregator.stream);
  aggregator.shut_out.clear();
  aggregator.knows_standbys = knows_standbys;
  aggregator.lease_end_ns = leases_->EndNs(turn.now_ns);
  return !std::exchange(aggregator.attached_before, true);
}

void AggregatorPool::OnStreamBroken(Incarnation incarnation, bool counts,
                                    const std::string& shut_out, Turn& turn) {
  LiveAggregator& aggregator = aggregators_.at(incarnation);
  aggregator.stream.reset();
  aggregator.shut_out = shut_out;
  if (counts) Lose(aggregator, "closed its connection", turn);
}

void AggregatorPool::Drain(LiveAggregator& aggregator, const std::string& text, Turn& turn) {
  if (aggregator.record.state == AggregatorState::kDraining) return;
  aggregator.record.state = AggregatorState::kDraining;
  aggregator.lease_end_ns = leases_->EndNs(turn.now_ns);
  turn.Store(aggregator.record);
  turn.Log(AggregatorText(aggregator.record.aggregator) + " drains: " + text);
}

void AggregatorPool::Lose(LiveAggregator& aggregator, const std::string& text, Turn& turn) {
  AggregatorRecord& record = aggregator.record;
  record.state = AggregatorState::kLost;
  record.text = AggregatorText(record.aggregator) + " " + text;
  turn.Log(record.text);
  streams_->End(aggregator.stream, Refuse(Code::kRefused, record.text), turn);
  turn.Store(record);
  turn.TouchUsersOf(record);
  lost_.push_back(record.aggregator.incarnation);
}

void AggregatorPool::Tell(const AggregatorMessage& message, Turn& turn) const {
  for (const auto& [id, aggregator] : aggregators_) {
    if (aggregator.stream) turn.Say(TellAggregator{*aggregator.stream, message});
  }
}

void AggregatorPool::RenewAll(int64_t now_ns) {
  for (auto& [id, aggregator] : aggregators_) aggregator.lease_end_ns = leases_->EndNs(now_ns);
}

void AggregatorPool::ExpireLeases(Turn& turn) {
  for (auto& [id, aggregator] : aggregators_) {
    if (aggregator.record.state != AggregatorState::kLost &&
        leases_->HasLapsed(aggregator.lease_end_ns, turn.now_ns)) {
      Lose(aggregator, leases_->LapseText(aggregator.shut_out), turn);
    }
  }
}

void AggregatorPool::Collect(Turn& turn) {
  while (lost_.size() > kLostAggregatorsMax) {
    aggregators_.erase(lost_.front());
    turn.write.aggregators_removed.push_back(lost_.front());
    lost_.erase(lost_.begin());
  }
}

}  // namespace talweg::membership
