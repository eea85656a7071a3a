// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/status_report.h"

#include <algorithm>
#include <string>
#include <utility>

#include "libs/reduce/isa.h"
#include "libs/rpc/conversion.h"

namespace talweg::aggregator {
namespace {

constexpr uint32_t kOpenRoundsDefault = 100;

void FillMembers(const AggregatorDataPlane& data_plane, const aggregation::AggregatorCore& job,
                 const aggregation::JobStatus& status, aggregator::v1::JobStatus* out) {
  for (size_t i = 0; i < status.members.size(); ++i) {
    const aggregation::MemberStatus& member = status.members[i];
    aggregator::v1::MemberConnection* const record = out->add_members();
    record->set_node_rank(member.id.node.value());
    record->set_connected(member.connected);
    record->set_came_last(member.lateness.last_count);
    *record->mutable_behind() = rpc::DurationFromNs(
        member.lateness.behind_ns / std::max<int64_t>(member.lateness.last_count, 1));
    const std::optional<ConnectionId>& connection = job.members()[i].connection;
    if (!connection) continue;
    const ConnectionTraffic traffic = data_plane.TrafficOf(*connection);
    record->set_bytes_received(traffic.received_bytes);
    record->set_bytes_sent(traffic.sent_bytes);
  }
}

void FillTensor(const aggregation::TensorStatus& tensor, size_t member_count,
                aggregator::v1::TensorStatus* out) {
  out->set_name(tensor.name);
  out->set_dtype(std::string(DTypeName(tensor.collective.dtype)));
  out->set_op(Words(tensor.collective));
  out->set_element_count(tensor.collective.element_count);
  out->set_slice_count(tensor.slices_here);
  out->set_bytes_placed(tensor.reserved_bytes / (member_count + 1));
  out->set_round_done(tensor.round_summed.value());
  out->set_poisoned(tensor.poisoned);
}

void FillJob(const AggregatorDataPlane& data_plane, const aggregation::AggregatorCore& job,
             const aggregator::v1::GetStatusRequest& request, int64_t now_ns,
             aggregator::v1::JobStatus* out) {
  aggregation::JobStatus status = job.Status(now_ns, request.with_tensors());
  out->set_job_id(status.job.value());
  out->set_name(status.name);
  out->set_epoch(status.epoch.value());
  out->set_tensor_count(static_cast<uint32_t>(status.tensor_count));
  out->set_rounds_done(status.counters.rounds);
  out->set_sums_known(status.sums_known);
  out->set_memory_bytes(status.reserved_bytes);
  *out->mutable_quota() = rpc::ToProto(job.quota());
  out->set_tensors_placed(job.place().used_tensors());
  out->set_bytes_served(data_plane.ServedBytes(status.job));
  FillMembers(data_plane, job, status, out);
  for (const aggregation::TensorStatus& tensor : status.tensors) {
    FillTensor(tensor, status.members.size(), out->add_tensors());
  }
  out->set_open_round_count(static_cast<uint32_t>(status.open_rounds.size()));
  std::stable_sort(status.open_rounds.begin(), status.open_rounds.end(),
                   [](const aggregation::RoundStatus& a, const aggregation::RoundStatus& b) {
                     return a.waited_ns > b.waited_ns;
                   });
  const uint32_t rounds_max =
      request.open_rounds_max() == 0 ? kOpenRoundsDefault : request.open_rounds_max();
  if (status.open_rounds.size() > rounds_max) status.open_rounds.resize(rounds_max);
  for (const aggregation::RoundStatus& round : status.open_rounds) {
    aggregator::v1::OpenRound* const record = out->add_open_rounds();
    record->set_tensor(round.tensor);
    record->set_round(round.round.value());
    record->set_slice_count(round.slices_here);
    record->set_slices_summed(round.slices_summed);
    for (const NodeRank node : round.missing) record->add_missing_node_ranks(node.value());
    *record->mutable_waited() = rpc::DurationFromNs(round.waited_ns);
  }
}

}  // namespace

void FillStatus(const AggregatorDataPlane& data_plane,
                const aggregator::v1::GetStatusRequest& request, int64_t now_ns,
                aggregator::v1::GetStatusResponse* response) {
  const AggregatorDataPlane::Totals totals = data_plane.totals();
  aggregation::Counters counters = totals.ended;
  for (const aggregation::AggregatorCore* job : data_plane.jobs()) {
    aggregation::AddCounters(job->counters(), counters);
    if (request.job_id() != 0 && request.job_id() != job->config().job.value()) continue;
    FillJob(data_plane, *job, request, now_ns, response->add_jobs());
  }
  response->set_bytes_received(totals.received_bytes);
  response->set_bytes_sent(totals.sent_bytes);
  response->set_bytes_summed(counters.summed_bytes);
  response->set_slices_summed(counters.sums);
  auto& refused = *response->mutable_refused_by_reason();
  for (size_t i = 1; i < counters.refused.size(); ++i) {
    refused[wire::RefusedReasonName(static_cast<wire::RefusedReason>(i))] = counters.refused[i];
  }
  refused["unreadable_frame"] = totals.unreadable_frames;
  response->set_memory_bytes(data_plane.budget().used_bytes());
  response->set_memory_bytes_max(data_plane.budget().limit_bytes());
  response->set_kernel(std::string(reduce::IsaName(reduce::BestIsa())));
  auto& named = *response->mutable_counters();
  for (const auto& [name, value] : aggregation::NamedCounters(counters)) named[name] = value;
  named["connections"] = totals.connections;
  named["impostors"] = totals.impostors;
  named["connections_over_limit"] = totals.connections_over_limit;
  named["results_queued"] = totals.results_queued;
  named["credit_held_bytes"] = totals.credit_held_bytes;
  named["hellos_for_unknown_jobs"] = totals.hellos_for_unknown_jobs;
}

}  // namespace talweg::aggregator
