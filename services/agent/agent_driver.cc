// SPDX-License-Identifier: Apache-2.0
#include "services/agent/agent_driver.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>

#include "libs/base/check.h"
#include "libs/telemetry/log.h"

namespace talweg::agent {

AgentDriver::AgentDriver(AgentDriverOptions options, const Parts& parts)
    : options_(std::move(options)),
      clock_(parts.clock),
      rank_server_(parts.ranks),
      combiner_(parts.combiner),
      timeline_(options_.trace_rounds),
      memory_(std::make_unique<TensorMemory>(
          TensorMemory::Options{.rank_count = options_.rank_count,
                                .one_view = options_.one_view,
                                .tells_arrivals = options_.tells_arrivals},
          parts.ranks, parts.transport)),
      desk_(std::make_unique<RankDesk>(options_.rank_count, options_.job_name, parts.ranks,
                                       memory_.get(), static_cast<RankEvents*>(this))),
      life_({.alone = options_.alone, .drain_ns = options_.drain_ns}) {
  desk_->SetMembershipChanges(options_.membership_changes);
  NewMember();
}

void AgentDriver::NewMember() {
  core_ = std::make_unique<pipeline::AgentCore>(pipeline::AgentCoreConfig{
      .self = options_.self,
      .job_name = options_.job_name,
      .node_name = options_.node_name,
      .host_id = options_.host_id,
      .rank_count = options_.rank_count,
      .credit_bytes_max = options_.credit_bytes_max,
      .reduce_bytes_max =
          memory_->ranks_sum() ? std::numeric_limits<uint64_t>::max() : options_.reduce_bytes_max,
      .unreachable_ns = options_.unreachable_ns,
      .stall_ns = options_.stall_ns,
      .one_view = options_.one_view});
}

void AgentDriver::CloseDesk() {
  desk_.reset();
  if (memory_ != nullptr) memory_->DropNicRegions();
  devices_ = nullptr;
}

int AgentDriver::Poll() {
  int work = link_->Poll(options_.events_per_poll);
  work += rank_server_->PollRings(*desk_);
  if (devices_ != nullptr) work += devices_->Poll(NowNs());
  work += ReduceSome();
  if (NowNs() >= core_->NextTickNs()) {
    Deliver([this](pipeline::Effects& out) { core_->OnTick(NowNs(), out); });
  }
  if (std::exchange(dirty_, false)) {
    Deliver([this](pipeline::Effects& out) { core_->Flush(NowNs(), out); });
    dirty_ = false;
    ++work;
  }
  Live();
  return work;
}

bool AgentDriver::PrepareToSleep(int64_t* deadline_ns) {
  if (!reduces_.empty() || dirty_) return false;
  using Until = shm::RankServer::Until;
  // A timeline has each push when it was.
  bool may_sleep = rank_server_->PrepareToSleep(
      memory_->ranks_sum() && !timeline_.records() ? Until::kAwaited : Until::kPushed);
  may_sleep &= link_->PrepareToSleep();
  *deadline_ns = core_->NextTickNs();
  if (const auto life_ns = life_.NextNs(Look())) *deadline_ns = std::min(*deadline_ns, *life_ns);
  if (devices_ != nullptr) {
    const std::optional<int64_t> devices_ns = devices_->PrepareToSleep();
    if (devices_ns && *devices_ns <= NowNs()) return false;
    if (devices_ns) *deadline_ns = std::min(*deadline_ns, *devices_ns);
  }
  return may_sleep;
}

void AgentDriver::Deliver(std::function<void(pipeline::Effects&)> event) {
  events_.push_back(std::move(event));
  if (performing_) return;  // After what is being performed.
  performing_ = true;
  while (!events_.empty()) {
    const auto next = std::move(events_.front());
    events_.pop_front();
    pipeline::Effects effects;
    next(effects);
    dirty_ = true;
    Perform(effects);
  }
  performing_ = false;
}

void AgentDriver::Perform(pipeline::Effects& effects) {
  for (pipeline::Effect& effect : effects) {
    if (options_.watch) options_.watch(effect);
    std::visit(
        [this](auto& e) {
          using E = std::decay_t<decltype(e)>;
          if constexpr (std::is_same_v<E, pipeline::Connect> ||
                        std::is_same_v<E, pipeline::Close> || std::is_same_v<E, pipeline::Send> ||
                        std::is_same_v<E, pipeline::WriteSlice>) {
            link_->Do(e);
          } else if constexpr (std::is_same_v<E, pipeline::DeclareReply> ||
                               std::is_same_v<E, pipeline::FailRank> ||
                               std::is_same_v<E, pipeline::StopRanks>) {
            desk_->Do(e);
          } else if constexpr (std::is_same_v<E, pipeline::SliceArrived>) {
            // What GPUs have summed is in host memory when they deliver the round, not before.
            if (!OnDevices(e.result.tensor, e.result.round)) desk_->Do(e);
          } else if constexpr (std::is_same_v<E, pipeline::CompleteRound>) {
            missing_nodes_.erase({e.tensor, e.round});
            if (OnDevices(e.tensor, e.round)) {
              devices_->Deliver(e);  // FinishRound follows.
            } else {
              FinishRound(e);
            }
          } else if constexpr (std::is_same_v<E, pipeline::FailTensor>) {
            telemetry::Log(telemetry::LogLevel::kError, e.text);
          } else if constexpr (std::is_same_v<E, pipeline::Quiesced>) {
            link_->Quiesced(e.id, e.step);
          } else if constexpr (std::is_same_v<E, pipeline::ReportLost>) {
            link_->ReportLost(e);
          } else if constexpr (std::is_same_v<E, pipeline::RanksDone>) {
            life_.OnRanksDone();
          } else if constexpr (std::is_same_v<E, pipeline::Log>) {
            telemetry::Log(
                e.is_warning ? telemetry::LogLevel::kWarning : telemetry::LogLevel::kInfo, e.text);
          } else {
            Do(e);
          }
        },
        effect);
  }
}

void AgentDriver::Do(pipeline::FailJob& effect) {
  if (!life_.Leaves()) {
    if (scheduler_silent_since_ns_ != 0) effect.text += "; " + SchedulerSilenceText();
    telemetry::Log(telemetry::LogLevel::kError, "job '", options_.job_name,
                   "' has failed: ", effect.text);
    end_ = absl::AbortedError(effect.text);
  }
  life_.OnFailed(core_->views().failed_text(), NowNs());
  desk_->Do(effect);
  reduces_.clear();
  if (devices_ != nullptr) devices_->Abandon();
}

void AgentDriver::Do(pipeline::AllocateTensor& effect) {
  const std::string& name = effect.spec.name;
  const bool on_device = desk_->IsOnDevice(name);
  TensorMemory::Wishes wishes = {.on_device = on_device,
                                 .in_place = desk_->IsInPlace(name),
                                 .one_place = desk_->OnePlaceOf(name)};
  if (on_device && devices_ != nullptr) wishes.nic = devices_->MakeDirect(effect);
  const absl::Status status = memory_->Allocate(effect.tensor, effect.spec, std::move(wishes));
  if (on_device) core_->StageContributions(effect.tensor);
  if (!status.ok() && devices_ != nullptr) devices_->DropDirect(effect.tensor);
  const std::string text = status.ok() ? "" : std::string(status.message());
  Deliver([this, tensor = effect.tensor, text](pipeline::Effects& out) {
    core_->OnTensorAllocated(tensor, text, NowNs(), out);
  });
}

void AgentDriver::FinishRound(const pipeline::CompleteRound& effect) {
  desk_->Do(effect);
  if (!timeline_.Wants(effect.round)) return;
  const pipeline::TensorSpec& spec = memory_->spec(effect.tensor);
  timeline_.OnVisible(effect.tensor, spec.name, effect.round, spec.bytes(), NowNs());
}

void AgentDriver::Do(const pipeline::CopyInline& effect) {
  TALWEG_CHECK(frame_ != nullptr);
  const auto& results = std::get<std::vector<wire::Result>>(frame_->entries);
  const std::span<const std::byte> bytes = results[effect.entry].bytes;
  if (memory_->OnNic(effect.target)) {
    // If that fails the GPU is lost, and with it this member.
    devices_->StoreResult(effect.target, bytes).IgnoreError();
    return;
  }
  const std::span<std::byte> target = memory_->Writable(effect.target);
  TALWEG_CHECK(bytes.size() == target.size());
  std::memcpy(target.data(), bytes.data(), bytes.size());
}

void AgentDriver::Do(const pipeline::CopyOwn& effect) {
  pipeline::SliceBytes target = effect.source;
  target.memory = pipeline::Memory::kResult;
  const std::span<const std::byte> bytes = memory_->Readable(effect.source);
  const std::span<std::byte> to = memory_->Writable(target);
  if (to.data() != bytes.data()) std::memcpy(to.data(), bytes.data(), bytes.size());
}

void AgentDriver::Do(pipeline::ReduceSlice& effect) {
  if (OnDevices(effect.target.tensor, effect.target.round)) {
    devices_->Reduce(effect);
  } else {
    reduces_.push_back(std::move(effect));
  }
}

int AgentDriver::ReduceSome() {
  uint64_t bytes = 0;
  int count = 0;
  while (!reduces_.empty() && bytes < options_.reduce_bytes_per_poll) {
    const pipeline::ReduceSlice reduce = std::move(reduces_.front());
    reduces_.pop_front();
    ++count;
    if (!core_->ReduceWanted(reduce.ticket)) continue;
    if (!memory_->Shared(reduce.target.tensor)) bytes += reduce.target.length_bytes;
    RunReduce(reduce);
  }
  return count;
}

void AgentDriver::RunReduce(const pipeline::ReduceSlice& reduce) {
  const pipeline::SliceBytes& target = reduce.target;
  if (memory_->Shared(target.tensor)) {
    // The round is over, and what is left is done where the bytes are wanted.
    return OnReduced(reduce.ticket, 0);
  }
  const pipeline::TensorSpec& spec = memory_->spec(target.tensor);
  std::vector<const std::byte*> inputs;
  for (const LocalRank rank : reduce.inputs) {
    inputs.push_back(memory_->Contribution(target, rank).data());
    TALWEG_CHECK(inputs.back() != nullptr);  // It pushed, so it has a buffer.
  }
  const std::span<std::byte> output = memory_->Writable(target);
  const bool traced = timeline_.Wants(target.round);
  const int64_t begin_ns = traced ? NowNs() : 0;
  combiner_->Combine(spec, reduce.is_final, inputs, output);
  if (traced) timeline_.OnReduced(target.tensor, target.round, begin_ns, NowNs());
  OnReduced(reduce.ticket, target.length_bytes * inputs.size());
}

void AgentDriver::OnReduced(uint64_t ticket, uint64_t bytes) {
  bytes_reduced_ += bytes;
  Deliver([this, ticket](pipeline::Effects& out) { core_->OnReduced(ticket, NowNs(), out); });
}

const std::vector<uint32_t>* AgentDriver::MissingNodes(pipeline::TensorIndex tensor,
                                                       Round round) const {
  const auto missing = missing_nodes_.find({tensor, round});
  return missing == missing_nodes_.end() ? nullptr : &missing->second;
}

void AgentDriver::OnPeerConnected(ConnectionId connection) {
  Deliver(
      [this, connection](pipeline::Effects& out) { core_->OnConnected(connection, NowNs(), out); });
}

void AgentDriver::OnPeerDisconnected(ConnectionId connection, const std::string& reason) {
  Deliver([this, connection, reason](pipeline::Effects& out) {
    for (const auto& [index, owner] : core_->owners()) {
      if (owner.connection == connection) link_->ReportUnreachable(owner.incarnation, reason);
    }
    core_->OnDisconnected(connection, reason, NowNs(), out);
  });
}

void AgentDriver::OnPeerFrame(ConnectionId connection, const wire::Frame& frame) {
  if (const auto* results = std::get_if<std::vector<wire::Result>>(&frame.entries)) {
    const int64_t now_ns = NowNs();
    for (const wire::Result& result : *results) {
      if (!timeline_.Wants(result.round)) continue;
      const pipeline::AgentTensor* tensor = core_->FindTensor(result.key);
      if (tensor != nullptr) timeline_.OnResult(tensor->index, result.round, now_ns);
    }
  }
  // The transport delivers frames outside of everything else, so this is performed before it
  // returns: the frame is borrowed for that long.
  TALWEG_CHECK(!performing_);
  frame_ = &frame;
  Deliver([this, connection, &frame](pipeline::Effects& out) {
    core_->OnFrame(connection, frame, NowNs(), out);
  });
  frame_ = nullptr;
}

}  // namespace talweg::agent
