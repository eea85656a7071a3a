// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/job_connection.h"

#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

namespace talweg::aggregator {

JobConnection::JobConnection(Config config, const ConnectionsShare& share, HeldCredit* credit)
    : config_(std::move(config)),
      share_(share),
      credit_(credit),
      outbox_(config_.job, [this](std::vector<std::byte> frame) { PostFrame(std::move(frame)); }),
      results_(config_.results_window_bytes),
      traffic_{.received_bytes = config_.received_bytes} {}

void JobConnection::OnReceived(uint64_t bytes) {
  traffic_.received_bytes += bytes;
  share_.totals->received_bytes += bytes;
}

void JobConnection::UncountInline(uint64_t bytes) {
  traffic_.received_bytes -= bytes;
  share_.totals->received_bytes -= bytes;
}

void JobConnection::OnFrameTaken(uint64_t bytes) {
  if (SharesLink()) credit_->OnReceived(bytes);
}

void JobConnection::SetMoreWaits(bool more_wait) {
  if (!SharesLink()) return;
  more_wait_ = more_wait;
  UpdateWants();
}

void JobConnection::Say(const aggregation::Send& effect) {
  // After these entries nothing is in flight.
  if (std::holds_alternative<wire::Welcome>(effect.entry) ||
      std::holds_alternative<wire::FenceAck>(effect.entry)) {
    credit_->Forget(config_.id);
    more_wait_ = false;
    UpdateWants();
  }
  std::visit(
      [this, &effect](const auto& entry) {
        using Entry = std::decay_t<decltype(entry)>;
        using wire::FrameType;
        if constexpr (std::is_same_v<Entry, wire::Welcome>) {
          outbox_.AddWelcome(effect.epoch, entry);
        } else if constexpr (std::is_same_v<Entry, wire::FenceAck>) {
          HurryResults();
          outbox_.AddFenceAck(effect.epoch);
        } else if constexpr (std::is_same_v<Entry, wire::Declared>) {
          outbox_.Add(FrameType::kDeclared, effect.epoch, entry);
        } else if constexpr (std::is_same_v<Entry, wire::Decision>) {
          outbox_.Add(FrameType::kDecision, effect.epoch, entry);
        } else if constexpr (std::is_same_v<Entry, wire::Refused>) {
          outbox_.Add(FrameType::kRefused, effect.epoch, entry);
        } else if constexpr (std::is_same_v<Entry, wire::Failed>) {
          outbox_.Add(FrameType::kFailed, effect.epoch, entry);
        } else {
          static_assert(std::is_same_v<Entry, wire::Waiting>);
          outbox_.Add(FrameType::kWaiting, effect.epoch, entry);
        }
      },
      effect.entry);
  MarkUnflushed();
}

void JobConnection::HurryResults() {
  while (const auto next = results_.TakeAnyway()) {
    ++share_.totals->results_hurried;
    PostResult(*next);
  }
}

void JobConnection::ReturnCredit(uint64_t bytes) {
  credit_meter_.OnReceived(bytes, share_.clock->NowNs());
  if (!SharesLink()) return GiveCredit(bytes);
  if (bytes == 0) return;
  credit_->Hold(config_.id, bytes);
  if (credit_->is_late()) share_.totals->credit_held_bytes += bytes;
}

void JobConnection::GiveCredit(uint64_t bytes) {
  outbox_.AddCredit(bytes);
  MarkUnflushed();
}

void JobConnection::SendResult(const aggregation::SendResult& effect, const SlotMemory& memory) {
  wire::Result entry = effect.entry;
  if (entry.form == wire::Form::kWritten) {
    writes_.emplace(effect.write.value(), ResultWrite{memory, effect.travel_bytes});
    if (SharesLink()) UpdateWants();
    if (results_.Add(effect)) return PostResult(effect);
    ++share_.totals->results_queued;
    return;
  }
  if (entry.form == wire::Form::kDisagreement) {
    entry.bytes = std::as_bytes(std::span(effect.text));
  } else if (entry.form == wire::Form::kInline && effect.travel_bytes > 0) {
    entry.bytes = memory.bytes().subspan(effect.offset_bytes, effect.travel_bytes);
  }
  outbox_.Add(wire::FrameType::kResult, effect.epoch, entry);
  MarkUnflushed();
}

void JobConnection::PostResult(const aggregation::SendResult& effect) {
  ResultWrite& write = writes_.at(effect.write.value());
  write.has_left = true;
  traffic_.sent_bytes += effect.travel_bytes;
  share_.totals->sent_bytes += effect.travel_bytes;
  // The frame that announces the result is posted later, so it arrives after the bytes.
  share_.transport->PostWrite(config_.id,
                              write.source.Slice(effect.offset_bytes, effect.travel_bytes),
                              effect.target, effect.write.value());
  outbox_.Add(wire::FrameType::kResult, effect.epoch, effect.entry);
  MarkUnflushed();
}

bool JobConnection::OnWritten(uint64_t write) {
  const auto found = writes_.find(write);
  if (found == writes_.end() || !found->second.has_left) return false;
  const uint32_t bytes = found->second.bytes;
  results_.OnWritten(bytes);
  writes_.erase(found);
  if (SharesLink()) {
    credit_->OnSent(bytes);
    UpdateWants();
  }
  while (const auto next = results_.Take()) PostResult(*next);
  return true;
}

void JobConnection::PostFrame(std::vector<std::byte> frame) {
  traffic_.sent_bytes += frame.size();
  frames_.push_back({.end = traffic_.sent_bytes, .bytes = frame.size()});
  frames_bytes_ += frame.size();
  share_.totals->sent_bytes += frame.size();
  if (SharesLink()) credit_->OnSent(frame.size());
  share_.transport->PostFrame(config_.id, std::move(frame));
}

void JobConnection::MarkUnflushed() {
  if (std::exchange(has_news_, true)) return;
  share_.unflushed->push_back(config_.id);
}

void JobConnection::UpdateWants() {
  const bool wants = is_over_link() && (more_wait_ || !writes_.empty());
  if (wants == wants_link_) return;
  wants_link_ = wants;
  credit_->SetWants(config_.id, wants);
}

void JobConnection::Flush(Epoch epoch, uint64_t credit_bytes) {
  has_news_ = false;
  ForgetFramesThatLeft();
  // Credit that is kept waits until a result carries it, or for FlushKept.
  outbox_.Flush(epoch, credit_meter_.KeptBytes(credit_bytes));
}

void JobConnection::FlushKept(Epoch epoch) { outbox_.Flush(epoch, 0); }

void JobConnection::End() {
  writes_.clear();
  more_wait_ = false;
  UpdateWants();
  credit_->Forget(config_.id);
}

void JobConnection::ForgetFramesThatLeft() {
  // Frames and writes leave in the order in which they were posted.
  const uint64_t pending = share_.transport->PendingBytes(config_.id);
  const uint64_t left = traffic_.sent_bytes - std::min(pending, traffic_.sent_bytes);
  while (!frames_.empty() && frames_.front().end <= left) {
    frames_bytes_ -= frames_.front().bytes;
    frames_.pop_front();
  }
}

bool JobConnection::HasMoreFramesThan(uint64_t bytes_max) {
  if (frames_bytes_ <= bytes_max) return false;
  ForgetFramesThatLeft();
  return frames_bytes_ > bytes_max;
}

uint64_t JobConnection::pending_bytes() const {
  return share_.transport->PendingBytes(config_.id) + results_.waiting_bytes();
}

}  // namespace talweg::aggregator
