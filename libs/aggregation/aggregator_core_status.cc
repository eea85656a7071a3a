// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "libs/aggregation/aggregator_core.h"

// The answers to people's questions.
namespace talweg::aggregation {
namespace {

std::string NameOf(const AggregatorTensor& tensor) {
  return tensor.agreed ? tensor.agreed->name : "";
}

uint32_t SlicesHere(const AggregatorTensor& tensor) {
  return tensor.Placed() ? static_cast<uint32_t>(tensor.local.size()) : 0;
}

TensorStatus StatusOf(const AggregatorTensor& tensor) {
  TensorStatus status = {.key = tensor.key,
                         .name = NameOf(tensor),
                         .slices_here = SlicesHere(tensor),
                         .slice_count = tensor.slice_count,
                         .reserved_bytes = tensor.reserved_bytes};
  if (tensor.agreed) status.collective = tensor.agreed->collective;
  if (tensor.poison) status.poisoned = tensor.poison->text;
  if (!tensor.Placed()) return status;
  for (const LocalSlice& slice : tensor.local) {
    status.round_summed = std::max(status.round_summed, slice.round.standing().round);
  }
  return status;
}

// Returns nullopt if no round of the tensor waits for a member.
std::optional<RoundStatus> OpenRoundOf(const AggregatorTensor& tensor, const view::View& view,
                                       int64_t now_ns) {
  const std::optional<Wait> wait = WaitOf(tensor, view.members.size());
  if (!wait) return std::nullopt;
  RoundStatus round = {.tensor = NameOf(tensor),
                       .round = wait->round,
                       .slices_open = wait->slices,
                       .slices_here = SlicesHere(tensor),
                       .waited_ns = now_ns - wait->since_ns};
  for (const LocalSlice& slice : tensor.local) {
    round.slices_summed += slice.round.standing().round >= wait->round ? 1 : 0;
  }
  for (size_t i = 0; i < view.members.size(); ++i) {
    if (wait->missing[i]) round.missing.push_back(view.members[i].id.node);
  }
  return round;
}

}  // namespace

JobStatus AggregatorCore::Status(int64_t now_ns, bool with_tensors) const {
  JobStatus status = {.job = config_.job,
                      .name = config_.name,
                      .epoch = view_.epoch(),
                      .in_view = view_.self().has_value(),
                      .reports_complete = recovery_.is_complete(),
                      .reserved_bytes = memory_.place().used_bytes(),
                      .sums_known = rounds_.latecomers().sum_count(),
                      .tensor_count = tensors_.size(),
                      .counters = counters_};
  const std::vector<Latecomers::Lateness> lateness =
      rounds_.latecomers().ByMember(view_.member_count());
  for (uint32_t i = 0; i < view_.member_count(); ++i) {
    const view::ViewMember& viewed = view_.view().members[i];
    const std::optional<ConnectionId>& connection = attendance_.ConnectionOf(MemberIndex{i});
    MemberStatus& record = status.members.emplace_back();
    record.id = viewed.id;
    record.rank_count = viewed.rank_count;
    record.name = viewed.name;
    record.connected = connection.has_value();
    record.reported = recovery_.HasReported(MemberIndex{i});
    record.lateness = lateness[i];
    if (connection) record.contribution_bytes = sessions_.Find(*connection)->contribution_bytes;
  }
  for (const auto& [key, tensor] : tensors_) {
    if (with_tensors) status.tensors.push_back(StatusOf(tensor));
    std::optional<RoundStatus> round = OpenRoundOf(tensor, view_.view(), now_ns);
    if (round) status.open_rounds.push_back(*std::move(round));
  }
  return status;
}

}  // namespace talweg::aggregation
