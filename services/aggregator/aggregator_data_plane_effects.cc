// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/telemetry/log.h"
#include "services/aggregator/aggregator_data_plane.h"

// What the cores ask for, done.
namespace talweg::aggregator {
namespace {

constexpr uint64_t kHeldPieceBytes = 64 * kKiB;

}  // namespace

void AggregatorDataPlane::Perform(ServedJob& job) {
  // Events that effects cause (memory was allocated) append to job.effects.
  while (!job.effects.empty()) {
    const aggregation::AggregatorCore::Effects batch = std::exchange(job.effects, {});
    for (const aggregation::Effect& effect : batch) {
      std::visit([this, &job](const auto& known) { Do(job, known); }, effect);
    }
  }
}

void AggregatorDataPlane::Do(ServedJob&, const aggregation::Send& effect) {
  const auto found = connections_.find(effect.connection);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  Outbox& outbox = *connection.outbox;
  // After these nothing is in flight.
  if (std::holds_alternative<wire::Welcome>(effect.entry) ||
      std::holds_alternative<wire::FenceAck>(effect.entry)) {
    connection.held_credit_bytes = 0;
    connection.more_wait = false;
    UpdateWants(connection);
  }
  std::visit(
      [this, &connection, &outbox, &effect](const auto& entry) {
        using Entry = std::decay_t<decltype(entry)>;
        using wire::FrameType;
        if constexpr (std::is_same_v<Entry, wire::Welcome>) {
          outbox.AddWelcome(effect.epoch, entry);
        } else if constexpr (std::is_same_v<Entry, wire::FenceAck>) {
          while (const auto next = connection.results.TakeAnyway()) {
            ++totals_.results_hurried;
            PostResult(connection, *next);
          }
          outbox.AddFenceAck(effect.epoch);
        } else if constexpr (std::is_same_v<Entry, wire::Declared>) {
          outbox.Add(FrameType::kDeclared, effect.epoch, entry);
        } else if constexpr (std::is_same_v<Entry, wire::Decision>) {
          outbox.Add(FrameType::kDecision, effect.epoch, entry);
        } else if constexpr (std::is_same_v<Entry, wire::Refused>) {
          outbox.Add(FrameType::kRefused, effect.epoch, entry);
        } else if constexpr (std::is_same_v<Entry, wire::Failed>) {
          outbox.Add(FrameType::kFailed, effect.epoch, entry);
        } else {
          static_assert(std::is_same_v<Entry, wire::Waiting>);
          outbox.Add(FrameType::kWaiting, effect.epoch, entry);
        }
      },
      effect.entry);
  MarkUnflushed(effect.connection, connection);
}

void AggregatorDataPlane::Do(ServedJob& job, const aggregation::ReturnCredit& effect) {
  const auto found = connections_.find(effect.connection);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.credit_meter.OnReceived(effect.bytes, clock_->NowNs());
  if (!SharesLink(connection)) return GiveCredit(effect.connection, connection, effect.bytes);
  if (effect.bytes == 0) return;
  if (connection.held_credit_bytes == 0) job.held.push_back(effect.connection);
  connection.held_credit_bytes += effect.bytes;
  if (job.is_held) totals_.credit_held_bytes += effect.bytes;
  has_held_credit_ = true;
}

void AggregatorDataPlane::GiveCredit(ConnectionId id, Connection& connection, uint64_t bytes) {
  connection.outbox->AddCredit(bytes);
  MarkUnflushed(id, connection);
}

void AggregatorDataPlane::UpdateWants(Connection& connection) {
  const bool wants = connection.over_link && (connection.more_wait || !connection.writes.empty());
  if (connection.job == nullptr || wants == connection.wants_link) return;
  connection.wants_link = wants;
  ServedJob& job = *connection.job;
  job.wanting_count += wants ? 1 : -1;
  link_share_.SetWants(job.core.config().job, job.wanting_count > 0, clock_->NowNs());
}

void AggregatorDataPlane::GiveHeldCredit() {
  if (!has_held_credit_) return;
  has_held_credit_ = false;
  for (auto& [id, job] : jobs_) {
    if (!job->held.empty()) GiveHeldCredit(*job);
    job->is_held = !job->held.empty();
    if (job->is_held) has_held_credit_ = true;
  }
}

void AggregatorDataPlane::GiveHeldCredit(ServedJob& job) {
  const JobId id = job.core.config().job;
  uint64_t room_bytes = link_share_.RoomBytes(id, clock_->NowNs());
  while (!job.held.empty()) {
    const ConnectionId next = job.held.front();
    const auto found = connections_.find(next);
    if (found == connections_.end() || found->second.held_credit_bytes == 0) {
      job.held.pop_front();
      continue;
    }
    Connection& connection = found->second;
    // Members take turns, as a sum needs all of them.
    const uint64_t bytes = std::min({connection.held_credit_bytes, room_bytes, kHeldPieceBytes});
    if (bytes == 0) return;
    link_share_.OnGiven(id, bytes);
    room_bytes -= bytes;
    connection.held_credit_bytes -= bytes;
    GiveCredit(next, connection, bytes);
    job.held.pop_front();
    if (connection.held_credit_bytes > 0) job.held.push_back(next);
  }
}

SlotPool& AggregatorDataPlane::SlotPoolOf(ServedJob& job, const view::MemberIdentity& member) {
  const transport::PeerIdentity writer = {.job = job.core.config().job,
                                          .epoch = job.core.view().epoch,
                                          .node = member.node,
                                          .incarnation = member.incarnation};
  return job.slot_pools.try_emplace(member, transport_, machine_.memory, options_.slots, writer)
      .first->second;
}

void AggregatorDataPlane::Do(ServedJob& job, const aggregation::AllocateMemory& effect) {
  SlotPool& pool = effect.member ? SlotPoolOf(job, *effect.member) : job.result_pool;
  absl::StatusOr<SlotMemory> memory = pool.Allocate(effect.bytes);
  if (!memory.ok()) {
    telemetry::Log(telemetry::LogLevel::kError, "no memory for ", effect.bytes, " bytes of job '",
                   job.core.config().name, "': ", std::string(memory.status().message()));
    job.core.OnAllocationRefused(effect.id, std::string(memory.status().message()), job.effects);
    return;
  }
  const wire::RemoteRef ref = memory->ref();
  job.memory.emplace(effect.id.value(), *std::move(memory));
  job.core.OnAllocated(effect.id, ref, job.effects);
}

void AggregatorDataPlane::Do(ServedJob& job, const aggregation::ReleaseMemory& effect) {
  job.memory.erase(effect.id.value());  // Sums and writes under way hold it on.
}

SlotMemory AggregatorDataPlane::MemoryOf(const ServedJob& job, aggregation::AllocationId id) const {
  if (id == aggregation::AllocationId{0}) return {};
  const auto found = job.memory.find(id.value());
  TALWEG_CHECK(found != job.memory.end());
  return found->second;
}

void AggregatorDataPlane::Do(ServedJob& job, const aggregation::StoreInline& effect) {
  TALWEG_CHECK(contributions_ != nullptr && effect.entry_index < contributions_->size());
  const std::span<const std::byte> bytes = (*contributions_)[effect.entry_index].bytes;
  TALWEG_CHECK(bytes.size() == effect.length_bytes);
  const SlotMemory slots = MemoryOf(job, effect.slots);
  std::memcpy(slots.bytes().subspan(effect.offset_bytes, bytes.size()).data(), bytes.data(),
              bytes.size());
  contributor_->traffic.received_bytes -= bytes.size();
  totals_.received_bytes -= bytes.size();
}

void AggregatorDataPlane::AddSum(ServedJob& job, PendingSum sum) {
  if (job.sums.empty()) fair_share_.SetWaits(job.core.config().job, true);
  job.sums.push_back(std::move(sum));
  ++sums_pending_;
}

void AggregatorDataPlane::Do(ServedJob& job, const aggregation::Sum& effect) {
  PendingSum sum = {.id = effect.id,
                    .dtype = effect.dtype,
                    .op = effect.op,
                    .offset_bytes = effect.offset_bytes,
                    .length_bytes = effect.length_bytes,
                    .rank_count_total = effect.rank_count_total,
                    .result = MemoryOf(job, effect.result)};
  sum.inputs.reserve(effect.inputs.size());
  sum.rank_counts.reserve(effect.inputs.size());
  for (const aggregation::SumInput& input : effect.inputs) {
    sum.inputs.push_back(MemoryOf(job, input.slots));
    sum.rank_counts.push_back(static_cast<float>(input.rank_count));
  }
  AddSum(job, std::move(sum));
}

void AggregatorDataPlane::Do(ServedJob& job, const aggregation::CopyResult& effect) {
  PendingSum copy = {.id = effect.id,
                     .op = Op::kCopy,
                     .offset_bytes = effect.offset_bytes,
                     .length_bytes = effect.length_bytes,
                     .result = MemoryOf(job, effect.result)};
  copy.inputs.push_back(MemoryOf(job, effect.source));
  AddSum(job, std::move(copy));
}

void AggregatorDataPlane::Do(ServedJob& job, const aggregation::SendResult& effect) {
  const auto found = connections_.find(effect.connection);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  fair_share_.Charge(job.core.config().job, effect.length_bytes);
  wire::Result entry = effect.entry;
  const SlotMemory result = MemoryOf(job, effect.result);
  if (entry.form == wire::Form::kWritten) {
    connection.writes.emplace(effect.write.value(), ResultWrite{result, effect.length_bytes});
    if (SharesLink(connection)) UpdateWants(connection);
    if (connection.results.Add(effect)) return PostResult(connection, effect);
    ++totals_.results_queued;
    return;
  }
  if (entry.form == wire::Form::kDisagreement) {
    entry.bytes = std::as_bytes(std::span(effect.text));
  } else if (entry.form == wire::Form::kInline && effect.length_bytes > 0) {
    entry.bytes = result.bytes().subspan(effect.offset_bytes, effect.length_bytes);
  }
  connection.outbox->Add(wire::FrameType::kResult, effect.epoch, entry);
  MarkUnflushed(effect.connection, connection);
}

void AggregatorDataPlane::PostResult(Connection& connection,
                                     const aggregation::SendResult& effect) {
  ResultWrite& write = connection.writes.at(effect.write.value());
  write.has_left = true;
  connection.traffic.sent_bytes += effect.length_bytes;
  totals_.sent_bytes += effect.length_bytes;
  // The frame that announces it is posted later, so it arrives after the bytes.
  transport_->PostWrite(effect.connection,
                        write.source.Slice(effect.offset_bytes, effect.length_bytes), effect.target,
                        effect.write.value());
  connection.outbox->Add(wire::FrameType::kResult, effect.epoch, effect.entry);
  MarkUnflushed(effect.connection, connection);
}

void AggregatorDataPlane::Do(ServedJob&, const aggregation::CloseConnection& effect) {
  CloseConnection(effect.connection, effect.reason);
}

int AggregatorDataPlane::SumSome() {
  if (sums_pending_ == 0) return 0;
  int done = 0;
  uint64_t read_bytes = 0;
  while (read_bytes < options_.sum_bytes_per_poll) {
    const std::optional<JobId> next = fair_share_.Next();
    if (!next) break;
    ServedJob& job = *jobs_.at(*next);
    const uint64_t bytes = job.sums.front().length_bytes * job.sums.front().inputs.size();
    fair_share_.Serve(*next, bytes);  // Before what follows from it is charged.
    SumOne(job);
    if (job.sums.empty()) fair_share_.SetWaits(*next, false);
    read_bytes += bytes;
    ++done;
  }
  for (auto& job : leaving_) {  // Their results are not wanted any more.
    sums_pending_ -= job->sums.size();
    job->sums.clear();
  }
  return done;
}

void AggregatorDataPlane::SumOne(ServedJob& job) {
  const PendingSum sum = std::move(job.sums.front());
  job.sums.pop_front();
  --sums_pending_;
  const bool stale = sum.id.epoch != job.core.view().epoch;
  if (!stale && sum.length_bytes > 0) {
    SliceSum slice{.dtype = sum.dtype,
                   .op = sum.op,
                   .rank_counts = sum.rank_counts,
                   .rank_count_total = sum.rank_count_total,
                   .length_bytes = sum.length_bytes};
    slice.output = sum.result.bytes().subspan(sum.offset_bytes, sum.length_bytes).data();
    slice.inputs.reserve(sum.inputs.size());
    for (const SlotMemory& input : sum.inputs) {
      slice.inputs.push_back(input.bytes().subspan(sum.offset_bytes, sum.length_bytes).data());
    }
    if (sum.op == Op::kCopy) {
      std::memcpy(slice.output, slice.inputs.front(), sum.length_bytes);
    } else {
      machine_.summer->Sum(slice);
    }
  }
  job.core.OnSummed(sum.id, job.effects);
  Perform(job);
}

}  // namespace talweg::aggregator
