// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "tests/sim/agent_process.h"
#include "tests/sim/aggregator_process.h"

// What must be true at an aggregator, beside what its ranks get to see.
namespace talweg::sim {

// Rule 9: (members that take part + 1) times the bytes that are placed here.
void AggregatorProcess::CheckMemory(JobId id) const {
  const aggregation::Job& job = *jobs_.at(id);
  if (!job.reports_complete() || job.closed()) return;
  uint64_t bytes = 0;
  for (const auto& [name, cells] : memory_) {
    if (name.first == id) bytes += cells->size() * 64;
  }
  uint64_t reserved = 0;
  for (const auto& [key, tensor] : job.tensors()) {
    if (tensor.poison) return;  // Its memory stays until the next view.
    reserved += tensor.SlotBytes() * (tensor.participation.member_count() + 1);
  }
  if (bytes > reserved) {
    throw Violation{name_ + ": has " + std::to_string(bytes) + " bytes for what may take " +
                    std::to_string(reserved)};
  }
}

void AggregatorProcess::CountLoss(JobId id, ConnectionId connection) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || job->second->reports_complete()) return;
  for (const aggregation::Job::Member& member : job->second->members()) {
    if (member.reported && member.connection == connection) {
      trace_->Reached("a connection breaks behind its member's report");
    }
  }
}

// A round waits for those whose connection has broken: they contribute again over the next one.
void AggregatorProcess::CheckForgotten(JobId id) const {
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || job->second->closed()) return;
  for (const auto& [key, tensor] : job->second->tensors()) {
    for (const aggregation::LocalSlice& slice : tensor.local) {
      if (!tensor.Placed() || slice.round.state() != aggregation::SliceRound::State::kFilling) {
        continue;
      }
      for (size_t i = 0; i < slice.round.parts().size(); ++i) {
        if (!slice.round.parts()[i].here || job->second->members()[i].connection) continue;
        throw Violation{name_ + ": counts a contribution that came over a broken connection"};
      }
    }
  }
}

// Rules 2 and 3: memory has one writer, and is never another's when that one is gone.
void AggregatorProcess::CheckWriter(JobId id, ConnectionId connection,
                                    const wire::Declared& entry) const {
  const auto writer = writers_.find(entry.slot.key);
  if (entry.status != wire::DeclaredStatus::kOk || writer == writers_.end()) return;
  if (jobs_.at(id)->sessions().at(connection).hello.member == writer->second) return;
  throw Violation{name_ + ": a member is given the slots of one that has left"};
}

// Rule 3: a member that is welcomed over a new connection writes nothing over an old one.
void AggregatorProcess::CheckOnlyOne(ConnectionId connection, const wire::Welcome& entry) {
  if (entry.status != wire::WelcomeStatus::kOk) {
    refused_.insert(connection);
    return;
  }
  // Over one that was refused nothing can come.
  const auto has_greeted = [this](ConnectionId older) {
    return connection_jobs_.contains(older) && !refused_.contains(older);
  };
  if (!network_->HearsOlder(host_, connection, has_greeted)) return;
  throw Violation{name_ + ": welcomes a connection and still hears an older one of that member"};
}

// Rule 1: nothing of an older epoch lands in an epoch whose tensors are decided.
void AggregatorProcess::CheckFenced(JobId id) const {
  const auto is_of_job = [this, id](ConnectionId connection) {
    const auto job = connection_jobs_.find(connection);
    return job != connection_jobs_.end() && job->second == id;
  };
  for (const auto& [connection, session] : jobs_.at(id)->sessions()) {
    if (session.state != aggregation::Job::SessionState::kActive) continue;
    if (jobs_.at(id)->view().IndexOf(session.hello.member)) continue;
    throw Violation{name_ + ": decides while one that is out of the view is connected"};
  }
  if (!network_->WritesUnderWayTo(host_, is_of_job)) return;
  throw Violation{name_ + ": decides while contributions of an older epoch are landing"};
}

void AggregatorProcess::NotePresent(JobId id) {
  const aggregation::Job& job = *jobs_.at(id);
  for (size_t i = 0; i < job.members().size(); ++i) {
    auto& [epoch, until_ns] = present_[{id, job.view().members[i].id.node}];
    if (epoch == job.view().epoch && !job.members()[i].connection) continue;
    epoch = job.view().epoch;
    until_ns = timeline_->now_ns();
  }
}

// Section 8: others give a node up by it.
void AggregatorProcess::CheckAbsence(JobId id, const wire::Waiting& notice) const {
  for (size_t i = 0; i < notice.missing_nodes.size(); ++i) {
    const NodeRank node{notice.missing_nodes[i]};
    const int64_t most_ns = timeline_->now_ns() - present_.at({id, node}).second;
    if (notice.absent_ns[i] <= static_cast<uint64_t>(most_ns)) continue;
    throw Violation{name_ + ": says that node " + std::to_string(node.value()) +
                    " has had no connection for " +
                    std::to_string(notice.absent_ns[i] / kMillisecond) + " ms, and it was here " +
                    std::to_string(most_ns / kMillisecond) + " ms ago"};
  }
}

// A contribution that no tensor waits for is not taken, and is refused, or is too late to matter.
void AggregatorProcess::DeliverConfused(JobId job, const wire::Frame& frame,
                                        const std::function<void()>& deliver) {
  const auto counted = [](const aggregation::Counters& counters) {
    uint64_t count = counters.contributions_late + counters.frames_unexpected;
    for (const uint64_t refused : counters.refused) count += refused;
    return count;
  };
  const aggregation::Counters before = jobs_.at(job)->counters();
  const wire::Contribute& entry = std::get<std::vector<wire::Contribute>>(frame.entries).front();
  const auto& tensors = jobs_.at(job)->tensors();
  if (const auto tensor = tensors.find(entry.key); tensor != tensors.end()) {
    for (const aggregation::LocalSlice& slice : tensor->second.local) {
      // The first contribution of an epoch says which round is open: only the others could tell.
      if (slice.index == entry.slice && slice.round.open_round() == Round{0}) return;
    }
  }
  const bool rank_count_is_wrong = entry.rank_count > kConfusedRankCount;
  deliver();
  const auto after = jobs_.find(job);
  if (after == jobs_.end()) return;
  if (after->second->counters().contributions != before.contributions) {
    throw Violation{name_ + ": takes a contribution to round " +
                    std::to_string(kConfusedRound.value()) + " of job " +
                    std::to_string(frame.header.job.value()) + " in epoch " +
                    std::to_string(frame.header.epoch.value())};
  }
  const auto wrong_rounds = [](const aggregation::Counters& counters) {
    return counters.refused[static_cast<size_t>(wire::RefusedReason::kWrongRound)];
  };
  const bool only_its_round = frame.header.job == job && entry.form == wire::Form::kWritten &&
                              frame.header.epoch == after->second->view().epoch &&
                              entry.mode == wire::Mode::kSum && !rank_count_is_wrong;
  if (!only_its_round && wrong_rounds(after->second->counters()) != wrong_rounds(before)) {
    throw Violation{name_ + ": refuses a contribution for its round alone, which is of job " +
                    std::to_string(frame.header.job.value()) + ", epoch " +
                    std::to_string(frame.header.epoch.value()) + ", and of " +
                    std::to_string(entry.bytes.size()) + " bytes"};
  }
  if (counted(after->second->counters()) == counted(before) && !after->second->closed()) {
    trace_->Reached("a confused contribution behind a refused Hello");
  }
}

}  // namespace talweg::sim
