// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/aggregator_core.h"

#include <utility>

// Which parts get each event, and in which order.
namespace talweg::aggregation {

AggregatorCore::AggregatorCore(AggregatorCoreConfig config, MemoryBudget* budget)
    : config_(std::move(config)),
      view_(config_.job, config_.self, config_.departed),
      sessions_(&config_, &view_, &attendance_, &counters_,
                [this](ConnectionId connection, std::optional<MemberIndex> member, Effects& out) {
                  OnLost(connection, member, out);
                }),
      memory_(&config_, &view_, budget),
      declarations_(&config_, &view_, &attendance_, &memory_, &tensors_, &counters_),
      rounds_(&config_, &view_, &attendance_, &tensors_, &counters_),
      recovery_(&view_, &attendance_, &declarations_, &tensors_, &counters_),
      notices_(&config_, &view_, &attendance_, &recovery_, &sessions_, &tensors_, &counters_) {}

void AggregatorCore::SetQuota(const view::JobQuota& quota, std::shared_ptr<PlaceBudget> tenant) {
  memory_.SetQuota(quota, std::move(tenant));
}

void AggregatorCore::OnView(const view::View& view, int64_t now_ns, Effects& out,
                            const view::Gone& gone) {
  notices_.OnEvent();
  if (closed_ || !view_.IsNext(view)) return;
  ++counters_.views;
  view_.Set(view, gone);
  attendance_.OnView(view_.member_count());
  recovery_.OnView();
  rounds_.OnView();
  notices_.OnView(now_ns);
  declarations_.OnView();
  // Members outside the view must write nothing any more when their memory is released.
  sessions_.CloseWhoIsOut(out);
  for (auto& [key, tensor] : tensors_) memory_.ReleaseDeparted(tensor, out);
  sessions_.AnswerThoseThatWaited(now_ns, out);
}

void AggregatorCore::OnClosed(const std::string& text, int64_t now_ns, Effects& out) {
  if (closed_) return;
  closed_ = true;
  rounds_.OnClosed();
  sessions_.RefuseAll(text, now_ns, out);
  if (finished()) ReleaseAllMemory(out);
}

void AggregatorCore::OnFrame(ConnectionId connection, const wire::Frame& frame, int64_t now_ns,
                             Effects& out) {
  notices_.OnEvent();
  using wire::FrameType;
  const wire::Header& header = frame.header;
  const Session* const session = sessions_.Find(connection);
  if (session == nullptr) return OnFirstFrame(connection, frame, now_ns, out);
  if (session->state == SessionState::kRefused) return;
  if (header.type == FrameType::kGoodbye) {
    ++counters_.goodbyes;
    if (const auto left = view_.IndexOf(session->hello.member)) attendance_.OnGoodbye(*left);
    sessions_.Close(connection, "it said goodbye", out);
    return;
  }
  const std::optional<MemberIndex> member = sessions_.ActiveMember(connection, *session);
  if (header.type == FrameType::kContribute) {
    sessions_.OnTally(
        connection, rounds_.OnContributions(connection, *session, member, frame, now_ns, out), out);
    return;
  }
  const bool expected = session->state == SessionState::kActive && header.job == config_.job &&
                        (header.type == FrameType::kFence || header.type == FrameType::kDeclare ||
                         header.type == FrameType::kFailed || header.type == FrameType::kReport);
  if (!expected || (header.type != FrameType::kFence && header.epoch > session->epoch)) {
    ++counters_.frames_unexpected;
    sessions_.Close(connection,
                    std::string("unexpected ") + wire::FrameTypeName(header.type) + " of job " +
                        std::to_string(header.job.value()) + ", " + EpochText(header.epoch),
                    out);
    return;
  }
  if (header.type == FrameType::kFence) {
    sessions_.OnFence(connection, header.epoch, out);
    return;
  }
  // A member says again in this epoch what it said in an older one.
  if (!member || header.epoch != view_.epoch()) return;
  OnMemberFrame(connection, *member, frame, out);
}

void AggregatorCore::OnFirstFrame(ConnectionId connection, const wire::Frame& frame, int64_t now_ns,
                                  Effects& out) {
  const wire::Header& header = frame.header;
  const auto* hellos = std::get_if<std::vector<wire::Hello>>(&frame.entries);
  if (closed_ || header.job != config_.job || hellos == nullptr || hellos->size() != 1) {
    ++counters_.frames_unexpected;
    out.push_back(CloseConnection{connection, std::string("its first frame is a ") +
                                                  wire::FrameTypeName(header.type) +
                                                  ", not one Hello to this job"});
    return;
  }
  sessions_.OnHello(connection, header.epoch, hellos->front(), now_ns, out);
}

void AggregatorCore::OnMemberFrame(ConnectionId connection, MemberIndex member,
                                   const wire::Frame& frame, Effects& out) {
  if (frame.header.type == wire::FrameType::kReport) {
    recovery_.OnReport(connection, member, frame, out);
    return;
  }
  if (const auto* declares = std::get_if<std::vector<wire::Declare>>(&frame.entries)) {
    ContributionTally tally;
    for (const wire::Declare& entry : *declares) {
      if (!declarations_.OnDeclare(connection, member, entry, out)) ++tally.refused;
    }
    sessions_.OnTally(connection, tally, out);
  } else if (const auto* failed = std::get_if<std::vector<wire::Failed>>(&frame.entries)) {
    for (const wire::Failed& entry : *failed) declarations_.OnFailed(member, entry, out);
  }
}

void AggregatorCore::OnUnreadable(ConnectionId connection, const std::string& text, Effects& out) {
  ++counters_.frames_unreadable;
  sessions_.Close(connection, text, out);
}

void AggregatorCore::OnDisconnect(ConnectionId connection, Effects& out) {
  notices_.OnEvent();
  if (sessions_.Find(connection) == nullptr) return;
  ++counters_.connections_lost;
  sessions_.Lose(connection, out);
}

void AggregatorCore::OnLost(ConnectionId connection, std::optional<MemberIndex> member,
                            Effects& out) {
  if (member) {
    recovery_.OnLost(*member);
    declarations_.OnLost(*member);
  }
  rounds_.OnLost(connection, member, out);
  if (finished()) ReleaseAllMemory(out);
}

void AggregatorCore::ReleaseAllMemory(Effects& out) {
  for (auto& [key, tensor] : tensors_) memory_.ReleaseAll(tensor, out);
}

void AggregatorCore::OnAllocated(AllocationId id, wire::RemoteRef ref, Effects& out) {
  declarations_.OnAllocated(id, ref, out);
}

void AggregatorCore::OnAllocationRefused(AllocationId id, const std::string& text, Effects& out) {
  declarations_.OnAllocationRefused(id, text, out);
}

void AggregatorCore::OnSummed(const SumId& id, uint32_t travel_bytes, Effects& out) {
  notices_.OnEvent();
  rounds_.OnSummed(id, travel_bytes, out);
}

void AggregatorCore::OnUndecodable(const SumId& id, size_t input, Effects& out) {
  notices_.OnEvent();
  rounds_.OnUndecodable(id, input, out);
}

void AggregatorCore::OnWriteDone(WriteId id, Effects& out) {
  notices_.OnEvent();
  rounds_.OnWriteDone(id, out);
}

void AggregatorCore::OnTick(int64_t now_ns, Effects& out) {
  sessions_.OnTick(now_ns, out);
  attendance_.OnTick(now_ns);
  if (closed_ || !view_.self()) return;
  notices_.OnTick(now_ns, out);
}

}  // namespace talweg::aggregation
