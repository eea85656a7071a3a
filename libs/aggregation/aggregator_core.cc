// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/aggregator_core.h"

#include <utility>

#include "libs/base/check.h"
#include "libs/view/placement.h"

// Connections and views. Declarations are in aggregator_core_agreement.cc, contributions in
// aggregator_core_rounds.cc, reports in aggregator_core_recovery.cc.
namespace talweg::aggregation {
namespace {

std::string IdentityText(const view::MemberIdentity& id) {
  return "node " + std::to_string(id.node.value()) + " (incarnation " +
         std::to_string(id.incarnation.value()) + ")";
}

std::string EpochText(Epoch epoch) { return "epoch " + std::to_string(epoch.value()); }

}  // namespace

AggregatorCore::AggregatorCore(AggregatorCoreConfig config, MemoryBudget* budget)
    : config_(std::move(config)), budget_(budget) {
  TALWEG_CHECK(budget_ != nullptr);
}

AggregatorCore::~AggregatorCore() {
  budget_->Release(place_.used_bytes());
  if (tenant_ != nullptr) tenant_->Give(place_.used_bytes(), place_.used_tensors());
}

void AggregatorCore::SetQuota(const view::JobQuota& quota, std::shared_ptr<PlaceBudget> tenant) {
  quota_ = quota;
  place_.set_limit(quota.limit);
  if (tenant == tenant_) return;
  if (tenant_ != nullptr) tenant_->Give(place_.used_bytes(), place_.used_tensors());
  tenant_ = std::move(tenant);
  if (tenant_ != nullptr) tenant_->Take(place_.used_bytes(), place_.used_tensors());
}

void AggregatorCore::OnView(const view::View& view, int64_t now_ns, Effects& out) {
  none_waits_ = false;
  if (closed_ || view.job != config_.job || view.epoch <= view_.epoch || !view.Problem().empty()) {
    return;
  }
  ++counters_.views;
  view_ = view;
  self_ = view_.IndexOfAggregator(config_.self);
  members_.assign(view_.members.size(), {});
  reports_missing_ = members_.size();
  placement_digest_ = view::PlacementDigest(view_);
  reports_complete_ = false;
  view_since_ns_ = now_ns;
  last_epoch_notice_ns_ = now_ns;
  // Open rounds are dropped: their members hold the contributions.
  for (auto& [key, tensor] : tensors_) tensor.LeaveEpoch();

  // First whoever is out, so that nothing of theirs lands any more; then their memory.
  std::vector<ConnectionId> gone;
  for (const auto& [connection, session] : sessions_) {
    if (session.state != SessionState::kActive) continue;
    const bool is_out = !self_ || !view_.IndexOf(session.hello.member);
    if (is_out) gone.push_back(connection);
  }
  for (const ConnectionId connection : gone) {
    Close(connection,
          IdentityText(sessions_.at(connection).hello.member) + " or this aggregator is not in " +
              EpochText(view_.epoch) + " of job '" + config_.name + "' any more",
          out);
  }
  for (auto& [key, tensor] : tensors_) {
    if (!self_) {
      ReleaseAll(tensor, out);
      continue;
    }
    std::vector<view::MemberIdentity> departed;
    for (const auto& [member, slots] : tensor.slots) {
      if (!view_.IndexOf(member)) departed.push_back(member);
    }
    for (const view::MemberIdentity& member : departed) {
      ReleaseSlots(tensor, member, out);
    }
  }

  std::vector<ConnectionId> connections;
  for (const auto& [connection, session] : sessions_) connections.push_back(connection);
  for (const ConnectionId connection : connections) {
    const auto found = sessions_.find(connection);
    if (found == sessions_.end()) continue;  // Replaced by one of the others.
    Session& session = found->second;
    if (session.state == SessionState::kHeld) {
      Admit(connection, session, now_ns, out);
    } else if (session.state == SessionState::kActive && session.fence_held == view_.epoch) {
      Fenced(connection, session, out);
    }
  }
}

void AggregatorCore::OnClosed(const std::string& text, int64_t now_ns, Effects& out) {
  if (closed_) return;
  closed_ = true;
  for (auto& [connection, session] : sessions_) {
    SendEntry(connection, wire::Failed{.code = wire::FailedCode::kJobFailed, .text = text}, out);
    session.state = SessionState::kRefused;
    session.close_at_ns = now_ns + config_.refused_linger_ns;
  }
  for (PresentMember& member : members_) member.connection.reset();
  if (!sessions_.empty()) return;
  for (auto& [key, tensor] : tensors_) ReleaseAll(tensor, out);
}

void AggregatorCore::OnFrame(ConnectionId connection, const wire::Frame& frame, int64_t now_ns,
                             Effects& out) {
  none_waits_ = false;
  using wire::FrameType;
  const wire::Header& header = frame.header;
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) {
    const auto* hellos = std::get_if<std::vector<wire::Hello>>(&frame.entries);
    if (closed_ || header.job != config_.job || hellos == nullptr || hellos->size() != 1) {
      ++counters_.frames_unexpected;
      out.push_back(CloseConnection{connection, std::string("its first frame is a ") +
                                                    wire::FrameTypeName(header.type) +
                                                    ", not one Hello to this job"});
      return;
    }
    OnHello(connection, header.epoch, hellos->front(), now_ns, out);
    return;
  }
  Session& session = found->second;
  if (session.state == SessionState::kRefused) return;
  if (header.type == FrameType::kGoodbye) {
    ++counters_.goodbyes;
    Close(connection, "it said goodbye", out);
    return;
  }
  if (header.type == FrameType::kContribute) {
    OnContributions(connection, session, frame, now_ns, out);
    return;
  }
  const bool expected = session.state == SessionState::kActive && header.job == config_.job &&
                        (header.type == FrameType::kFence || header.type == FrameType::kDeclare ||
                         header.type == FrameType::kFailed || header.type == FrameType::kReport);
  if (!expected || (header.type != FrameType::kFence && header.epoch > session.epoch)) {
    ++counters_.frames_unexpected;
    Close(connection,
          std::string("unexpected ") + wire::FrameTypeName(header.type) + " of job " +
              std::to_string(header.job.value()) + ", " + EpochText(header.epoch),
          out);
    return;
  }
  if (header.type == FrameType::kFence) {
    OnFence(connection, session, header.epoch, out);
    return;
  }
  // What a member said in an older epoch it says again in this one.
  const std::optional<MemberIndex> member = ActiveMember(session, connection);
  if (!member || header.epoch != view_.epoch) return;
  if (header.type == FrameType::kReport) {
    OnReport(connection, *member, frame, out);
    return;
  }
  if (const auto* declares = std::get_if<std::vector<wire::Declare>>(&frame.entries)) {
    for (const wire::Declare& entry : *declares) OnDeclare(connection, *member, entry, out);
  } else if (const auto* failed = std::get_if<std::vector<wire::Failed>>(&frame.entries)) {
    for (const wire::Failed& entry : *failed) OnFailed(*member, entry, out);
  }
}

void AggregatorCore::OnUnreadable(ConnectionId connection, const std::string& text, Effects& out) {
  ++counters_.frames_unreadable;
  Close(connection, text, out);
}

void AggregatorCore::OnDisconnect(ConnectionId connection, Effects& out) {
  none_waits_ = false;
  if (sessions_.count(connection) == 0) return;
  ++counters_.connections_lost;
  Lose(connection, out);
}

void AggregatorCore::OnTick(int64_t now_ns, Effects& out) {
  std::vector<ConnectionId> over;
  for (const auto& [connection, session] : sessions_) {
    if (session.state == SessionState::kRefused && now_ns >= session.close_at_ns) {
      over.push_back(connection);
    }
  }
  for (const ConnectionId connection : over) Close(connection, "it was refused", out);
  CountAbsence(now_ns);
  if (closed_ || !self_) return;
  NoticeEpoch(now_ns, out);
  // A job at rest costs nothing, however many tensors it has.
  if (none_waits_) return;
  none_waits_ = true;
  for (auto& [key, tensor] : tensors_) none_waits_ &= !NoticeTensor(tensor, now_ns, out);
}

void AggregatorCore::OnHello(ConnectionId connection, Epoch epoch, const wire::Hello& hello,
                             int64_t now_ns, Effects& out) {
  ++counters_.hellos;
  Session& session = sessions_[connection];
  session.epoch = epoch;
  session.hello = hello;
  Admit(connection, session, now_ns, out);
  if (sessions_.count(connection) != 0 && session.state == SessionState::kHeld) {
    ++counters_.hellos_held;
  }
}

void AggregatorCore::Admit(ConnectionId connection, Session& session, int64_t now_ns,
                           Effects& out) {
  const wire::Hello& hello = session.hello;
  if (session.epoch > view_.epoch) return;  // Held until this aggregator has that view.
  if (!self_) {
    RefuseHello(connection, session, wire::WelcomeStatus::kNotInView,
                "aggregator '" + config_.self_name + "' is not in " + EpochText(view_.epoch) +
                    " of job '" + config_.name + "'",
                now_ns, out);
    return;
  }
  const std::optional<MemberIndex> member = view_.IndexOf(hello.member);
  if (!member) {
    RefuseHello(connection, session, wire::WelcomeStatus::kNotInView,
                IdentityText(hello.member) + " is not a member of job '" + config_.name + "' in " +
                    EpochText(view_.epoch) + ": it has to join again as a new incarnation",
                now_ns, out);
    return;
  }
  // A member that is behind will hear of this view, close this connection and open another.
  if (session.epoch < view_.epoch) return;
  const view::ViewMember& expected = view_.members[member->value()];
  if (hello.view_digest != placement_digest_ || hello.rank_count != expected.rank_count) {
    RefuseHello(connection, session, wire::WelcomeStatus::kViewDiffers,
                MemberText(*member) + " has another view of " + EpochText(view_.epoch) +
                    ", or is of a release that places tensors otherwise (install the same one "
                    "everywhere): digest " +
                    std::to_string(hello.view_digest) + " with " +
                    std::to_string(hello.rank_count) + " ranks there, " +
                    std::to_string(placement_digest_) + " with " +
                    std::to_string(expected.rank_count) + " ranks at aggregator '" +
                    config_.self_name + "'",
                now_ns, out);
    return;
  }
  Welcome(connection, session, *member, out);
}

void AggregatorCore::Welcome(ConnectionId connection, Session& session, MemberIndex member,
                             Effects& out) {
  std::vector<ConnectionId> others;
  for (const auto& [other, candidate] : sessions_) {
    if (other != connection && candidate.state != SessionState::kRefused &&
        candidate.hello.member == session.hello.member) {
      others.push_back(other);
    }
  }
  for (const ConnectionId other : others) {
    ++counters_.connections_replaced;
    if (other > connection) {
      Close(connection, "the agent has opened a newer connection", out);
      return;
    }
    Close(other, "the agent has opened a newer connection", out);
  }
  session.state = SessionState::kActive;
  Enter(member, connection);
  SendEntry(connection,
            wire::Welcome{.status = wire::WelcomeStatus::kOk,
                          .aggregator = config_.self,
                          .credit_bytes = config_.credit_bytes},
            out);
}

void AggregatorCore::RefuseHello(ConnectionId connection, Session& session,
                                 wire::WelcomeStatus status, std::string text, int64_t now_ns,
                                 Effects& out) {
  ++counters_.hellos_refused;
  session.state = SessionState::kRefused;
  session.close_at_ns = now_ns + config_.refused_linger_ns;
  SendEntry(connection,
            wire::Welcome{.status = status, .aggregator = config_.self, .text = std::move(text)},
            out);
}

void AggregatorCore::OnFence(ConnectionId connection, Session& session, Epoch epoch, Effects& out) {
  if (epoch <= session.epoch) {
    ++counters_.frames_unexpected;
    return;
  }
  ++counters_.fences;
  if (epoch > view_.epoch) {
    ++counters_.fences_held;
    session.fence_held = epoch;
    return;
  }
  // One for an epoch that is over already needs no answer: the member will fence for this one.
  if (epoch == view_.epoch) Fenced(connection, session, out);
}

void AggregatorCore::Fenced(ConnectionId connection, Session& session, Effects& out) {
  const std::optional<MemberIndex> member = view_.IndexOf(session.hello.member);
  TALWEG_CHECK(member.has_value());  // Others were closed when the view came.
  session.epoch = view_.epoch;
  session.fence_held = Epoch{0};
  Enter(*member, connection);
  SendEntry(connection, wire::FenceAck{}, out);
}

void AggregatorCore::Enter(MemberIndex member, ConnectionId connection) {
  PresentMember& record = members_[member.value()];
  record.connection = connection;
  record.absent_ns = 0;
  record.absent_at_tick = false;
}

void AggregatorCore::Close(ConnectionId connection, std::string reason, Effects& out) {
  out.push_back(CloseConnection{connection, std::move(reason)});
  Lose(connection, out);
}

void AggregatorCore::Lose(ConnectionId connection, Effects& out) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  const std::optional<MemberIndex> member = ActiveMember(found->second, connection);
  sessions_.erase(found);
  if (member) {
    PresentMember& record = members_[member->value()];
    record.connection.reset();
    if (!record.reported) record.reports.clear();
    for (auto& [key, tensor] : tensors_) {
      if (tensor.declarations.empty()) continue;
      tensor.declarations[member->value()] = {};
      // One that was poisoned before anybody placed it here still has the slices of an older epoch,
      // which know its members.
      if (!tensor.Placed()) continue;
      for (LocalSlice& slice : tensor.local) {
        const uint32_t before = slice.round.here_count();
        slice.round.Forget(*member);
        counters_.contributions_forgotten += before - slice.round.here_count();
      }
    }
  }
  ForgetWritesOf(connection, out);
  if (!finished()) return;
  for (auto& [key, tensor] : tensors_) ReleaseAll(tensor, out);
}

std::optional<MemberIndex> AggregatorCore::ActiveMember(const Session& session,
                                                        ConnectionId connection) const {
  if (session.state != SessionState::kActive || session.epoch != view_.epoch) return std::nullopt;
  const std::optional<MemberIndex> member = view_.IndexOf(session.hello.member);
  if (!member || members_[member->value()].connection != connection) return std::nullopt;
  return member;
}

std::string AggregatorCore::MemberText(MemberIndex member) const {
  const view::ViewMember& record = view_.members[member.value()];
  return "node " + std::to_string(record.id.node.value()) +
         (record.name.empty() ? "" : " (" + record.name + ")");
}

}  // namespace talweg::aggregation
