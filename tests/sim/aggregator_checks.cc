// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <variant>

#include "tests/sim/agent_process.h"
#include "tests/sim/aggregator_process.h"

// Checks of an aggregator, except for those of its ranks' results.
namespace talweg::sim {

// Rule 9: memory is (members that take part + 1) times the bytes that are placed here.
void AggregatorProcess::CheckMemory(const aggregation::AggregatorCore& job,
                                    uint64_t held_bytes) const {
  if (!job.reports_complete() || job.closed()) return;
  uint64_t reserved = 0;
  for (const auto& [key, tensor] : job.tensors()) {
    if (tensor.poison) return;  // Its memory stays until the next view.
    reserved += tensor.SlotBytes() * (tensor.participation.member_count() + 1);
  }
  if (held_bytes > reserved) {
    throw Violation{name_ + ": holds " + std::to_string(held_bytes) +
                    " bytes for tensors that may take " + std::to_string(reserved)};
  }
}

void AggregatorProcess::CheckPlaces() const {
  if (config_.profile->place_bytes_max == 0) return;
  uint64_t placed = 0;
  for (const aggregation::AggregatorCore* const job : data_plane_.jobs()) {
    if (!config_.profile->rule_is_of_tenant) placed = 0;
    placed += job->place().used_bytes();
    if (placed <= config_.profile->place_bytes_max) continue;
    throw Violation{name_ + ": has placed " + std::to_string(placed) + " bytes of the " +
                    std::to_string(config_.profile->place_bytes_max) + " that a rule allows"};
  }
}

void AggregatorProcess::CheckAfterwards() {
  CheckPlaces();
  for (const aggregation::AggregatorCore* const job : data_plane_.jobs()) {
    Seen& seen = seen_[job->config().job];
    const Seen now{.epoch = job->view().epoch,
                   .reports_complete = job->reports_complete(),
                   .held_bytes = data_plane_.HeldBytes(job->config().job)};
    const bool was_complete = seen.reports_complete && seen.epoch == now.epoch;
    if (!was_complete && now.reports_complete) CheckFenced(*job);
    if (seen.held_bytes != now.held_bytes) CheckMemory(*job, now.held_bytes);
    seen = now;
  }
}

// A round waits for members whose connection has broken: they contribute again over the next one.
void AggregatorProcess::CheckForgotten(const aggregation::AggregatorCore& job,
                                       ConnectionId connection) const {
  if (job.sessions().contains(connection)) {
    throw Violation{name_ + ": keeps the session of a connection that is closed"};
  }
  if (job.closed()) return;
  for (const auto& [key, tensor] : job.tensors()) {
    for (const aggregation::LocalSlice& slice : tensor.local) {
      if (!tensor.Placed() || slice.round.state() != aggregation::SliceRound::State::kFilling) {
        continue;
      }
      for (size_t i = 0; i < slice.round.parts().size(); ++i) {
        if (!slice.round.parts()[i].here || job.members()[i].connection) continue;
        throw Violation{name_ + ": counts a contribution that came over a broken connection"};
      }
    }
  }
}

// Rules 2 and 3: memory has one writer, and never gets another when that writer is gone. The first
// member that is told of a region is its writer.
void AggregatorProcess::CheckWriter(const aggregation::AggregatorCore& job, ConnectionId connection,
                                    const wire::Declared& entry) {
  const auto session = job.sessions().find(connection);
  if (entry.status != wire::DeclaredStatus::kOk || entry.slot.key == 0 ||
      session == job.sessions().end()) {
    return;
  }
  const view::MemberIdentity& member = session->second.hello.member;
  if (writers_.emplace(entry.slot.key, member).first->second == member) return;
  throw Violation{name_ + ": a member is given the slots of one that has left"};
}

// A member of the newest view is let in; one that is not in the view here is not.
void AggregatorProcess::OnToken(const transport::TokenClaim& claim, const std::string& why) {
  const transport::PeerIdentity& peer = claim.identity;
  const view::MemberIdentity member{peer.node, peer.incarnation};
  const aggregation::AggregatorCore* here = nullptr;
  for (const aggregation::AggregatorCore* const job : jobs()) {
    if (job->config().job == peer.job && !job->closed()) here = job;
  }
  if (here == nullptr) return;
  const bool is_out = peer.epoch <= here->view().epoch && !here->view().IndexOf(member);
  if (why.empty()) {
    if (is_out) throw Violation{name_ + ": lets in a member that is out of its view"};
    return;
  }
  if (is_out) trace_->Reached("a member that is out of the view is not let in");
  if (scheduler_->core() == nullptr || trace_->HasReached(kOlderStore)) return;
  const auto job = scheduler_->core()->jobs().find(peer.job);
  if (job == scheduler_->core()->jobs().end() || !job->second.view) return;
  if (job->second.view->IndexOf(member)) {
    throw Violation{name_ + ": does not let in a member of the newest view: " + why};
  }
}

// A member makes keys of later epochs, too, when it is a member no more.
void AggregatorProcess::CheckDepartedStayOut() const {
  for (const aggregation::AggregatorCore* const job : jobs()) {
    const auto known = were_members_.find(job->config().job);
    if (job->closed() || known == were_members_.end()) continue;
    for (const view::MemberIdentity& member : known->second) {
      if (job->view().IndexOf(member)) continue;
      if (!transport_.LetsIn({.job = job->config().job,
                              .epoch = job->view().epoch.Next(),
                              .node = member.node,
                              .incarnation = member.incarnation})) {
        continue;
      }
      throw Violation{name_ + ": lets in a member that has departed, in a later epoch"};
    }
  }
}

void AggregatorProcess::CheckTokensAreSpent() {
  if (!config_.profile->members_prove) return;
  if (transport_.LetsInAgain()) {
    throw Violation{name_ + ": a token lets a member in twice"};
  }
}

// Rule 3: a member that is welcomed over a new connection writes nothing over an old one. A lost
// incarnation of the member does not count: what it still writes lands in slots of its own.
void AggregatorProcess::CheckOnlyOne(ConnectionId connection, const wire::Welcome& entry) {
  if (entry.status != wire::WelcomeStatus::kOk) {
    refused_.insert(connection);
    return;
  }
  // Nothing can arrive over a connection whose Hello was refused.
  const auto has_greeted = [this, job = data_plane_.JobOf(connection)](ConnectionId older) {
    return data_plane_.JobOf(older) == job && !refused_.contains(older);
  };
  if (!network_->HearsOlder(config_.host, connection, has_greeted)) return;
  throw Violation{name_ + ": welcomes a connection and still hears an older one of that member"};
}

// Rule 1: nothing of an older epoch lands in an epoch whose tensors are decided.
void AggregatorProcess::CheckFenced(const aggregation::AggregatorCore& job) const {
  for (const auto& [connection, session] : job.sessions()) {
    if (session.state != aggregation::SessionState::kActive) continue;
    if (job.view().IndexOf(session.hello.member)) continue;
    throw Violation{name_ + ": decides while a member that is out of the view is connected"};
  }
  const auto is_of_job = [&](ConnectionId connection) {
    return data_plane_.JobOf(connection) == &job;
  };
  if (!network_->WritesUnderWayTo(config_.host, is_of_job)) return;
  throw Violation{name_ + ": decides while contributions of an older epoch are landing"};
}

void AggregatorProcess::NotePresent() {
  for (const aggregation::AggregatorCore* const job : data_plane_.jobs()) {
    for (size_t i = 0; i < job->members().size(); ++i) {
      were_members_[job->config().job].insert(job->view().members[i].id);
      auto& [epoch, until_ns] = present_[{job->config().job, job->view().members[i].id.node}];
      if (epoch == job->view().epoch && !job->members()[i].connection) continue;
      epoch = job->view().epoch;
      until_ns = timeline_->now_ns();
    }
  }
}

// Section 8: other members give a node up because of this message.
void AggregatorProcess::CheckAbsence(const aggregation::AggregatorCore& job,
                                     const wire::Waiting& notice) const {
  for (size_t i = 0; i < notice.missing_nodes.size(); ++i) {
    const NodeRank node{notice.missing_nodes[i]};
    const int64_t most_ns = timeline_->now_ns() - present_.at({job.config().job, node}).second;
    if (notice.absent_ns[i] <= static_cast<uint64_t>(most_ns)) continue;
    throw Violation{
        name_ + ": says that node " + std::to_string(node.value()) + " has had no connection for " +
        std::to_string(notice.absent_ns[i] / kMillisecond) + " ms, but it was connected " +
        std::to_string(most_ns / kMillisecond) + " ms ago"};
  }
}

void AggregatorProcess::NoteReceived(ConnectionId connection, const wire::Frame& frame) {
  const auto* entries = std::get_if<std::vector<wire::Contribute>>(&frame.entries);
  if (entries == nullptr) return;
  uint64_t& untold = credit_[connection].untold_bytes;
  for (const wire::Contribute& entry : *entries) {
    untold += wire::CreditCost(entry.form, entry.travel_bytes);
  }
}

// Rule 9: credit comes back once, and no credit from before a Welcome or FenceAck does.
void AggregatorProcess::CheckCredit(ConnectionId connection, const wire::Header& header) {
  uint64_t& untold = credit_[connection].untold_bytes;
  if (header.credit_bytes > untold) {
    throw Violation{name_ + ": gives back " + std::to_string(header.credit_bytes) +
                    " bytes of credit, but only " + std::to_string(untold) + " have arrived"};
  }
  untold -= header.credit_bytes;
  if (header.credit_bytes > 0) credit_[connection].untold_at_tick = false;
  if (header.type == wire::FrameType::kWelcome || header.type == wire::FrameType::kFenceAck) {
    untold = 0;
  }
}

// Credit that no frame carries leaves in a frame of its own. Credit that was late for its epoch
// comes back with the FenceAck.
void AggregatorProcess::CheckCreditIsTold() {
  for (auto& [connection, credit] : credit_) {
    const aggregation::AggregatorCore* const job = data_plane_.JobOf(connection);
    const bool is_in_epoch =
        job != nullptr &&
        std::any_of(job->members().begin(), job->members().end(),
                    [name = connection](const aggregation::PresentMember& member) {
                      return member.connection == name;
                    });
    const bool is_untold = is_in_epoch && credit.untold_bytes > 0;
    if (is_untold && credit.untold_at_tick) {
      throw Violation{name_ + ": does not give back " + std::to_string(credit.untold_bytes) +
                      " bytes of credit"};
    }
    credit.untold_at_tick = is_untold;
  }
}

// An aggregator never takes a contribution that no tensor waits for. It refuses the contribution or
// counts it as late.
void AggregatorProcess::DeliverConfused(const aggregation::AggregatorCore& job,
                                        const wire::Frame& frame,
                                        const std::function<void()>& deliver) {
  const auto counted = [](const aggregation::Counters& counters) {
    uint64_t count = counters.contributions_late + counters.frames_unexpected;
    for (const uint64_t refused : counters.refused) count += refused;
    return count;
  };
  const aggregation::Counters before = job.counters();
  const wire::Contribute& entry = std::get<std::vector<wire::Contribute>>(frame.entries).front();
  const auto& tensors = job.tensors();
  if (const auto tensor = tensors.find(entry.key); tensor != tensors.end()) {
    for (const aggregation::LocalSlice& slice : tensor->second.local) {
      // The first contribution of an epoch decides which round is open. Only the others could
      // reveal that it is wrong.
      if (slice.index == entry.slice && slice.round.open_round() == Round{0}) return;
    }
  }
  const bool rank_count_is_wrong = entry.rank_count > kConfusedRankCount;
  deliver();
  if (job.counters().contributions != before.contributions) {
    throw Violation{name_ + ": takes a contribution to round " +
                    std::to_string(kConfusedRound.value()) + " of job " +
                    std::to_string(frame.header.job.value()) + " in epoch " +
                    std::to_string(frame.header.epoch.value())};
  }
  const auto wrong_rounds = [](const aggregation::Counters& counters) {
    return counters.refused[static_cast<size_t>(wire::RefusedReason::kWrongRound)];
  };
  const bool only_its_round = frame.header.job == job.config().job &&
                              entry.form == wire::Form::kWritten &&
                              frame.header.epoch == job.view().epoch &&
                              entry.mode == wire::Mode::kSum && !rank_count_is_wrong;
  if (!only_its_round && wrong_rounds(job.counters()) != wrong_rounds(before)) {
    throw Violation{name_ + ": refuses a contribution for its round alone, which is of job " +
                    std::to_string(frame.header.job.value()) + ", epoch " +
                    std::to_string(frame.header.epoch.value()) + ", and of " +
                    std::to_string(entry.bytes.size()) + " bytes"};
  }
  if (counted(job.counters()) == counted(before) && !job.closed()) {
    trace_->Reached("a confused contribution after a refused Hello");
  }
}

void AggregatorProcess::CheckMemory() const {
  uint64_t reserved = 0;
  for (const auto& each : {jobs(), leaving_jobs()}) {
    for (const aggregation::AggregatorCore* const job : each) {
      reserved += job->Status(timeline_->now_ns(), false).reserved_bytes;
    }
  }
  if (reserved != data_plane_.budget().used_bytes()) {
    throw Violation{name_ + ": memory is reserved that belongs to no job"};
  }
}

}  // namespace talweg::sim
