// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/sessions.h"

#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/view/numbers.h"

namespace talweg::aggregation {
namespace {

std::string IdentityText(const view::MemberIdentity& id) {
  return "node " + std::to_string(id.node.value()) + " (incarnation " +
         view::HexText(id.incarnation) + ")";
}

}  // namespace

void Sessions::OnHello(ConnectionId connection, Epoch epoch, const wire::Hello& hello,
                       int64_t now_ns, Effects& out) {
  ++counters_->hellos;
  Session& session = all_[connection];
  session.epoch = epoch;
  session.hello = hello;
  Admit(connection, session, now_ns, out);
  if (all_.count(connection) != 0 && session.state == SessionState::kHeld) {
    ++counters_->hellos_held;
  }
}

void Sessions::Admit(ConnectionId connection, Session& session, int64_t now_ns, Effects& out) {
  const wire::Hello& hello = session.hello;
  if (session.epoch > view_->epoch()) {
    std::string why = WhyNotAhead(hello.member, session.epoch, now_ns);
    if (why.empty()) return Hold(connection, session, now_ns, out);
    Refuse(connection, session, wire::WelcomeStatus::kNotInView, std::move(why), now_ns, out);
    return;
  }
  if (!view_->self()) {
    Refuse(connection, session, wire::WelcomeStatus::kNotInView,
           "aggregator '" + config_->self_name + "' is not in " + EpochText(view_->epoch()) +
               " of job '" + config_->name + "'",
           now_ns, out);
    return;
  }
  const std::optional<MemberIndex> member = view_->IndexOf(hello.member);
  if (!member) {
    Refuse(connection, session, wire::WelcomeStatus::kNotInView,
           IdentityText(hello.member) + " is not a member of job '" + config_->name + "' in " +
               EpochText(view_->epoch()) + ": it has to join again as a new incarnation",
           now_ns, out);
    return;
  }
  // A member that is behind will hear of this view, close this connection and open another one.
  if (session.epoch < view_->epoch()) return Hold(connection, session, now_ns, out);
  const uint32_t rank_count = view_->view().members[member->value()].rank_count;
  if (hello.view_digest != view_->placement_digest() || hello.rank_count != rank_count) {
    Refuse(connection, session, wire::WelcomeStatus::kViewDiffers,
           view_->MemberText(*member) + " has another view of " + EpochText(view_->epoch()) +
               ", or is of a release that places tensors otherwise (install the same one "
               "everywhere): digest " +
               std::to_string(hello.view_digest) + " with " + Counted(hello.rank_count, "rank") +
               " there, " + std::to_string(view_->placement_digest()) + " with " +
               Counted(rank_count, "rank") + " at aggregator '" + config_->self_name + "'",
           now_ns, out);
    return;
  }
  Welcome(connection, session, *member, out);
}

std::string Sessions::WhyNotAhead(const view::MemberIdentity& member, Epoch epoch,
                                  int64_t now_ns) const {
  const int64_t unix_ns = config_->unix_ahead_ns == 0 ? 0 : now_ns + config_->unix_ahead_ns;
  const uint64_t believed = view::BelievedTo(view_->epoch().value(), unix_ns);
  if (epoch.value() > believed) {
    return EpochText(epoch) + " of job '" + config_->name +
           "' cannot be right: no scheduler can have given one above " + std::to_string(believed) +
           " yet";
  }
  if (view_->IndexOf(member) || !view_->departed().Has(member)) return "";
  const std::string who = "node " + std::to_string(member.node.value()) + " is not in " +
                          EpochText(view_->epoch()) + " of job '" + config_->name + "'";
  if (!view_->departed().is_everybody()) {
    return who + " any more: it has to join again as a new incarnation";
  }
  return who + ", and so many have left the job that aggregator '" + config_->self_name +
         "' lets nobody in before the view that names it is here";
}

void Sessions::Hold(ConnectionId connection, Session& session, int64_t now_ns, Effects& out) {
  const auto is_held = [](const Session& other) { return other.state == SessionState::kHeld; };
  if (!Replace(connection, session, is_held, out)) return;
  if (view_->IndexOf(session.hello.member)) {
    session.until_ns.reset();  // It is a member, so it may wait for as long as it is one.
  } else if (!session.until_ns) {
    session.until_ns = now_ns + config_->ahead_hold_ns;
  }
}

bool Sessions::Replace(ConnectionId connection, const Session& session,
                       bool (*concerns)(const Session& other), Effects& out) {
  std::vector<ConnectionId> others;
  for (const auto& [other, candidate] : all_) {
    if (other != connection && concerns(candidate) &&
        candidate.hello.member == session.hello.member) {
      others.push_back(other);
    }
  }
  for (const ConnectionId other : others) {
    ++counters_->connections_replaced;
    if (other > connection) {
      Close(connection, "the agent has opened a newer connection", out);
      return false;
    }
    Close(other, "the agent has opened a newer connection", out);
  }
  return true;
}

void Sessions::Welcome(ConnectionId connection, Session& session, MemberIndex member,
                       Effects& out) {
  const auto is_open = [](const Session& other) { return other.state != SessionState::kRefused; };
  if (!Replace(connection, session, is_open, out)) return;
  session.state = SessionState::kActive;
  session.until_ns.reset();
  attendance_->Enter(member, connection);
  SendEntry(connection, view_->epoch(),
            wire::Welcome{.status = wire::WelcomeStatus::kOk,
                          .aggregator = config_->self,
                          .credit_bytes = config_->credit_bytes},
            out);
}

void Sessions::Refuse(ConnectionId connection, Session& session, wire::WelcomeStatus status,
                      std::string text, int64_t now_ns, Effects& out) {
  ++counters_->hellos_refused;
  session.state = SessionState::kRefused;
  session.until_ns = now_ns + config_->refused_linger_ns;
  SendEntry(connection, view_->epoch(),
            wire::Welcome{.status = status, .aggregator = config_->self, .text = std::move(text)},
            out);
}

void Sessions::OnFence(ConnectionId connection, Epoch epoch, Effects& out) {
  Session& session = all_.at(connection);
  if (epoch <= session.epoch) {
    ++counters_->frames_unexpected;
    return;
  }
  ++counters_->fences;
  if (epoch > view_->epoch()) {
    ++counters_->fences_held;
    session.fence_held = epoch;
    return;
  }
  // A Fence for a past epoch needs no answer: the member will fence for the present one.
  if (epoch == view_->epoch()) Fenced(connection, session, out);
}

void Sessions::Fenced(ConnectionId connection, Session& session, Effects& out) {
  const std::optional<MemberIndex> member = view_->IndexOf(session.hello.member);
  TALWEG_CHECK(member.has_value());  // Connections of others were closed when the view came.
  session.epoch = view_->epoch();
  session.fence_held = Epoch{0};
  attendance_->Enter(*member, connection);
  SendEntry(connection, view_->epoch(), wire::FenceAck{}, out);
}

void Sessions::OnTally(ConnectionId connection, const ContributionTally& tally, Effects& out) {
  Session& session = all_.at(connection);
  session.contribution_bytes += tally.taken_bytes;
  session.refusals += tally.refused;
  if (session.refusals <= config_->refusals_max) return;
  Close(connection,
        std::to_string(session.refusals) + " of its contributions and declarations were refused",
        out);
}

void Sessions::CloseWhoIsOut(Effects& out) {
  std::vector<ConnectionId> gone;
  for (const auto& [connection, session] : all_) {
    if (session.state != SessionState::kActive) continue;
    const bool is_out = !view_->self() || !view_->IndexOf(session.hello.member);
    if (is_out) gone.push_back(connection);
  }
  for (const ConnectionId connection : gone) {
    Close(connection,
          IdentityText(all_.at(connection).hello.member) + " or this aggregator is not in " +
              EpochText(view_->epoch()) + " of job '" + config_->name + "' any more",
          out);
  }
}

void Sessions::AnswerThoseThatWaited(int64_t now_ns, Effects& out) {
  std::vector<ConnectionId> connections;
  for (const auto& [connection, session] : all_) connections.push_back(connection);
  for (const ConnectionId connection : connections) {
    const auto found = all_.find(connection);
    if (found == all_.end()) continue;  // Replaced by one of the others.
    Session& session = found->second;
    if (session.state == SessionState::kHeld) {
      Admit(connection, session, now_ns, out);
    } else if (session.state == SessionState::kActive && session.fence_held == view_->epoch()) {
      Fenced(connection, session, out);
    }
  }
}

void Sessions::RefuseAll(const std::string& text, int64_t now_ns, Effects& out) {
  for (auto& [connection, session] : all_) {
    SendEntry(connection, view_->epoch(),
              wire::Failed{.code = wire::FailedCode::kJobFailed, .text = text}, out);
    session.state = SessionState::kRefused;
    session.until_ns = now_ns + config_->refused_linger_ns;
  }
  attendance_->LeaveAll();
}

void Sessions::OnTick(int64_t now_ns, Effects& out) {
  std::vector<ConnectionId> over;
  for (auto& [connection, session] : all_) {
    if (!session.until_ns || now_ns < *session.until_ns) continue;
    if (session.state == SessionState::kRefused) {
      over.push_back(connection);
    } else if (session.state == SessionState::kHeld) {
      Refuse(connection, session, wire::WelcomeStatus::kNotInView,
             "aggregator '" + config_->self_name + "' has not heard of " +
                 EpochText(session.epoch) + " of job '" + config_->name + "' yet",
             now_ns, out);
    }
  }
  for (const ConnectionId connection : over) Close(connection, "it was refused", out);
}

void Sessions::Close(ConnectionId connection, std::string reason, Effects& out) {
  out.push_back(CloseConnection{connection, std::move(reason)});
  Lose(connection, out);
}

void Sessions::Lose(ConnectionId connection, Effects& out) {
  const auto found = all_.find(connection);
  if (found == all_.end()) return;
  const std::optional<MemberIndex> member = ActiveMember(connection, found->second);
  all_.erase(found);
  if (member) attendance_->Leave(*member);
  on_lost_(connection, member, out);
}

const Session* Sessions::Find(ConnectionId connection) const {
  const auto found = all_.find(connection);
  return found == all_.end() ? nullptr : &found->second;
}

std::optional<MemberIndex> Sessions::ActiveMember(ConnectionId connection,
                                                  const Session& session) const {
  if (session.state != SessionState::kActive || session.epoch != view_->epoch()) {
    return std::nullopt;
  }
  const std::optional<MemberIndex> member = view_->IndexOf(session.hello.member);
  if (!member || attendance_->ConnectionOf(*member) != connection) return std::nullopt;
  return member;
}

std::vector<std::pair<ConnectionId, Epoch>> Sessions::ThoseBehind() const {
  std::vector<std::pair<ConnectionId, Epoch>> behind;
  for (const auto& [connection, session] : all_) {
    const bool is_behind = session.state == SessionState::kActive && session.epoch < view_->epoch();
    if (!is_behind) continue;
    behind.emplace_back(connection, session.epoch);
  }
  return behind;
}

}  // namespace talweg::aggregation
