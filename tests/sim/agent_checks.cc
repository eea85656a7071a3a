// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "tests/sim/agent_process.h"
#include "tests/sim/lease.h"

// Checks of an agent that the agent itself cannot make, or does not make.
namespace talweg::sim {

void AgentProcess::CheckAfterwards() {
  core().CheckInvariants();
  NoteConnected();
  for (const auto& tensor : core().tensors()) {
    if (!tensor->contributed() || ledger_ == nullptr) continue;
    ledger_->OnContributed(tensor->key, tensor->open_round());
  }
  if (const view::View* const view = core().views().newest(); view != nullptr) {
    if (view->epoch < epoch_) throw Violation{name_ + ": its epoch went back"};
    epoch_ = view->epoch;
    if (view->dealing != config_.profile->dealing) {
      throw Violation{name_ + ": the job's dealing is " + DealingText(config_.profile->dealing) +
                      ", but its view has " + DealingText(view->dealing)};
    }
  }
}

void AgentProcess::NoteConnected() {
  const bool is_connected =
      !core().owners().empty() &&
      std::all_of(core().owners().begin(), core().owners().end(), [](const auto& owner) {
        return owner.second.state == pipeline::OwnerState::kReady;
      });
  if (!is_connected) {
    connected_since_ns_.reset();
  } else if (!connected_since_ns_) {
    connected_since_ns_ = timeline_->now_ns();
  }
}

// Rule 9: no more is under way than was granted, except for one contribution.
void AgentProcess::CheckCredit(ConnectionId connection, const wire::Frame& frame) {
  const auto* entries = std::get_if<std::vector<wire::Contribute>>(&frame.entries);
  std::optional<uint64_t>& in_flight = in_flight_[connection];
  if (entries == nullptr || !in_flight) return;
  for (const wire::Contribute& entry : *entries) {
    const uint64_t cost = wire::CreditCost(entry.form, entry.travel_bytes);
    if (*in_flight > 0 && cost > 0 && *in_flight + cost > config_.profile->credit_bytes) {
      throw Violation{name_ + ": " + std::to_string(*in_flight + cost) +
                      " bytes are under way, but only " +
                      std::to_string(config_.profile->credit_bytes) + " were granted"};
    }
    *in_flight += cost;
  }
}

// Rule 1: a member that reports for an epoch has stopped every writer of older epochs.
void AgentProcess::CheckFenced(const wire::Header& header) {
  if (header.type != wire::FrameType::kReport || header.epoch <= epoch_reported_) return;
  epoch_reported_ = header.epoch;
  if (!network_->WritesUnderWayTo(host_, [](ConnectionId) { return true; })) return;
  throw Violation{name_ + ": reports for epoch " + std::to_string(header.epoch.value()) +
                  " while results of an older one are landing"};
}

void AgentProcess::OnFramePosted(ConnectionId connection, std::span<const std::byte> bytes) {
  const auto parsed = wire::ParseFrame(bytes);
  const auto* frame = std::get_if<wire::Frame>(&parsed);
  if (frame == nullptr) {
    throw Violation{
        name_ + ": sends bytes that are not a frame: " + std::get<wire::ParseError>(parsed).text};
  }
  CheckCredit(connection, *frame);
  CheckFenced(frame->header);
  if (frame->header.type == wire::FrameType::kHello && std::exchange(contributes_early_, false)) {
    ContributeEarly(connection, frame->header);
  }
  if (frame->header.type == wire::FrameType::kReport) {
    reports_sent_[connection] = {bytes.begin(), bytes.end()};
  }
  const auto* const contributes = std::get_if<std::vector<wire::Contribute>>(&frame->entries);
  if (contributes == nullptr) return;
  // Where the contribution and the result share memory, a reply to a resent old contribution would
  // overwrite the next one. Such frames are not kept.
  const bool is_in_place =
      std::any_of(contributes->begin(), contributes->end(),
                  [&](const wire::Contribute& entry) { return in_place_.contains(entry.key); });
  if (!is_in_place && config_.profile->fault_weights[static_cast<int>(Fault::kConfuseAgent)] > 0) {
    contributions_sent_.emplace_back(connection,
                                     std::vector<std::byte>(bytes.begin(), bytes.end()));
    if (contributions_sent_.size() > 8) contributions_sent_.pop_front();
  }
}

// Tracks the scheduler's silences for the checks below. Counts as the core does.
void AgentProcess::NoteAnswer(bool answered) {
  const int64_t now_ns = timeline_->now_ns();
  if (answered) {
    if (!silent_since_ns_) return;
    silent_since_ns_.reset();
    answers_since_ns_ = now_ns;
    return;
  }
  if (silent_since_ns_) return;
  silent_since_ns_ = now_ns;
  relapsed_ = answers_since_ns_ && now_ns < *answers_since_ns_ + 2 * kLeaseNs;
  if (!relapsed_) undecided_since_ns_ = now_ns;
}

// Section 8: no member is given up while the scheduler answers, or while that member is connected.
// The scheduler's own texts may quote others.
void AgentProcess::CheckGivenUp(const std::string& text) {
  if (out_ || text.find(" gave up job ") != std::string::npos) return;
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  if (says("has not reached aggregator")) return trace_->Reached("given up: an aggregator");
  const bool is_of_the_dead = says("which has had no connection");
  const bool is_its_word = says("has not begun") || says("is about to join");
  if (is_of_the_dead) {
    trace_->Reached(text.starts_with("epoch ") ? "given up: a member that an epoch needs"
                                               : "given up: a member that a round needs");
    static constexpr std::string_view kNeeds = " needs node ";
    const size_t node = text.find(kNeeds) + kNeeds.size();
    config_.on_given_up(NodeRank{static_cast<uint32_t>(std::stoul(text.substr(node)))});
  } else if (says("that the scheduler has not told this node of")) {
    trace_->Reached("given up: a view that did not reach this agent");
  } else if (is_its_word) {
    trace_->Reached("given up: an answer that only the scheduler has");
  } else {
    return;
  }
  const int64_t now_ns = timeline_->now_ns();
  const int64_t limit_ns = config_.profile->unreachable_ns;
  if (silent_since_ns_ && now_ns - *silent_since_ns_ >= limit_ns) return;
  // A scheduler that answers may still give what only it can give. So a text about that needs a
  // silence that still lasts.
  const bool is_undecided =
      relapsed_ && now_ns - undecided_since_ns_ >= limit_ns &&
      (silent_since_ns_ || (is_of_the_dead && now_ns < *answers_since_ns_ + 2 * kLeaseNs));
  if (is_undecided && (is_of_the_dead || is_its_word)) {
    return trace_->Reached("given up: while the scheduler comes and goes");
  }
  throw Violation{name_ + ": gives up, though the scheduler answers: " + text};
}

// Records which row of the table of decisions this decision is.
void AgentProcess::CheckDecision(const wire::Decision& decision) {
  const pipeline::AgentTensor* const tensor = core().FindTensor(decision.key);
  if (tensor == nullptr) return;
  if (!tensor->awaits_decision()) return trace_->Reached("a decision arrives twice");
  const bool is_held = tensor->held.round == decision.round;
  if (decision.verdict == wire::Verdict::kAbort) {
    trace_->Reached(is_held ? "decision: abort, as it had been aborted before"
                    : tensor->spec.collective.needs_every_rank()
                        ? "decision: abort, as one of the ranks is gone"
                        : "decision: abort, as the root is gone");
  } else if (decision.verdict == wire::Verdict::kFinish) {
    if (tensor->spec.collective.encodes()) {
      trace_->Reached("decision: finish, of a round that travelled encoded");
    }
    if (is_held) trace_->Reached("decision: finish, as somebody holds the round");
    const bool is_spread = std::any_of(decision.sources.begin(), decision.sources.end(),
                                       [&](uint16_t s) { return s != decision.sources.front(); });
    if (is_spread) trace_->Reached("decision: finish, as several members' slices cover it");
  } else if (tensor->partial.have_count > 0) {
    trace_->Reached("decision: redo, slices that somebody has are discarded");
  }
}

void AgentProcess::NoteReceived(ConnectionId connection, const wire::Frame& frame) {
  if (std::optional<uint64_t>& in_flight = in_flight_[connection]; in_flight) {
    *in_flight -= std::min(*in_flight, frame.header.credit_bytes);
  }
  if (frame.header.type == wire::FrameType::kWelcome ||
      frame.header.type == wire::FrameType::kFenceAck) {
    in_flight_[connection] = 0;
  }
  if (const auto* decisions = std::get_if<std::vector<wire::Decision>>(&frame.entries)) {
    if (std::exchange(forges_decision_, false)) ForgeDecision(connection, frame, *decisions);
    for (const wire::Decision& decision : *decisions) CheckDecision(decision);
  }
  if (const auto* welcomes = std::get_if<std::vector<wire::Welcome>>(&frame.entries)) {
    const wire::WelcomeStatus status = welcomes->front().status;
    if (status == wire::WelcomeStatus::kUnknownJob)
      trace_->Reached("refused: the job is not known");
    if (status == wire::WelcomeStatus::kNotInView)
      trace_->Reached("refused: not in the view there");
  }
  NoteWaiting(frame);
  if (const auto* failed = std::get_if<std::vector<wire::Failed>>(&frame.entries)) {
    for (const wire::Failed& entry : *failed) {
      ledger_->OnTensorFailed();
      if (entry.code != wire::FailedCode::kMismatch) continue;
      ledger_->OnDisagreement(entry.key, frame.header.epoch, timeline_->now_ns());
    }
  }
}

void AgentProcess::OnEvent(ConnectionId connection, std::span<const std::byte> bytes, bool is_end,
                           const std::function<void()>& deliver) {
  if (!bytes.empty()) {
    const auto parsed = wire::ParseFrame(bytes);
    const auto* frame = std::get_if<wire::Frame>(&parsed);
    if (frame == nullptr) throw Violation{name_ + ": " + std::get<wire::ParseError>(parsed).text};
    NoteReceived(connection, *frame);
  }
  if (is_end) {
    trace_->Add(timeline_->now_ns(), name_, "lost a connection");
    trace_->Reached("an agent's connection breaks");
  }
  deliver();
}

}  // namespace talweg::sim
