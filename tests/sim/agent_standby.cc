// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>

#include "libs/base/fingerprint.h"
#include "tests/sim/agent_process.h"

// Side tensors stand for the state that a standby takes over. A standby and each full member that
// it finds share some rounds of a side tensor, while the full members go on with their steps. After
// that the standby is ready.
namespace talweg::sim {
namespace {

constexpr uint64_t kElements = 160;

}  // namespace

bool AgentProcess::IsStandbyIn(const view::View& view) const {
  const std::optional<MemberIndex> self = view.IndexOf(core().config().self);
  return self && view.members[self->value()].standby;
}

bool AgentProcess::RankPushes() const {
  if (core().views().has_failed() || ended_ || ranks_.front().confused) return false;
  const RankState state = ranks_.front().state;
  return state == RankState::kTraining || (state == RankState::kStarting && !told_view_);
}

void AgentProcess::MeetStandbys() {
  const view::View* const view = core().views().newest();
  if (!config_.profile->standbys || view == nullptr || !knows_standbys_) return;
  if (core().views().has_failed() || ended_) return;
  const bool is_standby = IsStandbyIn(*view);
  if (is_standby && std::exchange(has_met_, true)) return;
  if (!is_standby && !view->HasStandby()) return;
  // The numbers of other ranks mean something only to ranks that have declared all tensors by their
  // own numbers.
  const bool are_declared = std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
    return rank.state != RankState::kStarting && rank.state != RankState::kDeclaring;
  });
  if (!is_standby && !are_declared) {
    timeline_->After(5 * network_->Delay(), [this, life = network_->host(host_).life()] {
      network_->host(host_).Deliver(life, [this] { MeetStandbys(); });
    });
    return;
  }
  // OnFollowed() goes on from here.
  if (!is_standby) return Ask(LocalRank{0}, shm::BoundaryQuestion::kFollow, 0, view->epoch);
  Meet(*view);
}

void AgentProcess::OnFollowed(bool follows, Epoch epoch) {
  if (core().views().has_failed() || ended_) return;
  if (!follows) {
    // There have been many views since. The numbers of the newest one will do.
    const Epoch newest = core().views().newest()->epoch;
    if (!follows_) told_view_ = *core().views().newest();
    return Ask(LocalRank{0}, shm::BoundaryQuestion::kFollow, 0, newest);
  }
  // The ranks have asked for another view since.
  if (core().views().numbers()->epoch != epoch) return;
  if (std::exchange(follows_, true)) return Meet(*core().views().numbers());
  StartRanks();
  MeetStandbys();
}

void AgentProcess::Meet(const view::View& view) {
  const bool is_standby = IsStandbyIn(view);
  for (const view::ViewMember& member : view.members) {
    if (member.standby == is_standby || member.id == core().config().self) continue;
    const view::MemberIdentity joiner = is_standby ? core().config().self : member.id;
    const view::MemberIdentity full = is_standby ? member.id : core().config().self;
    const std::string name = "side." + std::to_string(joiner.incarnation.value()) + "." +
                             std::to_string(full.incarnation.value());
    if (std::any_of(sides_.begin(), sides_.end(),
                    [&](const SideTensor& side) { return side.name == name; })) {
      continue;
    }
    trace_->Reached("a full member meets a standby");
    for (const auto& tensor : core().tensors()) {
      const bool names_it =
          std::any_of(tensor->group.begin(), tensor->group.end(),
                      [&](const view::Place& place) { return place.node == member.id.node; });
      if (is_standby || tensor->spec.collective.side || !names_it || tensor->is_dead) continue;
      trace_->Reached("a standby is at a place that a tensor of the steps names");
    }
    sides_.push_back(
        {.name = name, .other = member.id, .round_count = 1 + Fingerprint64(name) % 12});
    timeline_->After(network_->Delay(),
                     [this, side = sides_.size() - 1, life = network_->host(host_).life()] {
                       network_->host(host_).Deliver(life, [this, side] { DeclareSide(side); });
                     });
  }
}

void AgentProcess::DeclareSide(size_t place) {
  SideTensor& side = sides_[place];
  const view::View* const numbers = core().views().numbers();
  if (!RankPushes() || !numbers->IndexOf(side.other)) return EndSide(place);
  pipeline::TensorSpec spec{.name = side.name,
                            .collective = {DType::kF32, Op::kSum, Share::kWhole, Share::kWhole,
                                           kElements, /*side=*/true}};
  for (const view::MemberIdentity& id : {core().config().self, side.other}) {
    spec.ranks.push_back(numbers->RankBase(*numbers->IndexOf(id)));
  }
  std::sort(spec.ranks.begin(), spec.ranks.end());
  Declare(LocalRank{0}, kSideRequests + static_cast<uint32_t>(place), spec);
}

void AgentProcess::OnSideDeclared(size_t place, pipeline::TensorIndex index, Round held) {
  SideTensor& side = sides_[place];
  side.declared = true;
  side.index = index;
  side.pushed = held;
  PushSide(place);
}

void AgentProcess::OnSideRefused(size_t place, shm::RankStatus status, const std::string& text) {
  // If one of the two ranks follows a newer view meanwhile, it uses other numbers for the ranks.
  if (!ledger_->NamedByOlderNumbers(sides_[place].name) &&
      (status == shm::RankStatus::kInvalidArgument || status == shm::RankStatus::kMismatch)) {
    throw Violation{name_ + ": a side tensor is refused: " + text};
  }
  EndSide(place);
}

void AgentProcess::PushSide(size_t place) {
  SideTensor& side = sides_[place];
  if (side.over || !RankPushes()) return EndSide(place);
  if (side.pushed.value() >= side.round_count) return EndSide(place);
  side.pushed = side.pushed.Next();
  const uint64_t base = ContributionBase(core().config().self, LocalRank{0},
                                         allocated_.at(side.index).key, side.pushed);
  const std::span<std::byte> bytes = ContributionOf(LocalRank{0}, side.index);
  for (uint64_t i = 0; i < CellCount(kElements * 4); ++i) {
    StoreCell(bytes, i, base + i * kCellStep);
  }
  if (ranks_.front().at_boundary) trace_->Reached("a side tensor is pushed at the end of a step");
  Say(LocalRank{0}, {.tensor = side.index, .round = side.pushed});
}

void AgentProcess::TakeSide(size_t place, const pipeline::CompleteRound& complete) {
  SideTensor& side = sides_[place];
  if (side.over || complete.round != side.pushed) return;
  const std::string who = name_ + ": " + side.name + ": ";
  if (complete.status == pipeline::Status::kMismatch) {
    throw Violation{who + "a mismatch: " + complete.text};
  }
  if (complete.status != pipeline::Status::kOk) return EndSide(place);
  if (complete.ranks_summed != 2) {
    throw Violation{who + "counts " + std::to_string(complete.ranks_summed) +
                    " ranks, but has two"};
  }
  const TensorKey key = allocated_.at(side.index).key;
  view::MemberIdentity first = core().config().self;
  view::MemberIdentity second = side.other;
  if (second.node < first.node) std::swap(first, second);
  const auto base = [&](const view::MemberIdentity& id) {
    return ContributionBase(id, LocalRank{0}, key, complete.round);
  };
  // The sum is built as in the ledger: one rank of each of two nodes.
  const uint64_t sum = Combine(Combine(0, Combine(0, base(first))), Combine(0, base(second)));
  const uint64_t step = Combine(Combine(0, Combine(0, kCellStep)), Combine(0, kCellStep));
  const Cells result = ResultCells(side.index, complete.round);
  for (size_t i = 0; i < CellCount(kElements * 4); ++i) {
    if (result[i] == sum + i * step) continue;
    throw Violation{who + "round " + std::to_string(complete.round.value()) +
                    " is not what its two ranks gave"};
  }
  trace_->Reached("a round of a side tensor is done");
  PushSide(place);
}

void AgentProcess::EndSide(size_t place) {
  sides_[place].over = true;
  const view::View* const view = core().views().newest();
  if (is_ready_ || view == nullptr || !IsStandbyIn(*view)) return;
  if (!std::all_of(sides_.begin(), sides_.end(),
                   [](const SideTensor& side) { return side.over; })) {
    return;
  }
  is_ready_ = true;
  trace_->Reached("a standby is ready");
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    Ask(LocalRank{rank}, shm::BoundaryQuestion::kReady, 0, Epoch{0});
  }
}

std::optional<size_t> AgentProcess::SideOf(pipeline::TensorIndex index) const {
  for (size_t i = 0; i < sides_.size(); ++i) {
    const auto tensor = allocated_.find(index);
    if (tensor != allocated_.end() && tensor->second.spec.name == sides_[i].name) return i;
  }
  return std::nullopt;
}

}  // namespace talweg::sim
