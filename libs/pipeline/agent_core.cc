// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/agent_core.h"

#include <optional>
#include <variant>

#include "libs/base/check.h"

namespace talweg::pipeline {
namespace {

// A standalone member sends nothing. Only the reducer's limit holds.
constexpr uint64_t kUnlimitedCredit = ~uint64_t{0};

}  // namespace

AgentCore::AgentCore(const AgentCoreConfig& config)
    : config_(config),
      views_(config.self, config.rank_count),
      ranks_(config.rank_count, &views_),
      tensors_(config.rank_count),
      quiesce_(&views_, &ranks_, &tensors_),
      links_(&config_, &views_, &timer_),
      failures_(Failures::Parts{.views = &views_,
                                .tensors = &tensors_,
                                .links = &links_,
                                .quiesce = &quiesce_,
                                .queue = &queue_,
                                .reductions = &reductions_,
                                .timer = &timer_}),
      rounds_(&views_, &tensors_, &links_, &queue_, &reductions_, &quiesce_, &failures_,
              &counters_),
      sender_(&config_, &views_, &tensors_, &links_, &queue_, &reductions_, &rounds_, &failures_,
              &counters_),
      pushes_(&config_, &views_, &ranks_, &tensors_, &quiesce_, &rounds_, &failures_, &timer_),
      recovery_(&config_, &views_, &tensors_, &links_, &rounds_, &quiesce_, &failures_, &counters_),
      declarations_(&config_, &views_, &tensors_, &links_, &rounds_, &recovery_, &failures_,
                    &counters_),
      waits_(&config_, &views_, &tensors_, &links_, &quiesce_, &failures_, &timer_),
      stalls_(&config_, &views_, &ranks_, &tensors_, &failures_, &timer_) {
  TALWEG_CHECK(config.rank_count > 0);
}

void AgentCore::OnView(const view::View& view, int64_t now_ns, Effects& out) {
  if (views_.has_failed() || !views_.IsNewer(view)) return;
  if (const std::string problem = views_.Problem(view); !problem.empty()) {
    failures_.ReportAndFail("the view of epoch " + std::to_string(view.epoch.value()) +
                                " of job '" + config_.job_name + "' cannot be used: " + problem,
                            out);
    return;
  }
  if (!view.IndexOf(config_.self)) {
    failures_.FailJob("node " + std::to_string(config_.self.node.value()) + " of job '" +
                          config_.job_name + "' is not in the view of epoch " +
                          std::to_string(view.epoch.value()) +
                          ": its agent was declared lost; start its ranks again",
                      out);
    return;
  }
  views_.Enter(view);
  quiesce_.LetGo(out);  // A new view ends the quiesce that was asked for before it.
  pushes_.ForgetHurries();
  waits_.OnView(view);
  waits_.OnPhase(now_ns);
  queue_.Clear();
  reductions_.Clear();
  links_.OnView(now_ns, out);
  if (links_.all().empty()) Freeze(now_ns, out);
}

void AgentCore::Freeze(int64_t now_ns, Effects& out) {
  views_.Freeze();
  reductions_.ClearDecodings();  // What is not decoded yet is not reported.
  waits_.OnPhase(now_ns);
  recovery_.FreezeAll(out);
  for (const auto& [index, owner] : links_.all()) OpenOwner(owner, out);
  if (views_.standalone()) {
    queue_.Open(AggregatorIndex{0}, kUnlimitedCredit);
    for (const std::unique_ptr<AgentTensor>& tensor : tensors_.all()) {
      declarations_.OpenIfAgreed(*tensor, out);
    }
  }
  recovery_.Settle(out);
}

void AgentCore::OpenOwner(const Owner& owner, Effects& out) {
  queue_.Open(owner.index, owner.credit_bytes, links_.ReachOf(owner.index));
  declarations_.SendAll(owner, out);
  recovery_.SendReport(owner, out);
}

void AgentCore::OnJobFailed(const std::string& text, int64_t /*now_ns*/, Effects& out) {
  failures_.FailJob(text, out);
}

void AgentCore::OnLocalFailure(const std::string& text, int64_t /*now_ns*/, Effects& out) {
  failures_.CannotGoOn(text, out);
}

void AgentCore::OnMemberLeft(const view::MemberIdentity& id, const std::string& text) {
  waits_.OnMemberLeft(id.node, text);
}

void AgentCore::OnQuiesce(uint64_t id, uint64_t step, int64_t /*now_ns*/, Effects& out) {
  if (!views_.has_failed()) quiesce_.Ask(id, step, out);
}

void AgentCore::OnResume(uint64_t id, int64_t /*now_ns*/, Effects& out) {
  quiesce_.OnResume(id, out);
}

void AgentCore::OnSchedulerSilent(int64_t now_ns) {
  if (!views_.has_failed()) waits_.scheduler().OnSilent(now_ns);
}

void AgentCore::OnSchedulerAnswers(int64_t lease_ns, int64_t now_ns) {
  waits_.scheduler().OnAnswers(lease_ns, now_ns);
}

void AgentCore::OnConnected(ConnectionId connection, int64_t /*now_ns*/, Effects& out) {
  links_.OnConnected(connection, out);
}

void AgentCore::OnDisconnected(ConnectionId connection, const std::string& reason, int64_t now_ns,
                               Effects& out) {
  const std::optional<AggregatorIndex> lost =
      links_.OnDisconnected(connection, reason, now_ns, out);
  if (lost && views_.phase() != Phase::kFencing) sender_.ForgetOwner(*lost);
}

void AgentCore::OnFrame(ConnectionId connection, const wire::Frame& frame, int64_t now_ns,
                        Effects& out) {
  const Owner* const owner = links_.Find(connection);
  if (owner == nullptr || frame.header.job != views_.newest()->job) {
    ++counters_.frames_ignored;
    return;
  }
  using Answer = OwnerLinks::Answer;
  Answer answer = Answer::kIgnored;
  switch (frame.header.type) {
    case wire::FrameType::kWelcome:
      answer = links_.OnWelcome(connection, frame, now_ns, out);
      break;
    case wire::FrameType::kFenceAck:
      answer = links_.OnFenceAck(connection, frame.header.epoch);
      break;
    default: return OnEntries(*owner, frame, now_ns, out);
  }
  switch (answer) {
    case Answer::kIgnored: ++counters_.frames_ignored; return;
    case Answer::kLater: return;
    case Answer::kNever: {
      const auto& welcome = std::get<std::vector<wire::Welcome>>(frame.entries).front();
      failures_.ReportAndFail(
          "aggregator '" + links_.NameOf(owner->index) + "' refused this agent: " + welcome.text,
          out);
      return;
    }
    case Answer::kReady: break;
  }
  if (views_.phase() != Phase::kFencing) {
    OpenOwner(*owner, out);
  } else if (links_.AreReady()) {
    Freeze(now_ns, out);
  }
}

void AgentCore::OnEntries(const Owner& owner, const wire::Frame& frame, int64_t now_ns,
                          Effects& out) {
  // While fencing, entries that come before a connection's FenceAck still count.
  const bool fencing = views_.phase() == Phase::kFencing;
  const OwnerState expected = fencing ? OwnerState::kFencing : OwnerState::kReady;
  if (views_.present() == nullptr || owner.state != expected ||
      frame.header.epoch != views_.present()->epoch) {
    ++counters_.frames_ignored;
    return;
  }
  if (!fencing && frame.header.credit_bytes > 0) {
    queue_.ReturnCredit(owner.index, frame.header.credit_bytes, now_ns);
  }
  // An entry may end the job, and with it the owners. These are copies.
  const AggregatorIndex from = owner.index;
  const Incarnation incarnation = owner.incarnation;
  const auto each = [&](const auto& entries, auto handle) {
    for (uint32_t i = 0; i < entries.size() && !views_.has_failed(); ++i) handle(entries[i], i);
  };
  if (const auto* results = std::get_if<std::vector<wire::Result>>(&frame.entries)) {
    each(*results, [&](const wire::Result& entry, uint32_t i) {
      rounds_.OnResult(from, incarnation, entry, i, out);
    });
  } else if (const auto* failed = std::get_if<std::vector<wire::Failed>>(&frame.entries)) {
    each(*failed, [&](const wire::Failed& entry, uint32_t) {
      if (entry.key != TensorKey{0} && entry.code != wire::FailedCode::kJobFailed) {
        return declarations_.OnFailed(entry, out);
      }
      failures_.ReportAndFail("aggregator '" + links_.NameOf(from) + "' gave up job '" +
                                  config_.job_name + "': " + entry.text,
                              out);
    });
  } else if (const auto* refused = std::get_if<std::vector<wire::Refused>>(&frame.entries)) {
    each(*refused,
         [&](const wire::Refused& entry, uint32_t) { sender_.OnRefused(from, entry, out); });
  } else if (const auto* waiting = std::get_if<std::vector<wire::Waiting>>(&frame.entries)) {
    each(*waiting, [&](const wire::Waiting& entry, uint32_t) {
      if (entry.key == TensorKey{0}) return waits_.OnEpochWaiting(from, entry, now_ns, out);
      if (AgentTensor* const tensor = tensors_.Find(entry.key)) {
        if (entry.hurries()) return pushes_.OnHurry(*tensor, entry.round, now_ns);
        if (waits_.NamesThisNode(entry)) pushes_.OnAwaited(*tensor, entry.round, out);
        return waits_.OnTensorWaiting(*tensor, from, entry, now_ns, out);
      }
      ++counters_.frames_ignored;
    });
    recovery_.Settle(out);
  } else if (fencing) {
    ++counters_.frames_ignored;
  } else if (const auto* declared = std::get_if<std::vector<wire::Declared>>(&frame.entries)) {
    each(*declared, [&](const wire::Declared& entry, uint32_t) {
      declarations_.OnDeclared(from, entry, out);
    });
  } else if (const auto* decisions = std::get_if<std::vector<wire::Decision>>(&frame.entries)) {
    each(*decisions,
         [&](const wire::Decision& entry, uint32_t) { recovery_.OnDecision(from, entry, out); });
  } else if (frame.header.type != wire::FrameType::kCredit) {
    ++counters_.frames_ignored;
  }
}

void AgentCore::OnRankJoined(LocalRank rank, uint32_t pid, int64_t /*now_ns*/, Effects& out) {
  if (!ranks_.Has(rank) || ranks_.Join(rank, pid)) return;
  out.push_back(FailRank{rank, ranks_.Text(rank) + " has already left job '" + config_.job_name +
                                   "'; a new process needs a new job"});
}

void AgentCore::OnRankDeclare(LocalRank rank, uint32_t request, const Declaration& declaration,
                              int64_t /*now_ns*/, Effects& out) {
  if (ranks_.Has(rank)) declarations_.OnRankDeclare(rank, request, declaration, out);
}

void AgentCore::OnPush(const Push& push, int64_t now_ns, Effects& out) {
  pushes_.OnPush(push, now_ns, out);
  if (!views_.has_failed()) stalls_.OnPush(now_ns);
  recovery_.Settle(out);
}

void AgentCore::OnRankAtBoundary(LocalRank rank, uint64_t steps, int64_t /*now_ns*/, Effects& out) {
  if (ranks_.Has(rank)) quiesce_.OnRankAtBoundary(rank, steps, out);
}

bool AgentCore::OnRanksFollow(Epoch epoch, Effects& out) {
  const view::View* const view = views_.Find(epoch);
  if (view == nullptr || views_.has_failed()) return false;
  if (views_.numbers()->epoch != epoch) declarations_.Follow(*view, out);
  return true;
}

void AgentCore::OnRankLeft(LocalRank rank, bool clean, const std::string& text, int64_t /*now_ns*/,
                           Effects& out) {
  if (!ranks_.Leave(rank)) return;
  if (!clean) {
    failures_.ReportAndFail(
        ranks_.Text(rank) + " of job '" + config_.job_name + "' was lost: " + text, out,
        views_.GlobalRank(rank));
  } else {
    pushes_.OnRankLeft(out);
    recovery_.Settle(out);
  }
  if (ranks_.AreDone()) out.push_back(RanksDone{});
}

void AgentCore::OnRanksReady(bool ready) { waits_.OnRanksReady(ready); }

void AgentCore::OnRanksStop(const std::vector<uint64_t>& ended, Effects& out) {
  quiesce_.OnRanksStop(ended, out);
}

void AgentCore::OnTensorAllocated(TensorIndex tensor, const std::string& text, Effects& out) {
  declarations_.OnAllocated(tensor, text, out);
}

void AgentCore::OnReduced(uint64_t ticket, std::optional<uint32_t> travel_bytes, int64_t now_ns,
                          Effects& out) {
  sender_.OnReduced(ticket, travel_bytes, now_ns, out);
}

void AgentCore::OnDecoded(uint64_t ticket, bool is_sound, Effects& out) {
  rounds_.OnDecoded(ticket, is_sound, out);
}

void AgentCore::OnTick(int64_t now_ns, Effects& out) {
  timer_.Clear();
  if (!views_.has_failed()) waits_.CheckSilence(now_ns, out);
  if (views_.has_failed()) return;
  links_.Reconnect(now_ns, out);
  pushes_.OnTick(now_ns, out);
  waits_.TellAggregators(now_ns, out);
  stalls_.OnTick(now_ns, out);
}

void AgentCore::Flush(int64_t now_ns, Effects& out) {
  if (!views_.is_past_fences()) return;
  for (const auto& [index, owner] : links_.all()) {
    if (owner.state == OwnerState::kReady) declarations_.SendDue(owner, out);
  }
  pushes_.Flush();
  sender_.Flush(now_ns, out);
  // The last open round may have ended in an earlier event of this batch.
  quiesce_.TryAnswer(out);
}

std::string AgentCore::WhomItWaitsFor(TensorIndex tensor, Round round) const {
  if (tensor.value() >= tensors_.all().size()) return "";
  return stalls_.WhomItWaitsFor(*tensors_.all()[tensor.value()], round);
}

void AgentCore::Leave(Effects& out) {
  if (views_.has_failed()) return;
  links_.SayGoodbye(out);
  failures_.FailJob(
      "the agent of node " + std::to_string(config_.self.node.value()) + " has left the job", out);
}

void AgentCore::CheckInvariants() const {
  tensors_.CheckInvariants();
  reductions_.CheckInvariants();
  links_.CheckInvariants();
  if (views_.phase() == Phase::kFencing || views_.phase() == Phase::kForming) {
    TALWEG_CHECK(queue_.waiting_count() == 0 && reductions_.is_idle());
  }
  if (!views_.is_past_fences()) return;
  // While a decision is awaited, no slice of the tensor is on its way.
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_.all()) {
    if (!tensor->awaits_decision()) continue;
    for (const SliceState state : tensor->slice_states) {
      TALWEG_CHECK(state == SliceState::kIdle || state == SliceState::kExempt);
    }
  }
}

}  // namespace talweg::pipeline
