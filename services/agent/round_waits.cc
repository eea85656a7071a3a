// SPDX-License-Identifier: Apache-2.0
#include "services/agent/round_waits.h"

#include <algorithm>

#include "libs/telemetry/log.h"

namespace talweg::agent {
namespace {

constexpr uint32_t kWaitingNamedMax = 5;

// Returns whether all these nodes are standbys, which may take as long as they like.
bool AreStandbys(const view::View* view, const std::vector<uint32_t>& nodes) {
  return view != nullptr && !nodes.empty() &&
         std::all_of(nodes.begin(), nodes.end(), [&](uint32_t node) {
           return std::any_of(view->members.begin(), view->members.end(),
                              [&](const view::ViewMember& member) {
                                return member.id.node == NodeRank{node} && member.standby;
                              });
         });
}

}  // namespace

bool RoundWaits::NameWaiting(int64_t now_ns) {
  const int64_t second = now_ns / 1'000'000'000;
  if (second != second_) {
    if (unnamed_ > 0) {
      telemetry::Log(telemetry::LogLevel::kWarning, unnamed_,
                     " more tensors waited in the same second");
    }
    second_ = second;
    named_ = 0;
    unnamed_ = 0;
  }
  if (named_ == kWaitingNamedMax) {
    ++unnamed_;
    return false;
  }
  ++named_;
  return true;
}

void RoundWaits::OnWaiting(const pipeline::LogWaiting& effect, const pipeline::AgentCore& core,
                           const TensorMemory& memory, int64_t now_ns) {
  // Nobody's step waits for standbys.
  if (effect.what == pipeline::LogWaiting::For::kNodes &&
      AreStandbys(core.views().newest(), effect.missing)) {
    return;
  }
  const bool is_of_tensor = effect.what == pipeline::LogWaiting::For::kNodes ||
                            effect.what == pipeline::LogWaiting::For::kLocalRanks;
  const auto notice_ns = static_cast<uint64_t>(notice_ns_);
  if (is_of_tensor && (notice_ns == 0 || effect.waited_ns < notice_ns)) return;
  if (!NameWaiting(now_ns)) return;
  std::string who;
  for (size_t i = 0; i < effect.missing.size(); ++i) {
    who += (who.empty() ? "" : ", ") + std::to_string(effect.missing[i]);
    if (i >= effect.absent_ns.size() || effect.absent_ns[i] == 0) continue;
    who += " (no connection for " + std::to_string(effect.absent_ns[i] / 1'000'000) + " ms)";
  }
  const double seconds = static_cast<double>(effect.waited_ns) / 1e9;
  switch (effect.what) {
    case pipeline::LogWaiting::For::kNodes:
      telemetry::Log(telemetry::LogLevel::kWarning, "tensor '", memory.spec(effect.tensor).name,
                     "' round ", effect.round, " waits since ", seconds, " s for node ", who);
      return;
    case pipeline::LogWaiting::For::kLocalRanks:
      telemetry::Log(telemetry::LogLevel::kWarning, "tensor '", memory.spec(effect.tensor).name,
                     "' round ", effect.round, " waits since ", seconds, " s for local rank ", who,
                     " of node ", node_.value());
      return;
    case pipeline::LogWaiting::For::kAggregators:
      telemetry::Log(telemetry::LogLevel::kWarning, "epoch ", core.views().newest()->epoch,
                     " of job '", job_name_, "' waits since ", seconds, " s for aggregator ", who);
      return;
    case pipeline::LogWaiting::For::kEpoch:
      telemetry::Log(telemetry::LogLevel::kWarning, "an epoch of job '", job_name_, "', ",
                     core.views().newest()->epoch, " or later, waits since ", seconds,
                     " s for node ", who);
      return;
  }
}

}  // namespace talweg::agent
