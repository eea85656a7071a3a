// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/contribution_rules.h"

#include <optional>
#include <vector>

#include "libs/base/counted.h"
#include "libs/base/signature_text.h"
#include "libs/wire/round_kind.h"
#include "libs/wire/travel_lengths.h"

namespace talweg::aggregation {

using wire::Form;
using wire::RoundKind;

bool LengthIsWrong(const AggregatorTensor& tensor, const LocalSlice& slice,
                   const wire::Contribute& entry) {
  const Collective& collective = tensor.agreed->collective;
  if (!wire::CarriesData(entry.form)) return entry.length_bytes != 0 || entry.travel_bytes != 0;
  if (entry.length_bytes > slice.length_bytes) return true;
  if (entry.length_bytes % DTypeSize(collective.dtype) != 0) return true;
  return !wire::TravelLengthsAgree(entry, wire::EncodingOf(wire::KindOf(entry), collective));
}

std::string ModeProblem(const PresentView& view, const AggregatorTensor& tensor,
                        const LocalSlice& slice, MemberIndex member,
                        const wire::Contribute& entry) {
  // Built only when needed: this function runs for every contribution, and problems are rare.
  const auto who = [&] {
    return "tensor '" + tensor.agreed->name + "': " + view.MemberText(member);
  };
  const RoundKind kind = wire::KindOf(entry);
  const bool is_copied = wire::Copies(wire::KindOf(tensor.agreed->collective));
  const uint32_t giving_ranks = tensor.participation.GivingRanks(member, slice.part);
  if (kind == RoundKind::kSum) {
    if (is_copied) {
      return who() + " contributes to the sum of a tensor that is copied, " +
             Describe(*tensor.agreed);
    }
    if (entry.form == Form::kDisagreement) return "";
    if (entry.form == Form::kEmpty) return who() + " contributes nothing to a sum";
    if (entry.rank_count == 0 || entry.rank_count > giving_ranks) {
      return who() + " contributes for " + Counted(entry.rank_count, "rank") + " and has " +
             std::to_string(giving_ranks);
    }
    return "";
  }
  if (entry.sum_epoch > view.epoch()) return who() + " has a result of an epoch to come";
  if (entry.form == Form::kDisagreement) {
    return is_copied ? "" : who() + " disagrees in a copy of what is summed";
  }
  if (entry.form == Form::kEmpty) return "";
  if (kind == RoundKind::kFinish) return "";  // The member is its source.
  if (!is_copied) return who() + " copies bytes that are not a result into a sum";
  if (giving_ranks == 0) {
    return who() + " gives what it does not have, " + Describe(*tensor.agreed) + ", slice " +
           std::to_string(slice.index.value());
  }
  return "";
}

std::string RoundDisagreement(const PresentView& view, const AggregatorTensor& tensor,
                              const LocalSlice& slice) {
  const std::vector<SliceRound::Part>& parts = slice.round.parts();
  const std::string what = "round " + std::to_string(slice.round.open_round().value()) +
                           " of tensor '" + tensor.agreed->name + "': ";
  std::optional<size_t> first;
  std::optional<size_t> first_giver;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].here) continue;
    if (!parts[i].disagreement.empty()) return what + parts[i].disagreement;
    if (!first || parts[*first].signature == kFitsAll) first = i;
    if (!first_giver && parts[i].has_bytes) first_giver = i;
  }
  const auto said = [&](size_t member, bool with_length) {
    const std::optional<uint64_t> length =
        with_length ? std::optional<uint64_t>(parts[member].length_bytes) : std::nullopt;
    const MemberIndex index{static_cast<uint32_t>(member)};
    const uint32_t rank = view.view().RankBase(index).value() +
                          tensor.participation.RanksOf(index).front().local_rank.value();
    return "rank " + std::to_string(rank) + " (" + view.MemberText(index) + ") gives " +
           DescribeGiven(parts[member].signature, length);
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].here) continue;
    if (!Fit(parts[i].signature, parts[*first].signature)) {
      return what + said(*first, false) + ", " + said(i, false);
    }
    if (slice.round.kind() == RoundKind::kSum &&
        parts[i].length_bytes != parts[*first_giver].length_bytes) {
      return what + said(*first_giver, true) + ", " + said(i, true) + " in slice " +
             std::to_string(slice.index.value());
    }
  }
  return "";
}

std::string UndecodableText(const PresentView& view, const AggregatorTensor& tensor,
                            const LocalSlice& slice, MemberIndex member) {
  const SliceRound::Part& part = slice.round.parts()[member.value()];
  return "round " + std::to_string(slice.round.open_round().value()) + " of tensor '" +
         tensor.agreed->name + "': the " + Counted(part.travel_bytes, "byte") + " that " +
         view.MemberText(member) + " has sent for slice " + std::to_string(slice.index.value()) +
         " are no " + std::string(EncodingName(tensor.agreed->collective.encoding)) +
         " encoding of " + Counted(part.length_bytes, "byte");
}

}  // namespace talweg::aggregation
