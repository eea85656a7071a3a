// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/ledger.h"

#include "libs/base/fingerprint.h"

namespace talweg::sim {

uint64_t ContributionBase(const MemberIdentity& member, LocalRank rank, TensorKey tensor,
                          Round round) {
  return Fingerprint64(Fingerprint64(member.incarnation.value(), rank.value()),
                       Fingerprint64(tensor.value(), round.value()));
}

Cells ContributionCells(const MemberIdentity& member, LocalRank rank, TensorKey tensor, Round round,
                        uint64_t bytes) {
  Cells cells(CellCount(bytes));
  uint64_t value = ContributionBase(member, rank, tensor, round);
  for (uint64_t& cell : cells) {
    cell = value;
    value += kCellStep;
  }
  return cells;
}

void Ledger::OnView(const View& view, bool store_is_older) {
  if (const std::string problem = view.Problem(); !problem.empty()) {
    throw Violation{"no view was published: " + problem};
  }
  const auto [known, is_new] = views_.emplace(view.epoch, view);
  if (is_new && !store_is_older && views_.rbegin()->first != view.epoch) {
    throw Violation{"epochs went back: " + std::to_string(view.epoch.value()) + " was published " +
                    "after " + std::to_string(views_.rbegin()->first.value())};
  }
  if (known->second.Digest() != view.Digest()) {
    throw Violation{"two views of epoch " + std::to_string(view.epoch.value())};
  }
}

bool Ledger::InView(Epoch epoch, const MemberIdentity& member) const {
  const auto view = views_.find(epoch);
  return view != views_.end() && view->second.IndexOf(member).has_value();
}

bool Ledger::SurvivorIn(Epoch epoch, const MemberIdentity& joiner) const {
  for (const auto& [earlier, view] : views_) {
    if (view.IndexOf(joiner)) return false;
    for (const ViewMember& member : view.members) {
      if (InView(epoch, member.id)) return true;
    }
  }
  return false;
}

bool Ledger::LostSeveralAtOnce() const {
  const View* before = nullptr;
  for (const auto& [epoch, view] : views_) {
    size_t gone = 0;
    if (before != nullptr) {
      for (const ViewMember& member : before->members) gone += view.IndexOf(member.id) ? 0 : 1;
      for (const ViewAggregator& aggregator : before->aggregators) {
        gone += view.IndexOfAggregator(aggregator.incarnation) ? 0 : 1;
      }
    }
    if (gone > 1) return true;
    before = &view;
  }
  return false;
}

void Ledger::CheckAgreement(const std::string& what, const Outcome& outcome, uint64_t first_cell) {
  std::vector<Settled>& results = settled_[{outcome.tensor, outcome.round}];
  Settled* same = nullptr;
  for (Settled& other : results) {
    if (other.outcome.aborted == outcome.aborted && other.first_cell == first_cell &&
        other.outcome.sum_epoch == outcome.sum_epoch &&
        other.outcome.ranks_summed == outcome.ranks_summed) {
      same = &other;
      continue;
    }
    // Whoever had one of them and lived to see the other's epoch should have made it the only one.
    for (const auto& [member, epoch] : other.takers) {
      const bool both =
          epoch <= outcome.epoch ? InView(outcome.epoch, member) : InView(epoch, outcome.member);
      if (!both) continue;
      throw Violation{what +
                      (other.outcome.aborted != outcome.aborted
                           ? "aborted for some ranks only: "
                           : "differs from what another rank has got: ") +
                      "node " + std::to_string(member.node.value()) + " had it in epoch " +
                      std::to_string(epoch.value()) + " of the sum of epoch " +
                      std::to_string(other.outcome.sum_epoch.value()) + ", this one in epoch " +
                      std::to_string(outcome.epoch.value()) + " of the sum of epoch " +
                      std::to_string(outcome.sum_epoch.value())};
    }
  }
  if (same == nullptr) same = &results.emplace_back(Settled{outcome, first_cell, {}});
  same->takers.emplace(outcome.member, outcome.epoch);
}

void Ledger::OnOutcome(const std::string& who, const Outcome& outcome, const Cells& result) {
  ++outcomes_;
  const std::string what = who + ": tensor " + std::to_string(outcome.tensor.value()) + " round " +
                           std::to_string(outcome.round.value()) + ": ";
  CheckAgreement(what, outcome, outcome.aborted || result.empty() ? 0 : result.front());
  if (outcome.aborted) {
    if (contributed_.contains({outcome.tensor, outcome.round})) return;
    throw Violation{what + "was aborted, and nobody had begun it"};
  }
  if (result.empty()) throw Violation{what + "has no bytes"};
  const auto view = views_.find(outcome.sum_epoch);
  if (view == views_.end()) throw Violation{what + "a sum of an epoch that never was"};
  const bool is_broadcast = outcome.op == Op::kCopy;
  // What the first cell must be, and how much more every next one.
  uint64_t sum = 0;
  uint64_t step = 0;
  for (const ViewMember& member : view->second.members) {
    uint64_t node_sum = 0;
    uint64_t node_step = 0;
    for (uint32_t rank = 0; rank < member.rank_count; ++rank) {
      const uint64_t base =
          ContributionBase(member.id, LocalRank{rank}, outcome.tensor, outcome.round);
      node_sum = Combine(node_sum, base);
      node_step = Combine(node_step, kCellStep);
    }
    sum = Combine(sum, node_sum);
    step = Combine(step, node_step);
  }
  if (is_broadcast) step = kCellStep;
  for (size_t i = 0; i < result.size(); ++i) {
    if (result[i] != result[0] + i * step) {
      throw Violation{what + "cell " + std::to_string(i) + " is not of the same sum as cell 0"};
    }
  }
  if (is_broadcast) {
    const auto& [member, local_rank] = outcome.root.value();
    if (result.front() != ContributionBase(member, local_rank, outcome.tensor, outcome.round)) {
      throw Violation{what + "is not the bytes of local rank " +
                      std::to_string(local_rank.value()) + " of node " +
                      std::to_string(member.node.value()) + ", which this rank knows as the root"};
    }
    return;
  }
  if (result.front() != sum) {
    throw Violation{what + "is not the sum of its epoch's members, in their order"};
  }
  if (outcome.ranks_summed != view->second.RankCount()) {
    throw Violation{what + "counts " + std::to_string(outcome.ranks_summed) + " ranks, the view " +
                    std::to_string(view->second.RankCount())};
  }
}

}  // namespace talweg::sim
