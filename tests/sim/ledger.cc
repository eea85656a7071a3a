// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/ledger.h"

#include <algorithm>

#include "libs/base/fingerprint.h"

namespace talweg::sim {

namespace {

// The round is not done and never will be. Members that are late when the view changes hear of a
// mismatch as an aborted round.
bool IsOver(Ledger::End end) { return end != Ledger::End::kDone; }

}  // namespace

uint64_t ContributionBase(const view::MemberIdentity& member, LocalRank rank, TensorKey tensor,
                          Round round) {
  return Fingerprint64(Fingerprint64(member.incarnation.value(), rank.value()),
                       Fingerprint64(tensor.value(), round.value()));
}

void Ledger::OnView(const view::View& view, bool store_is_older) {
  if (const std::string problem = view.Problem(); !problem.empty()) {
    throw Violation{"what was published is not a view: " + problem};
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

bool Ledger::InView(Epoch epoch, const view::MemberIdentity& member) const {
  const auto view = views_.find(epoch);
  return view != views_.end() && view->second.IndexOf(member).has_value();
}

bool Ledger::SurvivorIn(Epoch epoch, const view::MemberIdentity& joiner) const {
  for (const auto& [earlier, view] : views_) {
    const std::optional<MemberIndex> index = view.IndexOf(joiner);
    if (index && !view.members[index->value()].standby) return false;
    for (const view::ViewMember& member : view.members) {
      if (!member.standby && InView(epoch, member.id)) return true;
    }
  }
  return false;
}

bool Ledger::LostSeveralAtOnce() const {
  const view::View* before = nullptr;
  for (const auto& [epoch, view] : views_) {
    size_t gone = 0;
    if (before != nullptr) {
      for (const view::ViewMember& member : before->members)
        gone += view.IndexOf(member.id) ? 0 : 1;
      for (const view::ViewAggregator& aggregator : before->aggregators) {
        gone += view.IndexOfAggregator(aggregator.incarnation) ? 0 : 1;
      }
    }
    if (gone > 1) return true;
    before = &view;
  }
  return false;
}

void Ledger::CheckAgreement(const std::string& what, const Outcome& outcome) {
  std::vector<Settled>& results = settled_[{outcome.tensor, outcome.round}];
  Settled* same = nullptr;
  for (Settled& other : results) {
    if (IsOver(other.outcome.end) == IsOver(outcome.end) &&
        other.outcome.sum_epoch == outcome.sum_epoch &&
        other.outcome.ranks_summed == outcome.ranks_summed) {
      same = &other;
      continue;
    }
    // A member that took one result and lived to see the other's epoch should have made its own the
    // only one.
    for (const auto& [member, epoch] : other.takers) {
      if (!SawBoth(member, epoch, outcome)) continue;
      throw Violation{what +
                      (IsOver(other.outcome.end) != IsOver(outcome.end)
                           ? "was aborted for some ranks only: "
                           : "differs from another rank's result: ") +
                      "node " + std::to_string(member.node.value()) + " got it in epoch " +
                      std::to_string(epoch.value()) + " from the sum of epoch " +
                      std::to_string(other.outcome.sum_epoch.value()) + ", this one in epoch " +
                      std::to_string(outcome.epoch.value()) + " from the sum of epoch " +
                      std::to_string(outcome.sum_epoch.value())};
    }
  }
  if (same == nullptr) same = &results.emplace_back(Settled{outcome, {}});
  same->takers.emplace(outcome.member, outcome.epoch);
}

void Ledger::OnDead(TensorKey tensor, const Death& death) {
  deaths_[{tensor, death.needed}].push_back(death);
}

void Ledger::CheckNotDead(const std::string& what, const Outcome& outcome) const {
  const auto deaths = deaths_.find({outcome.tensor, outcome.needed});
  if (deaths == deaths_.end() || outcome.end != End::kDone) return;
  for (const Death& death : deaths->second) {
    // A member that has left since may have been the only one that heard of the tensor's death.
    if (outcome.round <= death.last || !SawBoth(death.member, death.epoch, outcome)) continue;
    throw Violation{what + "was done, but for node " + std::to_string(death.member.node.value()) +
                    " the tensor is dead since round " + std::to_string(death.last.value())};
  }
}

bool Ledger::SawBoth(const view::MemberIdentity& member, Epoch epoch,
                     const Outcome& outcome) const {
  return epoch <= outcome.epoch ? InView(outcome.epoch, member) : InView(epoch, outcome.member);
}

std::vector<Ledger::RankOfMember> Ledger::RanksIn(const RoundPlan& plan, Epoch sum_epoch) const {
  std::vector<RankOfMember> ranks;
  for (const Participant& each : Participants(views_.at(sum_epoch), plan)) {
    ranks.push_back({each.member, each.place.local_rank});
  }
  return ranks;
}

void Ledger::OnGathered(const std::string& who, TensorKey tensor, uint64_t call,
                        const RankOfMember& rank, Epoch epoch,
                        const std::vector<RankOfMember>& found) {
  const std::string what = who + ": its gather " + std::to_string(call) + " of tensor " +
                           std::to_string(tensor.value()) + " ";
  if (std::find(found.begin(), found.end(), rank) == found.end()) {
    throw Violation{what + "is without the rank itself"};
  }
  std::vector<Found>& others = gathered_[{tensor, call}];
  for (const Found& other : others) {
    const bool saw_both =
        other.epoch <= epoch ? InView(epoch, other.member) : InView(other.epoch, rank.member);
    if (!saw_both || other.ranks == found) continue;
    throw Violation{what + "has " + std::to_string(found.size()) + " ranks, and node " +
                    std::to_string(other.member.node.value()) + " found " +
                    std::to_string(other.ranks.size())};
  }
  others.push_back({rank.member, epoch, found});
}

std::vector<Ledger::Participant> Ledger::Participants(const view::View& view,
                                                      const RoundPlan& plan) {
  std::vector<Participant> ranks;
  uint32_t number_of_all = 0;
  for (uint32_t m = 0; m < view.members.size(); ++m) {
    const view::ViewMember& member = view.members[m];
    if (member.standby) continue;  // A standby takes part in no round of a step.
    for (uint32_t rank = 0; rank < member.rank_count; ++rank) {
      const view::Place place{member.id.node, LocalRank{rank}};
      const std::optional<uint32_t> number = plan.NumberOf(place, number_of_all++);
      if (number) ranks.push_back({member.id, place, *number, m});
    }
  }
  return ranks;
}

// Returns whether these ranks give the same signature and the same lengths.
bool Ledger::Agree(const std::vector<Participant>& ranks, const Outcome& outcome) {
  const RoundPlan& plan = *outcome.plan;
  return std::all_of(ranks.begin(), ranks.end(), [&](const Participant& rank) {
    const view::Place& first = ranks.front().place;
    if (plan.Signature(outcome.round, rank.place) != plan.Signature(outcome.round, first)) {
      return false;
    }
    for (uint32_t part = 0; part < plan.part_count() && !plan.collective().copies(); ++part) {
      if (plan.LengthBytes(outcome.round, part, rank.place) !=
          plan.LengthBytes(outcome.round, part, first)) {
        return false;
      }
    }
    return true;
  });
}

// A round is aborted only if somebody has begun it and a member that it needs is gone. It may also
// have been a mismatch for others: a new view can hide that from the rest.
void Ledger::CheckAborted(const std::string& what, const Outcome& outcome) const {
  const Collective collective = outcome.plan->collective();
  // A rank may push a tensor of which nobody here has heard yet that it is dead.
  const bool is_dead = deaths_.contains({outcome.tensor, outcome.needed});
  if (!is_dead && !contributed_.contains({outcome.tensor, outcome.round})) {
    throw Violation{what + "was aborted, but no rank had begun it: " + outcome.text};
  }
  if (outcome.plan->Odd(outcome.round)) return;
  const auto is_gone = [&](const view::MemberIdentity& id) { return !InView(outcome.epoch, id); };
  if (collective.has_root() && (outcome.needed.empty() || is_gone(outcome.needed.front()))) return;
  if (collective.needs_every_rank() &&
      std::any_of(outcome.needed.begin(), outcome.needed.end(), is_gone)) {
    return;
  }
  throw Violation{what + "was aborted, but every member that it needs is here: " + outcome.text};
}

void Ledger::OnCombined(const std::string& who, TensorKey tensor, Round round,
                        const view::MemberIdentity& member, const std::vector<LocalRank>& ranks) {
  const auto [known, is_new] = combined_.emplace(std::tuple(tensor, round, member), ranks);
  if (known->second == ranks) return;
  throw Violation{who + ": its contribution to round " + std::to_string(round.value()) +
                  " of tensor " + std::to_string(tensor.value()) + " has " +
                  std::to_string(ranks.size()) + " ranks, and had " +
                  std::to_string(known->second.size()) + " others"};
}

std::optional<bool> Ledger::IsIn(TensorKey tensor, Round round, const RankOfMember& rank) const {
  const auto combined = combined_.find({tensor, round, rank.member});
  if (combined == combined_.end()) return std::nullopt;
  const std::vector<LocalRank>& ranks = combined->second;
  return std::find(ranks.begin(), ranks.end(), rank.local_rank) != ranks.end();
}

std::pair<uint64_t, uint64_t> Ledger::Given(TensorKey tensor, Round round, const RankOfMember& rank,
                                            uint64_t first_cell) const {
  const auto pushed = pushed_.find({tensor, round, rank.member, rank.local_rank});
  const std::vector<Round> rounds =
      pushed == pushed_.end() ? std::vector<Round>{round} : pushed->second;
  uint64_t base = 0;
  for (const Round each : rounds) {
    base += ContributionBase(rank.member, rank.local_rank, tensor, each) + first_cell * kCellStep;
  }
  return {base, rounds.size() * kCellStep};
}

// Returns the rank that has written into its contribution while the round was open, if there is
// one.
const Ledger::RankOfMember* Ledger::WriterOf(const Outcome& outcome) const {
  const auto found = early_.find({outcome.tensor, outcome.round});
  return found == early_.end() ? nullptr : &found->second;
}

// Ranks that are given one sum see the same, also where a contribution changed while it was sent.
// Where contributions are copied, the node that gives one keeps its own.
void Ledger::CheckSameBits(const std::string& what, const Outcome& outcome, const Cells& result) {
  const Collective collective = outcome.plan->collective();
  const RankOfMember* const writer = WriterOf(outcome);
  if (writer == nullptr || collective.copies() || outcome.plan->part_count() != 1) return;
  const bool is_writer = writer->member == outcome.member;
  if (is_writer && outcome.in_place) return;
  if (collective.gets != Share::kWhole) return;
  const auto count = static_cast<std::ptrdiff_t>(CellCount(outcome.lengths.at(0)));
  const auto [known, is_new] =
      early_sums_.emplace(std::tuple(outcome.tensor, outcome.round, outcome.sum_epoch),
                          Cells(result.begin(), result.begin() + count));
  if (is_new || std::equal(known->second.begin(), known->second.end(), result.begin())) return;
  throw Violation{what + "differs from another rank's, as a contribution changed meanwhile"};
}

void Ledger::CheckPart(const std::string& what, const Outcome& outcome,
                       const std::vector<Participant>& ranks, uint32_t part, uint32_t root,
                       const Cells& result) const {
  const RoundPlan& plan = *outcome.plan;
  const Collective collective = plan.collective();
  const uint32_t rank_count =
      static_cast<uint32_t>(plan.group().empty() ? ranks.size() : plan.group().size());
  const std::string which = what + "part " + std::to_string(part) + " ";
  const uint64_t first_cell = part * collective.stride_bytes() / kCellBytes;
  // What the part's first cell must be, and how much each next cell adds.
  uint64_t sum = 0;
  uint64_t step = 0;
  uint64_t changed = 0;  // The part's first cell if a rank has changed its contribution.
  const RankOfMember* const writer = WriterOf(outcome);
  const uint64_t early = writer == nullptr ? 0
                                           : EarlyBase(writer->member, writer->local_rank,
                                                       outcome.tensor, outcome.round);
  const bool is_own = writer != nullptr && outcome.in_place &&
                      *writer == RankOfMember{outcome.member, outcome.local_rank};
  std::optional<uint64_t> length;
  for (size_t i = 0; i < ranks.size();) {
    uint64_t node_sum = 0;
    uint64_t node_step = 0;
    uint64_t node_changed = 0;
    bool gives = false;
    const uint32_t member_place = ranks[i].member_place;
    for (; i < ranks.size() && ranks[i].member_place == member_place; ++i) {
      const Participant& rank = ranks[i];
      if (!collective.Gives(part, rank.number, rank_count, root)) continue;
      gives = true;
      length = plan.LengthBytes(outcome.round, part, rank.place);
      const RankOfMember giver{rank.member, rank.place.local_rank};
      if (collective.leaves_out() && !IsIn(outcome.tensor, outcome.round, giver).value_or(true)) {
        continue;
      }
      const auto [base, each] = Given(outcome.tensor, outcome.round, giver, first_cell);
      node_sum = Combine(node_sum, base);
      node_step = Combine(node_step, each);
      const bool has_changed = writer != nullptr && *writer == giver;
      node_changed = Combine(node_changed, has_changed ? early + first_cell * kCellStep : base);
    }
    if (!gives) continue;
    sum = Combine(sum, node_sum);
    step = Combine(step, node_step);
    changed = Combine(changed, node_changed);
  }
  if (!length) throw Violation{which + "is a result that no rank of its epoch gives"};
  if (part >= outcome.lengths.size() || outcome.lengths[part] != *length) {
    throw Violation{which + "has " +
                    (part < outcome.lengths.size() ? std::to_string(outcome.lengths[part]) : "no") +
                    " bytes, but " + std::to_string(*length) + " were given"};
  }
  for (size_t i = 0; i < CellCount(*length); ++i) {
    const uint64_t cell = result.at(first_cell + i);
    if (cell == sum + i * step) continue;
    if (writer != nullptr && cell == changed + i * step) continue;
    if (is_own && cell == early + (first_cell + i) * kCellStep) continue;
    throw Violation{which + "is not what the ranks of its epoch gave, in their order, from cell " +
                    std::to_string(i) + " of " + std::to_string(CellCount(*length))};
  }
}

void Ledger::OnOutcome(const std::string& who, const Outcome& outcome, const Cells& result) {
  ++outcomes_;
  const RoundPlan& plan = *outcome.plan;
  const Collective collective = plan.collective();
  const std::string what = who + ": tensor " + std::to_string(outcome.tensor.value()) + " (" +
                           std::string(collective.name()) + ") round " +
                           std::to_string(outcome.round.value()) + ": ";
  CheckAgreement(what, outcome);
  CheckNotDead(what, outcome);
  if (outcome.end == End::kAborted) return CheckAborted(what, outcome);
  const bool is_mismatch = outcome.end == End::kMismatch;
  const auto view = views_.find(is_mismatch ? outcome.epoch : outcome.sum_epoch);
  if (view == views_.end()) throw Violation{what + "is the sum of an epoch that has no view"};
  const std::vector<Participant> ranks = Participants(view->second, plan);
  if (Agree(ranks, outcome) == is_mismatch) {
    throw Violation{what + (is_mismatch ? "is a mismatch, but all ranks agree"
                                        : "was done, but its ranks disagree")};
  }
  if (is_mismatch) return;
  const std::optional<bool> is_in =
      collective.leaves_out()
          ? IsIn(outcome.tensor, outcome.round, {outcome.member, outcome.local_rank})
          : std::nullopt;
  if (is_in && *is_in == outcome.left_out) {
    throw Violation{what + (*is_in ? "has the rank's contribution, and it was told otherwise"
                                   : "is without the rank, and it was not told")};
  }
  if (collective.needs_every_rank() && ranks.size() != plan.group().size()) {
    throw Violation{what + "was done without a rank that it needs"};
  }
  uint32_t root = ~uint32_t{0};
  uint32_t own = ~uint32_t{0};
  for (const Participant& rank : ranks) {
    if (outcome.root && rank.member == outcome.root->member &&
        rank.place.local_rank == outcome.root->local_rank) {
      root = rank.number;
    }
    // The rank may have the result from others, of an epoch in which it was not a member.
    if (rank.place == view::Place{outcome.member.node, outcome.local_rank}) own = rank.number;
  }
  if (collective.has_root() && root == ~uint32_t{0}) {
    throw Violation{what + "was done without the root that this rank knows"};
  }
  const auto rank_count =
      static_cast<uint32_t>(plan.group().empty() ? ranks.size() : plan.group().size());
  for (uint32_t part = 0; part < plan.part_count(); ++part) {
    if (!collective.Gets(part, own, rank_count, root)) continue;
    CheckPart(what, outcome, ranks, part, root, result);
  }
  CheckSameBits(what, outcome, result);
  if (!collective.copies() && outcome.ranks_summed != ranks.size()) {
    throw Violation{what + "counts " + std::to_string(outcome.ranks_summed) +
                    " ranks, but the view has " + std::to_string(ranks.size())};
  }
}

}  // namespace talweg::sim
