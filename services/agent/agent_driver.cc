// SPDX-License-Identifier: Apache-2.0
#include "services/agent/agent_driver.h"

#include <algorithm>
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
      timeline_(options_.trace_rounds),
      waits_(options_.job_name, options_.self.node, options_.stall_notice_ns),
      life_({.alone = options_.alone, .drain_ns = options_.drain_ns}),
      runner_(clock_, [this](pipeline::Effects& effects) { Perform(effects); }),
      memory_(std::make_unique<TensorMemory>(
          TensorMemory::Options{.rank_count = options_.rank_count,
                                .one_view = options_.one_view,
                                .tells_arrivals = options_.tells_arrivals},
          parts.ranks, parts.registrar)),
      orders_(parts.memory_source),
      bytes_({.clock = clock_,
              .combiner = parts.combiner,
              .codec = parts.codec,
              .node = options_.self.node,
              .memory = memory_.get(),
              .timeline = &timeline_,
              .runner = &runner_}),
      rank_words_({.clock = clock_, .runner = &runner_, .life = &life_, .timeline = &timeline_}),
      desk_(std::make_unique<RankDesk>(options_.rank_count, options_.job_name, parts.ranks,
                                       memory_.get(), &orders_, &rank_words_)) {
  rank_words_.SetDesk(desk_.get());
  desk_->SetMembershipChanges(options_.membership_changes);
  desk_->SetEncodingRule(options_.encoding_rule);
  NewMember();
}

void AgentDriver::NewMember() {
  runner_.Begin({.self = options_.self,
                 .job_name = options_.job_name,
                 .node_name = options_.node_name,
                 .host_id = options_.host_id,
                 .rank_count = options_.rank_count,
                 .credit_bytes_max = options_.credit_bytes_max,
                 .reduce_bytes_max = memory_->ranks_sum() ? std::numeric_limits<uint64_t>::max()
                                                          : options_.reduce_bytes_max,
                 .unreachable_ns = options_.unreachable_ns,
                 .stall_ns = options_.stall_ns,
                 .one_view = options_.one_view});
}

void AgentDriver::CloseDesk() {
  desk_.reset();
  if (memory_ != nullptr) memory_->DropNicRegions();
  SetDeviceRounds(nullptr);
}

int AgentDriver::Poll() {
  int work = link_->Poll(options_.events_per_poll);
  work += rank_server_->PollRings(*desk_);
  if (devices_ != nullptr) work += devices_->Poll(NowNs());
  work += bytes_.WorkSome(options_.reduce_bytes_per_poll);
  if (NowNs() >= core().NextTickNs()) {
    runner_.Deliver([this](pipeline::Effects& out) { runner_.core().OnTick(NowNs(), out); });
  }
  work += runner_.Flush();
  Live();
  return work;
}

bool AgentDriver::PrepareToSleep(int64_t* deadline_ns) {
  if (bytes_.AnyQueued() || runner_.dirty()) return false;
  using Until = shm::RankServer::Until;
  // A timeline records when each push came.
  bool may_sleep = rank_server_->PrepareToSleep(
      memory_->ranks_sum() && !timeline_.records() ? Until::kAwaited : Until::kPushed);
  may_sleep &= link_->PrepareToSleep();
  *deadline_ns = core().NextTickNs();
  if (const auto life_ns = life_.NextNs(Look())) *deadline_ns = std::min(*deadline_ns, *life_ns);
  if (devices_ != nullptr) {
    const std::optional<int64_t> devices_ns = devices_->PrepareToSleep();
    if (devices_ns && *devices_ns <= NowNs()) return false;
    if (devices_ns) *deadline_ns = std::min(*deadline_ns, *devices_ns);
  }
  return may_sleep;
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
          } else if constexpr (std::is_same_v<E, pipeline::CopyInline> ||
                               std::is_same_v<E, pipeline::CopyOwn> ||
                               std::is_same_v<E, pipeline::DecodeSlice> ||
                               std::is_same_v<E, pipeline::ReduceSlice>) {
            bytes_.Do(e);
          } else if constexpr (std::is_same_v<E, pipeline::LogWaiting>) {
            waits_.OnWaiting(e, core(), *memory_, NowNs());
          } else if constexpr (std::is_same_v<E, pipeline::SliceArrived>) {
            // A GPU's sum is in host memory only when the GPU has delivered the round.
            if (!OnDevices(e.result.tensor, e.result.round)) desk_->Do(e);
          } else if constexpr (std::is_same_v<E, pipeline::CompleteRound>) {
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
    effect.text = scheduler_.WithSilence(effect.text, NowNs());
    const std::string failed = "job '" + options_.job_name + "' has failed: ";
    // The scheduler's text begins with these words.
    telemetry::Log(telemetry::LogLevel::kError, effect.text.starts_with(failed) ? "" : failed,
                   effect.text);
    end_ = absl::AbortedError(effect.text);
  }
  life_.OnFailed(core().views().failed_text(), NowNs());
  desk_->Do(effect);
  bytes_.Abandon();
  if (devices_ != nullptr) devices_->Abandon();
}

void AgentDriver::Do(pipeline::AllocateTensor& effect) {
  TensorMemory::Wishes wishes = {.on_device = effect.wishes.on_device,
                                 .in_place = effect.wishes.in_place};
  if (effect.wishes.one_place) wishes.one_place = desk_->OnlyRank();
  if (effect.wishes.on_device && devices_ != nullptr) wishes.nic = devices_->MakeDirect(effect);
  MemoryOrder order;
  const absl::Status planned =
      memory_->Allocate(effect.tensor, effect.spec, std::move(wishes), &order);
  if (!planned.ok()) return OnAllocated(effect.tensor, planned);
  orders_.Place(std::move(order), [this, tensor = effect.tensor](const absl::Status& filled) {
    OnAllocated(tensor, filled.ok() ? memory_->OnAllocated(tensor) : filled);
  });
}

void AgentDriver::OnAllocated(pipeline::TensorIndex tensor, const absl::Status& status) {
  if (!status.ok()) {
    memory_->Drop(tensor);
    if (devices_ != nullptr) devices_->DropDirect(tensor);
  }
  const std::string text = status.ok() ? "" : std::string(status.message());
  runner_.Deliver([this, tensor, text](pipeline::Effects& out) {
    runner_.core().OnTensorAllocated(tensor, text, out);
  });
}

void AgentDriver::FinishRound(const pipeline::CompleteRound& effect) {
  desk_->Do(effect);
  if (!timeline_.Wants(effect.round)) return;
  const pipeline::TensorSpec& spec = memory_->spec(effect.tensor);
  timeline_.OnVisible(effect.tensor, spec.name, effect.round, spec.bytes(), NowNs());
}

void AgentDriver::OnPeerConnected(ConnectionId connection) {
  runner_.Deliver([this, connection](pipeline::Effects& out) {
    runner_.core().OnConnected(connection, NowNs(), out);
  });
}

void AgentDriver::OnPeerDisconnected(ConnectionId connection, const std::string& reason) {
  runner_.Deliver([this, connection, reason](pipeline::Effects& out) {
    for (const auto& [index, owner] : core().owners()) {
      if (owner.connection == connection) link_->ReportUnreachable(owner.incarnation, reason);
    }
    runner_.core().OnDisconnected(connection, reason, NowNs(), out);
  });
}

void AgentDriver::OnPeerFrame(ConnectionId connection, const wire::Frame& frame) {
  if (const auto* results = std::get_if<std::vector<wire::Result>>(&frame.entries)) {
    const int64_t now_ns = NowNs();
    for (const wire::Result& result : *results) {
      if (!timeline_.Wants(result.round)) continue;
      const pipeline::AgentTensor* tensor = core().FindTensor(result.key);
      if (tensor != nullptr) timeline_.OnResult(tensor->index, result.round, now_ns);
    }
  }
  // `frame` is borrowed for this call. The transport delivers frames while no event is being
  // performed, so Deliver performs all effects before it returns.
  TALWEG_CHECK(!runner_.performing());
  bytes_.SetFrame(&frame);
  runner_.Deliver([this, connection, &frame](pipeline::Effects& out) {
    runner_.core().OnFrame(connection, frame, NowNs(), out);
  });
  bytes_.SetFrame(nullptr);
}

}  // namespace talweg::agent
