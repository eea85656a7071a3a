// SPDX-License-Identifier: Apache-2.0
//
// The answers to GetStatus, SetTrace and GetTrace, and the file of a timeline.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <vector>

#include "libs/rpc/conversion.h"
#include "libs/runtime/clock.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "services/agent/agent.h"
#include "services/agent/agent_open.h"

namespace talweg::agent {
namespace {

using pipeline::SliceState;

constexpr uint32_t kOpenRoundsMax = 100;
// Far from the pids of real processes in the same trace.
constexpr uint32_t kTraceProcess = 1'000'000'000;
// The events in one answer. The data thread does nothing else while it makes them: some 0.2 ms.
constexpr uint64_t kTracePieceEvents = 1024;

std::string StateText(const pipeline::AgentCore& member) {
  switch (member.views().phase()) {
    case pipeline::Phase::kForming: return "joining";
    case pipeline::Phase::kFailed: return "failed: " + member.views().failed_text();
    default: return pipeline::PhaseName(member.views().phase());
  }
}

v1::GetTraceResponse::Phase ToPhase(TracePhase phase) {
  switch (phase) {
    case TracePhase::kRanks: return v1::GetTraceResponse::PHASE_COMPUTE;
    case TracePhase::kQueue: return v1::GetTraceResponse::PHASE_QUEUE;
    case TracePhase::kLocalReduce: return v1::GetTraceResponse::PHASE_LOCAL_REDUCE;
    case TracePhase::kPush: return v1::GetTraceResponse::PHASE_PUSH;
    case TracePhase::kSum: return v1::GetTraceResponse::PHASE_SUM;
    case TracePhase::kPull: return v1::GetTraceResponse::PHASE_PULL;
    case TracePhase::kUnknown: break;
  }
  return v1::GetTraceResponse::PHASE_UNSPECIFIED;
}

v1::OpenRound MakeOpenRound(const pipeline::AgentCore& member, const pipeline::AgentTensor& tensor,
                            int64_t now_ns) {
  v1::OpenRound round;
  round.set_tensor(tensor.spec.name);
  round.set_round(tensor.active_round().value());
  *round.mutable_waited() = rpc::DurationFromNs(now_ns - tensor.first_push_ns);
  const auto count = [&tensor](auto... states) {
    return static_cast<uint32_t>(
        std::count_if(tensor.slice_states.begin(), tensor.slice_states.end(),
                      [&](SliceState state) { return ((state == states) || ...); }));
  };
  round.set_slice_count(static_cast<uint32_t>(tensor.slices.size()));
  round.set_slices_sent(count(SliceState::kSent, SliceState::kDecoding, SliceState::kDone));
  round.set_slices_received(count(SliceState::kDecoding, SliceState::kDone));
  if (tensor.WaitsForPushes()) {
    round.set_waits_for(v1::WAITS_FOR_LOCAL_RANKS);
    for (const LocalRank rank : tensor.MissingRanks()) round.add_local_ranks(rank.value());
  } else if (tensor.awaits_decision() || member.views().phase() == pipeline::Phase::kFencing ||
             tensor.state != pipeline::TensorState::kOpen) {
    round.set_waits_for(v1::WAITS_FOR_VIEW);
  } else if (count(SliceState::kQueued, SliceState::kReducing, SliceState::kReduced) > 0) {
    round.set_waits_for(v1::WAITS_FOR_CREDIT);
  } else if (const std::vector<uint32_t> nodes = tensor.MissingNodes(); !nodes.empty()) {
    round.set_waits_for(v1::WAITS_FOR_NODES);
    for (const uint32_t node : nodes) round.add_node_ranks(node);
  } else {
    round.set_waits_for(v1::WAITS_FOR_RESULT);
  }
  return round;
}

// Returns 0, or errno.
int WriteFile(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return errno;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = written ? 0 : errno;
  return std::fclose(file) != 0 && written ? errno : error;
}

}  // namespace

v1::GetStatusResponse Agent::MakeStatus(const v1::GetStatusRequest& request) const {
  const pipeline::AgentCore& member = driver_->core();
  v1::GetStatusResponse status;
  *status.mutable_version() = rpc::ToProto(rpc::Version{});
  *status.mutable_started_at() = rpc::TimestampFromUnixNs(started_unix_ns_);
  status.set_job_name(config_.job);
  status.set_job_id(driver_->job().value());
  *status.mutable_id() = rpc::ToShown(member.config().self);
  status.set_host_id(host_id_);
  if (member.views().newest() != nullptr) {
    *status.mutable_view() = rpc::ToShown(*member.views().newest());
  }
  status.set_state(StateText(member));
  status.set_scheduler_reachable(driver_->scheduler().answers() && !driver_->link().IsAlone());
  status.set_scheduler_text(driver_->link().IsAlone() ? "none: this node is the whole job"
                                                      : driver_->scheduler().text());

  for (uint32_t i = 0; i < driver_->desk().ranks().size(); ++i) {
    const RankDesk::Rank& rank = driver_->desk().ranks()[i];
    v1::RankStatus* out = status.add_ranks();
    out->set_rank(member.views().GlobalRank(LocalRank{i}).value());
    out->set_local_rank(i);
    out->set_pid(rank.pid);
    out->set_uid(rank.uid);
    out->set_attached(rank.attached);
    out->set_ended(rank.ended);
    out->set_arena_bytes(driver_->memory().ContributionBytes(LocalRank{i}));
  }

  std::vector<const pipeline::AgentTensor*> open;
  for (const auto& tensor : member.tensors()) {
    if (tensor->pushed_count > 0 || tensor->finish()) open.push_back(tensor.get());
    if (!request.with_tensors()) continue;
    v1::TensorStatus* out = status.add_tensors();
    out->set_name(tensor->spec.name);
    out->set_dtype(std::string(DTypeName(tensor->spec.collective.dtype)));
    out->set_op(Words(tensor->spec.collective));
    out->set_element_count(tensor->spec.collective.element_count);
    out->set_round_held(tensor->held.round.value());
    out->set_round_pushed(
        (tensor->contributed() ? tensor->open_round() : tensor->held.round).value());
    out->set_poisoned(tensor->failed_text);
  }
  status.set_tensor_count(static_cast<uint32_t>(member.tensors().size()));
  status.set_open_round_count(static_cast<uint32_t>(open.size()));
  std::stable_sort(open.begin(), open.end(), [](const auto* a, const auto* b) {
    return a->first_push_ns < b->first_push_ns;
  });
  const uint32_t open_max =
      request.open_rounds_max() == 0 ? kOpenRoundsMax : request.open_rounds_max();
  if (open.size() > open_max) open.resize(open_max);
  for (const pipeline::AgentTensor* tensor : open) {
    *status.add_open_rounds() = MakeOpenRound(member, *tensor, NowNs());
  }

  for (const auto& [index, owner] : member.owners()) {
    v1::AggregatorConnection* out = status.add_aggregators();
    out->set_name(member.views().newest()->aggregators[index.value()].name);
    out->set_connected(owner.state == pipeline::OwnerState::kReady);
    out->set_credit_bytes(owner.credit_bytes);
    out->set_bytes_in_flight(member.queue().InFlightBytes(index));
    const AgentDataPlane::Traffic traffic = driver_->link().TrafficOf(owner.connection);
    out->set_transport(traffic.transport);
    out->set_bytes_sent(traffic.bytes_sent);
    out->set_bytes_received(traffic.bytes_received);
  }

  const pipeline::AgentCoreCounters& counters = member.counters();
  status.set_rounds_done(counters.rounds_completed);
  status.set_bytes_pushed(driver_->desk().bytes_pushed());
  const JobLink::Totals totals = driver_->link().totals();
  status.set_bytes_sent(totals.bytes_sent);
  status.set_bytes_received(totals.bytes_received + counters.result_bytes_written);
  status.set_bytes_reduced_locally(driver_->bytes().bytes_reduced());
  status.set_memory_bytes(driver_->memory().bytes());
  status.set_tracing(driver_->timeline().recording());
  AddCounters(status);
  status.set_pid(static_cast<uint64_t>(getpid()));
  return status;
}

void Agent::AddCounters(v1::GetStatusResponse& status) const {
  const pipeline::AgentCore& member = driver_->core();
  const pipeline::AgentCoreCounters& counters = member.counters();
  auto& named = *status.mutable_counters();
  named["contributions_sent"] = counters.contributions_sent;
  named["contribution_bytes_sent"] = counters.contribution_bytes_sent;
  named["results_taken"] = counters.results_taken;
  named["result_bytes_taken"] = counters.result_bytes_taken;
  named["results_ignored"] = counters.results_ignored;
  named["frames_ignored"] = counters.frames_ignored;
  named["rounds_aborted"] = counters.rounds_aborted;
  named["redos"] = counters.redos;
  named["finishes"] = counters.finishes;
  named["link_bytes_per_s"] = member.queue().LinkBytesPerMs() * 1000;
  named["round_trip_us"] = static_cast<uint64_t>(member.queue().RoundTripNs() / 1000);
  named["send_window_bytes"] = member.queue().WindowBytes();
  named["bad_frames"] = driver_->link().totals().bad_frames;
  for (size_t i = 1; i < counters.refused.size(); ++i) {
    const auto reason = static_cast<wire::RefusedReason>(i);
    named[std::string("refused{reason=") + wire::RefusedReasonName(reason) + "}"] =
        counters.refused[i];
  }
  const shm::RankServerCounters ranks = rank_server_->counters();
  named["ranks_accepted"] = ranks.ranks_accepted;
  named["ranks_refused"] = ranks.ranks_refused;
  named["ranks_gone_unclean"] = ranks.ranks_gone_unclean;
  named["rank_protocol_errors"] = ranks.protocol_errors;
  named["pushes"] = ranks.pushes;
  named["completions"] = ranks.completions;
  named["wakes_sent"] = ranks.wakes_sent;
  named["doorbells_received"] = ranks.doorbells_received;
  for (const telemetry::CounterValue& counter : counters_.Snapshot())
    named[counter.name] = counter.value;
  if (gpus_ == nullptr) return;
  const GpuStageCounters& gpus = gpus_->stage().counters();
  named["gpu_pieces_by_kernel"] = gpus.pieces_by_kernel;
  named["gpu_pieces_by_collective"] = gpus.pieces_by_collective;
  named["gpu_pieces_by_groups"] = gpus.pieces_by_groups;
  named["gpu_pieces_by_host"] = gpus.pieces_by_host;
  named["gpu_pieces_direct"] = gpus.pieces_direct;
  named["gpu_pieces_delivered"] = gpus.pieces_delivered;
  named["gpu_bytes_staged"] = gpus.bytes_staged;
  named["gpu_collectives_failed"] = gpus.collectives_failed;
  named["gpu_reopened"] = gpus.gpus_reopened;
}

absl::StatusOr<v1::SetTraceResponse> Agent::SetTrace(const v1::SetTraceRequest& request) {
  const uint64_t bytes_max = config_.trace_bytes_max;
  const uint64_t bytes = request.buffer_bytes() == 0 ? bytes_max : request.buffer_bytes();
  if (request.enabled() && bytes_max == 0) {
    return absl::FailedPreconditionError(
        "the agent records no timeline: its trace_bytes_max is 0; raise that option");
  }
  if (request.enabled() && bytes > bytes_max) {
    return absl::InvalidArgumentError(
        "a timeline of buffer_bytes=" + std::to_string(bytes) +
        " is more than the agent's trace_bytes_max=" + std::to_string(bytes_max) +
        "; ask for less, or raise that option");
  }
  driver_->timeline().Record(request.enabled(), std::min(bytes, bytes_max) / sizeof(TimelineEvent));
  return v1::SetTraceResponse();
}

rpc::TracePiece Agent::MakeTrace(rpc::TraceRange range) const {
  const Timeline& timeline = driver_->timeline();
  range.end = std::min(range.end, timeline.end());
  const uint64_t begin = std::max(range.next, timeline.first());
  range.missed += begin - range.next;
  range.next = std::max(begin, std::min(range.end, begin + kTracePieceEvents));
  v1::GetTraceResponse trace;
  for (uint64_t number = begin; number < range.next; ++number) {
    const TimelineEvent& event = timeline.event(number);
    v1::GetTraceResponse::Event* out = trace.add_events();
    out->set_phase(ToPhase(event.phase));
    out->set_tensor(*event.tensor);
    out->set_round(event.round.value());
    out->set_begin_ns(event.begin_ns);
    out->set_end_ns(event.end_ns);
    out->set_bytes(event.bytes);
    out->set_local_rank(-1);
  }
  trace.set_dropped(range.missed);
  trace.set_monotonic_ns(NowNs());
  *trace.mutable_wall_time() = rpc::TimestampFromUnixNs(runtime::UnixNowNs());
  return {std::move(trace), range};
}

void Agent::WriteTrace() const {
  if (config_.trace_path.empty()) return;
  const std::string json = driver_->timeline().Json(
      "agent of node " + std::to_string(config_.node_rank) + " (" + node_name_ + ")",
      kTraceProcess + config_.node_rank);
  const std::string partial = PartialPath(config_.trace_path);
  int error = WriteFile(partial, json);
  if (error == 0 && std::rename(partial.c_str(), config_.trace_path.c_str()) != 0) error = errno;
  if (error == 0) return;
  telemetry::Log(telemetry::LogLevel::kError, "the trace could not be written to trace_path ",
                 config_.trace_path, ": ", std::generic_category().message(error));
}

}  // namespace talweg::agent
