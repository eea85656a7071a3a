// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "libs/base/fingerprint.h"
#include "tests/sim/agent_process.h"

// The messages of a confused agent. Aggregators have to refuse and count them, and must sum
// nothing.
namespace talweg::sim {
namespace {

enum class Confusion : uint8_t {
  kWrongJob = 0,
  kWrongEpoch = 1,
  kUnknownTensor = 2,
  kWrongSlice = 3,
  kWrongRound = 4,
  kWrongLength = 5,
  kWrongMode = 6,
  kWrongRankCount = 7,
  kOldFrameAgain = 8,
  kGarbage = 9,
  kReportAgain = 10,
  kFalseReport = 11,
  kFlood = 12,  // More than an aggregator tolerates.
};
constexpr uint64_t kConfusionCount = 13;
constexpr int kFloodCount = 20;

}  // namespace

void AgentProcess::Stop() {
  told_to_stop_ = true;
  Run([this] { driver_.Stop(name_ + " was told to stop"); });
}

void AgentProcess::Confuse() {
  Random& random = timeline_->random();
  if (random.OneIn(4)) {
    contributes_early_ = true;
    return;
  }
  const view::View* const view = core().views().newest();
  if (view == nullptr || core().owners().empty()) return;
  auto owner = core().owners().begin();
  std::advance(owner, random.Below(core().owners().size()));
  const std::optional<ConnectionId> name = data_plane_.TransportNameOf(owner->second.connection);
  if (!name) return;
  const ConnectionId connection = *name;
  if (owner->second.state != pipeline::OwnerState::kReady &&
      owner->second.state != pipeline::OwnerState::kGreeting) {
    return;
  }
  const auto confusion = Confusion{static_cast<uint8_t>(random.Below(kConfusionCount))};
  in_flight_[connection] = std::nullopt;  // More credit comes back than the core has used.
  if (confusion == Confusion::kGarbage) {
    std::vector<std::byte> bytes(1 + random.Below(100));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Below(256));
    return network_->SendFrame(host_, connection, std::move(bytes));
  }
  if (confusion == Confusion::kOldFrameAgain) {
    if (contributions_sent_.empty()) return;
    const auto& [on, frame] = contributions_sent_[random.Below(contributions_sent_.size())];
    if (on == connection) network_->SendFrame(host_, connection, frame);
    return;
  }

  if (confusion == Confusion::kReportAgain) {
    const auto report = reports_sent_.find(connection);
    if (report != reports_sent_.end()) network_->SendFrame(host_, connection, report->second);
    return;
  }
  if (confusion == Confusion::kFalseReport) {
    lies_ = true;
    return;
  }

  // A contribution that would be right, except for its round and one more thing.
  wire::Contribute entry{.key = TensorKey{random.Next()},
                         .round = kConfusedRound,
                         .rank_count = config_.rank_count,
                         .mode = wire::Mode::kSum,
                         .form = wire::Form::kWritten};
  JobId job = view->job;
  Epoch epoch = view->epoch;
  std::vector<std::byte> bytes;
  for (const auto& tensor : core().tensors()) {
    if (tensor->spec.collective.copies() || confusion == Confusion::kUnknownTensor ||
        confusion == Confusion::kFlood) {
      continue;
    }
    for (size_t i = 0; i < tensor->slices.size(); ++i) {
      if (tensor->slices[i].owner != owner->first) continue;
      entry.key = tensor->key;
      entry.slice = SliceIndex{static_cast<uint32_t>(i)};
      entry.length_bytes = tensor->slices[i].length_bytes;
      entry.travel_bytes = entry.length_bytes;
      if (confusion == Confusion::kWrongLength) {
        bytes.resize(tensor->slices[i].length_bytes > 8 ? 4 : 12);
        entry.form = wire::Form::kInline;
        entry.bytes = bytes;
      }
      break;
    }
  }
  if (confusion == Confusion::kWrongJob) job = JobId{job.value() + 1000};
  if (confusion == Confusion::kWrongEpoch) {
    epoch = random.OneIn(2) ? Epoch{epoch.value() + 7} : Epoch{epoch.value() - 1};
  }
  if (confusion == Confusion::kWrongSlice) entry.slice = SliceIndex{60'000};
  if (confusion == Confusion::kWrongMode) entry.mode = wire::Mode::kCopy;
  if (confusion == Confusion::kWrongRankCount) entry.rank_count += kConfusedRankCount;
  wire::FrameWriter writer(wire::FrameType::kContribute, job, epoch);
  const int count = confusion == Confusion::kFlood ? kFloodCount : 1;
  for (int i = 0; i < count; ++i) writer.Add(entry);
  network_->SendFrame(host_, connection, writer.Take());
}

void AgentProcess::ContributeEarly(ConnectionId connection, const wire::Header& header) {
  in_flight_[connection] = std::nullopt;
  wire::FrameWriter writer(wire::FrameType::kContribute, header.job, header.epoch);
  writer.Add(wire::Contribute{.key = TensorKey{timeline_->random().Next()},
                              .round = kConfusedRound,
                              .rank_count = config_.rank_count,
                              .mode = wire::Mode::kSum,
                              .form = wire::Form::kWritten});
  Later(1, [this, connection, frame = writer.Take()] {
    network_->SendFrame(host_, connection, frame);
  });
}

// Forges a message that fits the agent's present state. The job must fail here, with a text that
// names the aggregator.
void AgentProcess::Forge() {
  const view::View* const view = core().views().newest();
  if (view == nullptr || core().views().has_failed()) return;
  if (timeline_->random().OneIn(4)) {
    trace_->Reached(kForged);
    view::View other = *view;
    other.epoch = other.epoch.Next();
    other.members[other.IndexOf(core().config().self)->value()].rank_count += 1;
    return Run([&] { driver_.OnMemberEvent(rpc::ViewPublished{other}); });
  }
  if (timeline_->random().OneIn(3)) {
    forges_decision_ = true;
    return;
  }
  const auto say = [&](ConnectionId connection, wire::FrameType type, const auto& entry) {
    trace_->Reached(kForged);
    wire::FrameWriter writer(type, view->job, view->epoch);
    writer.Add(entry);
    // Delivered as the agent's transport would deliver it.
    const auto name = data_plane_.TransportNameOf(connection);
    if (name) data_plane_.OnFrame(*name, writer.Take());
  };
  for (const auto& [index, owner] : core().owners()) {
    if (owner.state != pipeline::OwnerState::kGreeting) continue;
    return say(owner.connection, wire::FrameType::kWelcome,
               wire::Welcome{.status = wire::WelcomeStatus::kViewDiffers,
                             .aggregator = owner.incarnation,
                             .text = "node 0 has another view"});
  }
  if (core().views().phase() == pipeline::Phase::kFencing) return;
  for (const auto& tensor : core().tensors()) {
    for (size_t i = 0; i < tensor->slices.size(); ++i) {
      if (tensor->slice_states[i] != pipeline::SliceState::kSent) continue;
      const auto owner = core().owners().find(tensor->slices[i].owner);
      if (owner == core().owners().end()) continue;
      const SliceIndex slice{static_cast<uint32_t>(i)};
      if (tensor->partial.have_count > 0 && !tensor->finish()) {
        return say(owner->second.connection, wire::FrameType::kResult,
                   wire::Result{.key = tensor->key,
                                .round = tensor->active_round(),
                                .slice = slice,
                                .rank_count = tensor->partial.ranks_summed + 1,
                                .length_bytes = tensor->slices[i].length_bytes,
                                .travel_bytes = tensor->slices[i].length_bytes,
                                .form = wire::Form::kWritten,
                                .sum_epoch = view->epoch});
      }
      return say(owner->second.connection, wire::FrameType::kRefused,
                 wire::Refused{.reason = wire::RefusedReason::kWrongLength,
                               .key = tensor->key,
                               .round = tensor->active_round(),
                               .slice = slice,
                               .text = "it is forged"});
    }
  }
}

// Delivers a forged decision just before a true one. Only at that moment can it be believed.
void AgentProcess::ForgeDecision(ConnectionId connection, const wire::Frame& frame,
                                 const std::vector<wire::Decision>& decisions) {
  trace_->Reached(kForged);
  wire::Decision wrong = decisions.front();
  wrong.round = Round{wrong.round.value() + 3};
  wire::FrameWriter writer(wire::FrameType::kDecision, frame.header.job, frame.header.epoch);
  writer.Add(wrong);
  data_plane_.OnFrame(connection, writer.Take());
}

}  // namespace talweg::sim
