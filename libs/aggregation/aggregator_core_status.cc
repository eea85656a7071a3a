// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "libs/aggregation/aggregator_core.h"

// What people may ask.
namespace talweg::aggregation {
namespace {

void AddTensor(const AggregatorTensor& tensor, const view::View& view, int64_t now_ns,
               JobStatus& status) {
  TensorStatus& record = status.tensors.emplace_back();
  record.key = tensor.key;
  if (tensor.agreed) {
    record.name = tensor.agreed->name;
    record.collective = tensor.agreed->collective;
  }
  record.slices_here = tensor.Placed() ? static_cast<uint32_t>(tensor.local.size()) : 0;
  record.slice_count = tensor.slice_count;
  record.reserved_bytes = tensor.reserved_bytes;
  if (tensor.poison) record.poisoned = tensor.poison->text;
  if (tensor.Placed()) {
    for (const LocalSlice& slice : tensor.local) {
      record.round_summed = std::max(record.round_summed, slice.round.standing().round);
    }
  }
  const std::optional<Wait> wait = WaitOf(tensor, view.members.size());
  if (!wait) return;
  RoundStatus& round = status.open_rounds.emplace_back();
  round.tensor = record.name;
  round.round = wait->round;
  round.slices_open = wait->slices;
  round.slices_here = record.slices_here;
  for (const LocalSlice& slice : tensor.local) {
    round.slices_summed += slice.round.standing().round >= wait->round ? 1 : 0;
  }
  round.waited_ns = now_ns - wait->since_ns;
  for (size_t i = 0; i < view.members.size(); ++i) {
    if (wait->missing[i]) round.missing.push_back(view.members[i].id.node);
  }
}

}  // namespace

JobStatus AggregatorCore::Status(int64_t now_ns) const {
  JobStatus status = {.job = config_.job,
                      .name = config_.name,
                      .epoch = view_.epoch(),
                      .in_view = view_.self().has_value(),
                      .reports_complete = recovery_.is_complete(),
                      .reserved_bytes = memory_.place().used_bytes(),
                      .counters = counters_};
  for (uint32_t i = 0; i < view_.member_count(); ++i) {
    const view::ViewMember& viewed = view_.view().members[i];
    const std::optional<ConnectionId>& connection = attendance_.ConnectionOf(MemberIndex{i});
    MemberStatus& record = status.members.emplace_back();
    record.id = viewed.id;
    record.rank_count = viewed.rank_count;
    record.name = viewed.name;
    record.connected = connection.has_value();
    record.reported = recovery_.HasReported(MemberIndex{i});
    if (connection) record.contribution_bytes = sessions_.Find(*connection)->contribution_bytes;
  }
  for (const auto& [key, tensor] : tensors_) AddTensor(tensor, view_.view(), now_ns, status);
  return status;
}

}  // namespace talweg::aggregation
