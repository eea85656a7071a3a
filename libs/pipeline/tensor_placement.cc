// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/tensor_placement.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/view/participation.h"
#include "libs/view/placement.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {
namespace {

// Returns the places of `ranks` by `numbers`, up to the first rank that `numbers` does not have.
view::Group PlacesOf(const view::View& numbers, const std::vector<Rank>& ranks,
                     bool with_standbys) {
  view::Group group;
  for (const Rank rank : ranks) {
    const std::optional<MemberIndex> member = numbers.MemberOfRank(rank);
    if (!member || (numbers.members[member->value()].standby && !with_standbys)) break;
    group.push_back({numbers.members[member->value()].id.node,
                     LocalRank{rank.value() - numbers.RankBase(*member).value()}});
  }
  return group;
}

std::string TooManySlices(const TensorSpec& spec, const view::View& view) {
  const std::string most = std::to_string(wire::kTensorSlicesMax);
  if (spec.part_count() > wire::kTensorSlicesMax) {
    return "tensor '" + spec.name + "' would have " + std::to_string(spec.part_count()) +
           " parts, and a tensor has at most " + most + " slices, each of one part; use a group " +
           "of fewer ranks";
  }
  return "tensor '" + spec.name + "' of " + FormatBytes(spec.bytes()) + " would have more than " +
         most + " slices of " + FormatBytes(view.slice_bytes_max) +
         "; use a slice size of at least " +
         FormatBytes(RoundUp(spec.bytes() / (wire::kTensorSlicesMax / 2) + 1, 64 * kKiB));
}

Travel TravelIn(const ViewState& views) {
  if (views.standalone()) return Travel::kNone;
  return views.present()->members.size() > 1 ? Travel::kShared : Travel::kAll;
}

// Finds which of the ranks are in the present view, and which are gone.
void ResolveInView(const ViewState& views, AgentTensor& tensor) {
  const view::View& view = *views.present();
  std::optional<view::Place> root;
  if (tensor.spec.collective.has_root() && view.IndexOf(tensor.root_member)) {
    root = view::Place{tensor.root_member.node, tensor.root_local_rank};
  }
  tensor.self = views.self();
  tensor.travel = TravelIn(views);
  tensor.participation = view::Participation(view, tensor.spec.collective, tensor.group, root);
  if (tensor.spec.collective.ends_with_any_rank() && tensor.needed_members.empty()) {
    for (const view::Place& place : tensor.group) {
      const std::optional<MemberIndex> member = view.IndexOf(place.node);
      if (member) tensor.needed_members.push_back(view.members[member->value()].id);
    }
  }
  const bool one_is_gone = std::any_of(
      tensor.needed_members.begin(), tensor.needed_members.end(),
      [&view](const view::MemberIdentity& id) { return !view.IndexOf(id).has_value(); });
  tensor.is_dead = tensor.is_dead || one_is_gone || !tensor.participation.IsPossible();
}

}  // namespace

std::string ResolveRanks(const ViewState& views, AgentTensor& tensor) {
  if (tensor.resolved) return "";
  const view::View& numbers = *views.numbers();
  const auto problem = [&](Rank rank) {
    return "tensor '" + tensor.spec.name + "': there is no rank " + std::to_string(rank.value()) +
           "; the job has ranks 0 to " + std::to_string(numbers.RankCount() - 1);
  };
  tensor.group = PlacesOf(numbers, tensor.spec.ranks, tensor.spec.collective.side);
  if (tensor.group.size() < tensor.spec.ranks.size()) {
    return problem(tensor.spec.ranks[tensor.group.size()]);
  }
  // Sorts because standbys have the highest numbers, whatever their places.
  std::sort(tensor.group.begin(), tensor.group.end());
  tensor.in_group.assign(tensor.pushed.size(), tensor.group.empty());
  for (const view::Place& place : tensor.group) {
    if (place.node == views.self_id().node) tensor.in_group[place.local_rank.value()] = true;
  }
  tensor.in_group_count =
      static_cast<uint32_t>(std::count(tensor.in_group.begin(), tensor.in_group.end(), true));
  if (tensor.spec.collective.has_root()) {
    const Rank root{tensor.spec.root_rank};
    const std::optional<MemberIndex> member = numbers.MemberOfRank(root);
    if (!member) return problem(root);
    tensor.root_member = numbers.members[member->value()].id;
    tensor.root_local_rank = LocalRank{root.value() - numbers.RankBase(*member).value()};
  }
  tensor.resolved = true;
  return "";
}

std::string PlaceTensor(const ViewState& views, AgentTensor& tensor) {
  TALWEG_CHECK(views.present() != nullptr);
  const view::View& view = *views.present();
  tensor.owners.clear();
  tensor.primary = view::PrimaryOwner(view, tensor.key);
  if (!view.aggregators.empty()) tensor.owners[tensor.primary] = {};
  tensor.slices.clear();
  tensor.ResetSlices();
  if (std::string problem = ResolveRanks(views, tensor); !problem.empty()) return problem;
  const uint64_t slices_min = tensor.spec.bytes() / view.slice_bytes_max + tensor.spec.part_count();
  if (slices_min <= wire::kTensorSlicesMax) {
    tensor.slices =
        view::Placement(view, tensor.key, tensor.spec.collective, tensor.group).slices();
  }
  if (tensor.slices.empty() || tensor.slices.size() > wire::kTensorSlicesMax) {
    tensor.slices.clear();
    return TooManySlices(tensor.spec, view);
  }
  if (!view.aggregators.empty()) {
    for (const view::Slice& slice : tensor.slices) tensor.owners[slice.owner] = {};
  }
  ResolveInView(views, tensor);
  tensor.ResetSlices();
  return "";
}

// Ranks that are gone get numbers that no rank has.
void Renumber(const view::View& numbers, AgentTensor& tensor) {
  uint32_t gone = wire::kNoRank - static_cast<uint32_t>(tensor.group.size()) - 1;
  const auto number_of = [&](const view::Place& place) {
    const std::optional<MemberIndex> member = numbers.IndexOf(place.node);
    return member ? Rank{numbers.RankBase(*member).value() + place.local_rank.value()}
                  : Rank{gone++};
  };
  for (size_t i = 0; i < tensor.group.size(); ++i)
    tensor.spec.ranks[i] = number_of(tensor.group[i]);
  // Sorts because standbys have the highest numbers, whatever their places.
  std::sort(tensor.spec.ranks.begin(), tensor.spec.ranks.end());
  if (!tensor.spec.collective.has_root()) return;
  tensor.spec.root_rank = numbers.IndexOf(tensor.root_member)
                              ? number_of({tensor.root_member.node, tensor.root_local_rank}).value()
                              : wire::kNoRank - 1;
}

}  // namespace talweg::pipeline
