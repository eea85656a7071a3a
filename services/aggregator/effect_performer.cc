// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/effect_performer.h"

#include <absl/status/statusor.h>

#include <span>
#include <string>
#include <utility>
#include <variant>

#include "libs/base/check.h"
#include "libs/telemetry/log.h"

namespace talweg::aggregator {

void EffectPerformer::Perform(ServedJob& job) {
  // An effect may cause an event (memory was allocated), whose effects are appended to job.effects.
  if (std::exchange(job.is_performing, true)) return;  // The loop below goes on with them.
  while (!job.effects.empty()) {
    const aggregation::Effects batch = std::exchange(job.effects, {});
    for (const aggregation::Effect& effect : batch) {
      std::visit([this, &job](const auto& known) { Do(job, known); }, effect);
    }
  }
  job.is_performing = false;
}

void EffectPerformer::OnAllocated(ServedJob& job, const aggregation::AllocateMemory& asked,
                                  const absl::StatusOr<wire::RemoteRef>& ref) {
  if (ref.ok()) {
    job.core.OnAllocated(asked.id, *ref, job.effects);
  } else {
    telemetry::Log(telemetry::LogLevel::kError, "no memory for ", asked.bytes, " bytes of job '",
                   job.core.config().name, "': ", std::string(ref.status().message()));
    job.core.OnAllocationRefused(asked.id, std::string(ref.status().message()), job.effects);
  }
  Perform(job);
}

void EffectPerformer::PerformFrame(ServedJob& job, JobConnection& from,
                                   const std::vector<wire::Contribute>* contributions) {
  contributions_ = contributions;
  contributor_ = &from;
  Perform(job);
  contributions_ = nullptr;
  contributor_ = nullptr;
}

void EffectPerformer::Do(ServedJob&, const aggregation::Send& effect) {
  if (auto* const found = connections_->Find(effect.connection)) found->connection.Say(effect);
}

void EffectPerformer::Do(ServedJob&, const aggregation::ReturnCredit& effect) {
  auto* const found = connections_->Find(effect.connection);
  if (found != nullptr) found->connection.ReturnCredit(effect.bytes);
}

void EffectPerformer::Do(ServedJob& job, const aggregation::AllocateMemory& effect) {
  job.memory.Allocate(effect, job.core.view().epoch);
}

void EffectPerformer::Do(ServedJob& job, const aggregation::ReleaseMemory& effect) {
  job.memory.Release(effect.id);
}

void EffectPerformer::Do(ServedJob& job, const aggregation::StoreInline& effect) {
  TALWEG_CHECK(contributions_ != nullptr && effect.entry_index < contributions_->size());
  const std::span<const std::byte> bytes = (*contributions_)[effect.entry_index].bytes;
  job.memory.Store(effect, bytes);
  contributor_->UncountInline(bytes.size());
}

void EffectPerformer::Do(ServedJob& job, const aggregation::Sum& effect) {
  turns_->Add(job.id(), job.sums, PendingSumOf(effect, job.memory));
}

void EffectPerformer::Do(ServedJob& job, const aggregation::CopyResult& effect) {
  turns_->Add(job.id(), job.sums, PendingSumOf(effect, job.memory));
}

void EffectPerformer::Do(ServedJob& job, const aggregation::SendResult& effect) {
  auto* const found = connections_->Find(effect.connection);
  if (found == nullptr) return;
  turns_->Charge(job.id(), effect.travel_bytes);
  found->connection.SendResult(effect, job.memory.Of(effect.result));
}

void EffectPerformer::Do(ServedJob&, const aggregation::CloseConnection& effect) {
  connections_->Close(effect.connection, effect.reason);
}

}  // namespace talweg::aggregator
