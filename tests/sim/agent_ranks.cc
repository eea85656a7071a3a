// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "libs/base/fingerprint.h"
#include "tests/sim/agent_process.h"

// The trainers of a simulated agent.
namespace talweg::sim {

// Returns the number by which ranks here know the one at `place`, or nullopt if they do not.
std::optional<Rank> AgentProcess::NumberOf(const view::Place& place) const {
  const std::optional<MemberIndex> member = told_view_->IndexOf(place.node);
  if (!member || told_view_->members[member->value()].standby ||
      place.local_rank.value() >= told_view_->members[member->value()].rank_count) {
    return std::nullopt;
  }
  return Rank{told_view_->RankBase(*member).value() + place.local_rank.value()};
}

std::optional<Ledger::RankOfMember> AgentProcess::RankAt(
    const std::optional<view::Place>& place) const {
  if (!place || !NumberOf(*place)) return std::nullopt;
  return Ledger::RankOfMember{told_view_->members[told_view_->IndexOf(place->node)->value()].id,
                              place->local_rank};
}

// Returns the plan of the first trainer that declares a tensor, with the places that it knows.
RoundPlan AgentProcess::ProposedPlan(size_t tensor) const {
  const Profile& profile = *config_.profile;
  const TensorProfile& drawn = profile.tensors[tensor];
  if (!profile.has_groups) return {profile, tensor, {}, std::nullopt};
  view::Group all;
  for (const view::ViewMember& member : told_view_->members) {
    if (member.standby) continue;
    for (uint32_t i = 0; i < member.rank_count; ++i) all.push_back({member.id.node, LocalRank{i}});
  }
  view::Group group;
  for (const view::Place& place : drawn.group) {
    if (NumberOf(place)) group.push_back(place);
  }
  if (group.empty()) group = all;
  std::optional<view::Place> root;
  if (drawn.collective().has_root()) root = group[drawn.root_rank % group.size()];
  // A group of all ranks has no names: it means whoever is there. A collective that gives each rank
  // a part of its own still needs the names.
  if (group == all && !drawn.collective().needs_every_rank()) group.clear();
  return {profile, tensor, group, root};
}

void AgentProcess::AgreeOnPlans() {
  if (!plans_.empty()) return;
  for (size_t tensor = 0; tensor < config_.profile->tensors.size(); ++tensor) {
    const RoundPlan proposed = ProposedPlan(tensor);
    const RoundPlan& plan =
        ledger_->AgreedPlan(TensorKey{Fingerprint64(proposed.name())}, proposed);
    plans_.push_back(&plan);
    uint32_t here = 0;
    // Without names a tensor would have the ranks of joiners, too, which the gather has not.
    const bool is_used = !plan.tensor().is_of_survivors || !plan.group().empty();
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const view::Place place{NodeRank{config_.node}, LocalRank{rank}};
      ranks_[rank].tensors[tensor].is_mine = is_used && plan.NumberOf(place, 0).has_value();
      here += ranks_[rank].tensors[tensor].is_mine ? 1 : 0;
    }
    if (plan.group().empty()) continue;
    if (here == 0) trace_->Reached("a node that has no rank in a group");
    if (here > 0 && here < ranks_.size()) trace_->Reached("a group of a part of a node's ranks");
    if (here == plan.group().size()) trace_->Reached("a group on one node");
    if (here > 0 && here < plan.group().size()) trace_->Reached("a group over several nodes");
  }
}

pipeline::TensorSpec AgentProcess::SpecOf(LocalRank rank, size_t tensor) const {
  const TensorProfile& profile = config_.profile->tensors[tensor];
  const RoundPlan& plan = *plans_[tensor];
  pipeline::TensorSpec spec{
      .name = plan.name(), .collective = profile.collective(), .root_rank = profile.root_rank};
  for (const view::Place& place : plan.group()) {
    if (const std::optional<Rank> number = NumberOf(place)) spec.ranks.push_back(*number);
  }
  if (plan.root()) {
    spec.root_rank = NumberOf(*plan.root()).value_or(Rank{told_view_->RankCount()}).value();
  }
  // A spec that means all ranks needs no names. Half of them give the names all the same.
  if (spec.ranks.size() == told_view_->RankCount() && profile.root_rank % 2 == 0) {
    spec.ranks.clear();
  }
  const bool is_last_node = config_.node + 1 == config_.profile->rank_counts.size();
  if (profile.mismatch && is_last_node && rank.value() + 1 == config_.rank_count) {
    spec.collective.element_count += 16;
  }
  return spec;
}

// Rule 10: every rank that has declared a tensor is told that ranks disagree on it, whether it
// declared first or last.
void AgentProcess::CheckTold() const {
  if (ledger_ == nullptr || core().views().phase() != pipeline::Phase::kActive) return;
  for (const auto& [key, disagreement] : ledger_->disagreements()) {
    const pipeline::AgentTensor* const tensor = core().FindTensor(key);
    if (tensor == nullptr || tensor->state == pipeline::TensorState::kFailed ||
        core().views().present()->epoch != disagreement.epoch ||
        timeline_->now_ns() < disagreement.since_ns + 60 * kSecond) {
      continue;
    }
    throw Violation{name_ + ": has not heard for 60 s that ranks disagree on " + tensor->spec.name};
  }
}

void AgentProcess::StartRanks() {
  if (!follows_) return;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].state != RankState::kStarting || !ranks_[rank].welcome) continue;
    ranks_[rank].state = RankState::kDeclaring;
    timeline_->After(network_->Delay(), [this, rank, life = network_->host(host_).life()] {
      network_->host(host_).Deliver(life, [this, rank] { DeclareNext(LocalRank{rank}); });
    });
  }
}

void AgentProcess::DeclareNext(LocalRank rank) {
  if (ranks_[rank.value()].state != RankState::kDeclaring) return;
  AgreeOnPlans();
  // The rank declares all tensors at once, in an order of its own.
  for (const TensorProfile& tensor : config_.profile->tensors) {
    const bool is_last_node = config_.node + 1 == config_.profile->rank_counts.size();
    if (tensor.mismatch && is_last_node && config_.rank_count > 1) {
      trace_->Reached("ranks of one node disagree");
    }
  }
  std::vector<size_t> order(config_.profile->tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[timeline_->random().Below(i)]);
  }
  const std::vector<RankTensor>& mine = ranks_[rank.value()].tensors;
  if (std::none_of(mine.begin(), mine.end(), [](const RankTensor& each) { return each.is_mine; })) {
    ranks_[rank.value()].state = RankState::kTraining;
    return PushNext(rank);
  }
  for (size_t tensor = 0; tensor < mine.size(); ++tensor) {
    // If the group is all ranks that this one knows, the spec would mean all ranks, later ones too.
    const bool means_all = plans_[tensor]->group().size() == told_view_->RankCount() &&
                           !plans_[tensor]->collective().needs_every_rank();
    if (mine[tensor].is_mine && means_all) return FailRankWith(rank, "it knows no other ranks");
    for (const view::Place& place : plans_[tensor]->group()) {
      if (!mine[tensor].is_mine || NumberOf(place)) continue;
      return FailRankWith(rank, "it knows no rank of node " + std::to_string(place.node.value()));
    }
  }
  for (const size_t tensor : order) {
    if (!ranks_[rank.value()].tensors[tensor].is_mine) continue;
    Declare(rank, static_cast<uint32_t>(tensor), SpecOf(rank, tensor));
  }
}

void AgentProcess::OnDeclareReply(LocalRank local, size_t place, pipeline::TensorIndex index,
                                  Round held) {
  RankProcess& rank = ranks_[local.value()];
  if (rank.state != RankState::kDeclaring) return;
  RankTensor& tensor = rank.tensors[place];
  tensor.declared = true;
  tensor.index = index;
  tensor.pushed = tensor.taken = held;
  tensor.calls = std::min(core().views().steps_base() * config_.profile->rounds_per_step,
                          config_.profile->round_count);
  for (const RankTensor& other : rank.tensors) {
    if (other.is_mine && !other.declared) return;
  }
  rank.state = RankState::kTraining;
  {
    // The joiner enters at one round: all that the others have ended, and nothing after it.
    std::optional<Round> entered;
    if (core().views().steps_base() > 0) {
      entered = Round{std::min(core().views().steps_base() * config_.profile->rounds_per_step,
                               config_.profile->round_count)};
    }
    for (const RankTensor& other : rank.tensors) {
      // Groups advance with their own ranks.
      if (!other.is_mine ||
          !plans_[static_cast<size_t>(&other - rank.tensors.data())]->group().empty()) {
        continue;
      }
      // Its open round may have been aborted in this very view.
      if (core().tensors().at(other.index.value())->is_dead) continue;
      if (other.taken == entered.value_or(other.taken)) {
        entered = other.taken;
        continue;
      }
      if (ledger_->tensor_failed()) break;
      // Nobody is left who could tell: all who were there before have finished meanwhile. Or the
      // one who tells is itself such a joiner, and its tensors are at different rounds.
      static constexpr const char* kNobodyLeft = "a joiner whose survivors have all left";
      if (!ledger_->SurvivorIn(core().views().present()->epoch, core().config().self) ||
          trace_->HasReached(kNobodyLeft)) {
        trace_->Reached(kNobodyLeft);
        break;
      }
      throw Violation{name_ + ": enters in the middle of a step: after round " +
                      std::to_string(other.taken.value()) + " of " +
                      plans_[static_cast<size_t>(&other - rank.tensors.data())]->name() +
                      ", not after round " + std::to_string(entered->value())};
    }
    if (tensor.taken > Round{0}) trace_->Reached("a joiner goes on with a later round");
  }
  Later(network_->Delay(), [this, local] { PushNext(local); });
}

void AgentProcess::PushNext(LocalRank local) {
  RankProcess& rank = ranks_[local.value()];
  if (rank.state != RankState::kTraining || rank.at_boundary) return;
  while (HasEndedStep(rank)) {
    const bool was_last = EndOfStep(rank) == config_.profile->round_count;
    if (!EndStep(local)) return;
    if (was_last) break;
  }
  std::vector<size_t> order;
  uint64_t lowest = UINT64_MAX;
  for (size_t i = 0; i < rank.tensors.size(); ++i) {
    const RankTensor& tensor = rank.tensors[i];
    if (tensor.is_mine && !tensor.failed && !IsReduction(i))
      lowest = std::min(lowest, Progress(rank, i));
  }
  for (size_t i = 0; i < rank.tensors.size(); ++i) {
    if (!MayPush(rank, i)) continue;
    if (config_.profile->in_steps && !IsReduction(i) && Progress(rank, i) != lowest) continue;
    order.push_back(i);
  }
  while (!order.empty()) {
    const size_t place = timeline_->random().Below(order.size());
    Push(local, BeginCall(local, order[place]));
    order.erase(order.begin() + static_cast<std::ptrdiff_t>(place));
  }
  CheckDone(local);
}

void AgentProcess::Push(LocalRank local, size_t place) {
  RankTensor& tensor = ranks_[local.value()].tensors[place];
  const Allocated& allocated = allocated_.at(tensor.index);
  tensor.pushed = tensor.pushed.Next();
  tensor.pushed_ns = timeline_->now_ns();
  if (core().FindTensor(allocated.key)->held.round >= tensor.pushed) {
    trace_->Reached("a push of a round that was aborted before");
  }
  const RoundPlan& plan = *plans_[place];
  const Collective collective = plan.collective();
  const view::Place here{NodeRank{config_.node}, local};
  // The rank's number matters only where the group has names.
  const uint32_t number = plan.NumberOf(here, 0).value();
  const auto rank_count = static_cast<uint32_t>(plan.group().size());
  const bool is_root = plan.root() ? *plan.root() == here : IsRootByNumber(place, local);
  const std::span<std::byte> bytes = ContributionOf(local, tensor.index);
  for (uint64_t i = 0; i < CellCount(allocated.spec.bytes()); ++i) StoreCell(bytes, i, kNothing);
  const auto [base, step] = NextContribution(local, tensor, allocated);
  std::vector<uint32_t> lengths;
  bool is_full = true;
  for (uint32_t part = 0; part < plan.part_count(); ++part) {
    lengths.push_back(0);
    if (!collective.Gives(part, number, rank_count, is_root ? number : number + 1)) continue;
    const uint64_t length = plan.LengthBytes(tensor.pushed, part, here);
    lengths.back() = static_cast<uint32_t>(length);
    is_full = is_full && length == collective.part_bytes();
    if (length == 0) trace_->Reached("a part of no bytes");
    if (length > 0 && length < collective.part_bytes()) {
      trace_->Reached("a part is shorter than declared");
    }
    const uint64_t first = part * collective.stride_bytes() / kCellBytes;
    for (uint64_t i = first; i < first + CellCount(length); ++i) {
      StoreCell(bytes, i, base + i * step);
    }
  }
  if (is_full && allocated.spec.collective == collective) lengths.clear();
  const auto priority = static_cast<int32_t>(timeline_->random().Below(3));
  Say(local, {.rank = local,
              .tensor = tensor.index,
              .round = tensor.pushed,
              .priority = priority,
              .signature = plan.Signature(tensor.pushed, here),
              .lengths = lengths});
  WaitNow(local, place);
}

// Finds the root by the numbers that ranks here got when they joined.
std::optional<Ledger::RankOfMember> AgentProcess::RootOf(size_t place) const {
  if (!config_.profile->tensors[place].collective().has_root()) return std::nullopt;
  if (plans_[place]->root()) return RankAt(plans_[place]->root());
  const Rank root{config_.profile->tensors[place].root_rank};
  const std::optional<MemberIndex> member = told_view_->MemberOfRank(root);
  if (!member) return std::nullopt;
  return Ledger::RankOfMember{told_view_->members[member->value()].id,
                              LocalRank{root.value() - told_view_->RankBase(*member).value()}};
}

bool AgentProcess::IsRootByNumber(size_t place, LocalRank local) const {
  const std::optional<Ledger::RankOfMember> root = RootOf(place);
  return root && root->member == core().config().self && root->local_rank == local;
}

std::vector<view::MemberIdentity> AgentProcess::NeededBy(size_t place) const {
  std::vector<view::MemberIdentity> needed;
  if (const auto root = RootOf(place)) needed.push_back(root->member);
  for (const view::Place& each : plans_[place]->group()) {
    if (const auto rank = RankAt(each)) needed.push_back(rank->member);
  }
  return needed;
}

// Returns whether some rank here gets this part.
bool AgentProcess::Gets(size_t place, uint32_t part) const {
  const RoundPlan& plan = *plans_[place];
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const view::Place here{NodeRank{config_.node}, LocalRank{rank}};
    const std::optional<uint32_t> number = plan.NumberOf(here, 0);
    if (!number) continue;
    const bool is_root =
        plan.root() ? *plan.root() == here : IsRootByNumber(place, LocalRank{rank});
    if (plan.collective().Gets(part, *number, static_cast<uint32_t>(plan.group().size()),
                               is_root ? *number : *number + 1)) {
      return true;
    }
  }
  return false;
}

// Checks that parts that no other node gives or gets do not go to an owner.
void AgentProcess::CheckTravels(const wire::Contribute& entry) const {
  const pipeline::AgentTensor& tensor = *core().FindTensor(entry.key);
  if (tensor.finish() || core().views().present()->members.size() == 1) return;
  // A group that was all ranks of this agent's first view means all ranks, joiners too.
  if (tensor.group.empty()) return;
  for (const RoundPlan* const plan : plans_) {
    const view::Group& group = plan->group();
    if (group.empty() || tensor.spec.name != plan->name()) continue;
    const uint32_t part =
        tensor.spec.collective.part_at(tensor.slices[entry.slice.value()].offset_bytes);
    const auto count = static_cast<uint32_t>(group.size());
    for (uint32_t i = 0; i < count; ++i) {
      const bool is_there = core().views().present()->IndexOf(group[i].node).has_value();
      const bool takes_part = !plan->collective().is_pairwise() ||
                              plan->collective().Gives(part, i, count, count) ||
                              plan->collective().Gets(part, i, count, count);
      if (is_there && takes_part && group[i].node.value() != config_.node) return;
    }
    throw Violation{name_ + ": sends a slice of " + tensor.spec.name +
                    " that no other node gives or gets"};
  }
}

std::span<std::byte> AgentProcess::ContributionOf(LocalRank rank, pipeline::TensorIndex tensor) {
  return rank_server_.memory().At(driver_.memory().ContributionLocation(tensor, rank));
}

Cells AgentProcess::ResultCells(pipeline::TensorIndex tensor, Round round) {
  const std::span<std::byte> bytes =
      rank_server_.memory().At(driver_.memory().ResultLocations(tensor)[round.value() & 1]);
  return CellsIn(bytes.first(allocated_.at(tensor).spec.bytes()));
}

// Returns the result as a rank sees it that copies parts as they arrive. Such a rank copies
// everything again if the parts are not the whole. Nobody copies what is in place.
Cells AgentProcess::ResultOf(LocalRank rank, size_t place,
                             const pipeline::CompleteRound& complete) {
  const pipeline::TensorIndex tensor = complete.tensor;
  const Arriving& arriving = allocated_.at(tensor).arriving;
  const Cells result = ResultCells(tensor, complete.round);
  if (arriving.round != complete.round || complete.status != pipeline::Status::kOk) return result;
  uint64_t bytes = 0;
  for (uint32_t part = 0; part < plans_[place]->part_count(); ++part) {
    if (Gets(place, part)) bytes += complete.lengths.at(part);
  }
  if (arriving.bytes >= bytes && IsInPlace(rank, tensor)) return result;
  if (arriving.bytes == bytes) {
    trace_->Reached("a result is copied while it comes");
    return *arriving.cells;
  }
  if (arriving.bytes < bytes) {
    throw Violation{name_ + ": a round ended before every slice of its result was announced"};
  }
  trace_->Reached("slices of a result come again");
  return result;
}

// The text must name both sides, and these must differ.
void AgentProcess::CheckMismatch(const std::string& who, const std::string& text) const {
  static constexpr std::string_view kGives = " gives ";
  const size_t first = text.find(kGives);
  const size_t second = first == std::string::npos ? first : text.find(kGives, first + 1);
  const size_t comma = second == std::string::npos ? second : text.rfind(", rank ", second);
  if (comma == std::string::npos || comma < first) {
    throw Violation{who + ": a mismatch that does not name both sides: " + text};
  }
  const std::string one = text.substr(first + kGives.size(), comma - first - kGives.size());
  const std::string other = text.substr(second + kGives.size());
  if (one.empty() || one == other) {
    throw Violation{who + ": a mismatch in which both sides are the same: " + text};
  }
  trace_->Reached(text.find(" bytes") != std::string::npos
                      ? "a round ends, as ranks gave different lengths"
                      : "a round ends, as ranks gave different signatures");
  trace_->Reached(text.find("local rank") != std::string::npos
                      ? "a round ends, as ranks of one node disagree"
                      : "a round ends, as nodes disagree");
}

void AgentProcess::Take(LocalRank local, size_t place, const pipeline::CompleteRound& complete,
                        Epoch epoch) {
  RankProcess& rank = ranks_[local.value()];
  if (rank.state != RankState::kTraining || rank.tensors[place].failed) return;
  RankTensor& tensor = rank.tensors[place];
  const Allocated& allocated = allocated_.at(tensor.index);
  const std::string who = name_ + " rank " + std::to_string(local.value());
  // The agent repeats this when another rank comes late to the round. This rank may have taken a
  // later round meanwhile. A RankServer ignores the repetition too.
  if (complete.round <= tensor.taken) return;
  if (complete.round != tensor.taken.Next()) throw Violation{who + ": a round was skipped"};
  const bool aborted = complete.status == pipeline::Status::kAborted;
  const bool is_mismatch = complete.status == pipeline::Status::kMismatch;
  if (!aborted && !is_mismatch && complete.status != pipeline::Status::kOk) {
    throw Violation{who + ": a round ended with " + pipeline::StatusName(complete.status)};
  }
  const auto says = [&complete](const char* words) {
    return complete.text.find(words) != std::string::npos;
  };
  // The tensor has failed for all: it had been given up here before, or this rank's declaration was
  // answered meanwhile.
  const bool has_failed = (is_mismatch && says(" declares ")) ||
                          (aborted && (says(kCannotBeTrue) || says(kContradict)));
  if (has_failed) return FailRankWith(local, who + ": " + complete.text, is_mismatch);
  if (is_mismatch) CheckMismatch(who, complete.text);
  NoteRound(place, complete);
  ledger_->OnOutcome(who,
                     {.tensor = allocated.key,
                      .plan = plans_[place],
                      .round = complete.round,
                      .end = aborted       ? Ledger::End::kAborted
                             : is_mismatch ? Ledger::End::kMismatch
                                           : Ledger::End::kDone,
                      .text = complete.text,
                      .sum_epoch = complete.sum_epoch,
                      .ranks_summed = complete.ranks_summed,
                      .lengths = complete.lengths,
                      .left_out = IsLeftOut(local, complete),
                      .in_place = IsInPlace(local, tensor.index),
                      .member = core().config().self,
                      .local_rank = local,
                      .epoch = epoch,
                      .root = RootOf(place),
                      .needed = NeededBy(place)},
                     ResultOf(local, place, complete));
  tensor.taken = complete.round;
  NoteLeftOut(local, tensor, complete);
  Scribble(local, tensor.index);
  NoteCall(local, place, complete, epoch);
  if (aborted) trace_->Reached("a rank hears that its round is aborted");
  if (trace_->on()) {
    trace_->Add(timeline_->now_ns(), who,
                "takes " + allocated.spec.name + " round " +
                    std::to_string(complete.round.value()) +
                    (aborted       ? " (aborted)"
                     : is_mismatch ? " (mismatch)"
                                   : "") +
                    " of epoch " + std::to_string(complete.sum_epoch.value()));
  }
  const uint64_t one_in = config_.profile->straggler_one_in;
  if (one_in == 0 || !timeline_->random().OneIn(one_in)) return PushNext(local);
  const int64_t pause_ns = static_cast<int64_t>(timeline_->random().Below(8 * kSecond));
  timeline_->After(pause_ns, [this, local, life = network_->host(host_).life()] {
    network_->host(host_).Deliver(life, [this, local] { PushNext(local); });
  });
}

void AgentProcess::ConfuseRank(LocalRank local) {
  RankProcess& rank = ranks_[local.value()];
  if (rank.state != RankState::kTraining || core().views().has_failed()) return;
  rank.confused = true;
  RankTensor tensor = rank.tensors[timeline_->random().Below(rank.tensors.size())];
  // Otherwise its push of a tensor that it takes no part in could be a valid push of another
  // tensor.
  if (!tensor.declared) tensor.index = pipeline::TensorIndex{1000};
  switch (timeline_->random().Below(3)) {
    case 0: tensor.index = pipeline::TensorIndex{1000}; break;
    case 1: tensor.pushed = Round{tensor.pushed.value() + 5}; break;
    case 2:
      if (tensor.pushed == tensor.taken) return;  // Otherwise it pushes the same round again.
      break;
  }
  Say(local, {.rank = local, .tensor = tensor.index, .round = tensor.pushed});
}

void AgentProcess::CheckDone(LocalRank local) {
  RankProcess& rank = ranks_[local.value()];
  for (size_t i = 0; i < rank.tensors.size(); ++i) {
    if (!rank.tensors[i].is_mine || rank.tensors[i].failed || IsReduction(i)) continue;
    if (Progress(rank, i) < config_.profile->round_count) return;
  }
  rank.state = RankState::kDone;
  trace_->Add(timeline_->now_ns(), name_, "rank " + std::to_string(local.value()) + " is done");
  rank_server_.SayGone(local, true, "");
}

// A trainer may go on without a tensor that has failed.
void AgentProcess::GoOnWithout(pipeline::TensorIndex index) {
  for (uint32_t local = 0; local < ranks_.size(); ++local) {
    std::vector<RankTensor>& tensors = ranks_[local].tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].declared || tensors[i].index != index) continue;
      tensors[i].failed = true;
      if (const std::optional<size_t> partner = PartnerOf(i)) tensors[*partner].failed = true;
    }
    timeline_->After(network_->Delay(), [this, local, life = network_->host(host_).life()] {
      network_->host(host_).Deliver(life, [this, local] { PushNext(LocalRank{local}); });
    });
  }
}

void AgentProcess::FailRankWith(LocalRank local, const std::string& text, bool may_linger) {
  RankProcess& rank = ranks_[local.value()];
  if (rank.state == RankState::kDone || rank.state == RankState::kDead ||
      rank.state == RankState::kFailed) {
    return;
  }
  rank.state = RankState::kFailed;
  rank.text = text;
  // A trainer that gets an error ends, at once or later, without a goodbye.
  const int64_t linger_ns = may_linger && timeline_->random().OneIn(2) ? 100 * kSecond : 0;
  Later(linger_ns + network_->Delay(),
        [this, local] { rank_server_.SayGone(local, false, "it ended on an error"); });
}

void AgentProcess::KillRank(LocalRank local) {
  RankProcess& rank = ranks_[local.value()];
  if (rank.state == RankState::kDone || rank.state == RankState::kDead) return;
  trace_->Add(timeline_->now_ns(), name_, "rank " + std::to_string(local.value()) + " is killed");
  rank_server_.SayGone(local, false, "its socket hung up");
  rank.state =
      rank.state == RankState::kStarting && !rank.welcome ? RankState::kStarting : RankState::kDead;
  if (rank.state == RankState::kDead) return;
  // The process never was a rank, so whoever starts ranks starts another one.
  Later(network_->Delay(), [this, local] {
    RankProcess& replaced = ranks_[local.value()];
    if (replaced.state != RankState::kStarting) return;
    if (replaced.welcome) {  // It was a rank after all.
      replaced.state = RankState::kDead;
      return;
    }
    trace_->Reached("a rank that was killed before it was greeted has a successor");
    rank_server_.Replace(local);
    SayHello(local);
  });
}

bool AgentProcess::Settled() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
    return rank.state == RankState::kDone || rank.state == RankState::kFailed ||
           rank.state == RankState::kDead;
  });
}

std::optional<int64_t> AgentProcess::WaitsSince() const {
  // A rank of this node is busy with its own work, and still has to push that round.
  const auto is_due_here = [this](size_t tensor, Round round) {
    return std::any_of(ranks_.begin(), ranks_.end(), [&](const RankProcess& rank) {
      if (rank.state != RankState::kTraining || tensor >= rank.tensors.size()) return false;
      const RankTensor& its = rank.tensors[tensor];
      return its.is_mine && !its.failed && its.pushed == its.taken && its.pushed < round;
    });
  };
  std::optional<int64_t> since_ns;
  for (const RankProcess& rank : ranks_) {
    if (rank.state == RankState::kStarting || rank.state == RankState::kDeclaring) return 0;
    if (rank.state != RankState::kTraining) continue;
    if (rank.at_boundary) return 0;
    for (size_t i = 0; i < rank.tensors.size(); ++i) {
      const RankTensor& tensor = rank.tensors[i];
      if (tensor.pushed == tensor.taken || is_due_here(i, tensor.pushed)) continue;
      since_ns = std::min(since_ns.value_or(tensor.pushed_ns), tensor.pushed_ns);
    }
  }
  return since_ns;
}

bool AgentProcess::Lingers() const {
  return !left_ && Settled() && (told_to_stop_ || AllRanksDone() || Failed());
}

bool AgentProcess::AllRanksDone() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const RankProcess& rank) { return rank.state == RankState::kDone; });
}

}  // namespace talweg::sim
