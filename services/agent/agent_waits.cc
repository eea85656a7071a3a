// SPDX-License-Identifier: Apache-2.0
// What people are told of whom rounds wait for.
#include <string>

#include "libs/telemetry/log.h"
#include "services/agent/agent.h"

namespace talweg::agent {
namespace {

constexpr uint32_t kWaitingNamedMax = 5;

}  // namespace

bool Agent::NameWaiting() {
  const int64_t second = NowNs() / 1'000'000'000;
  if (second != waiting_second_) {
    if (waiting_unnamed_ > 0) {
      Log(LogLevel::kWarning, waiting_unnamed_, " more tensors waited in the same second");
    }
    waiting_second_ = second;
    waiting_named_ = 0;
    waiting_unnamed_ = 0;
  }
  if (waiting_named_ == kWaitingNamedMax) {
    ++waiting_unnamed_;
    return false;
  }
  ++waiting_named_;
  return true;
}

void Agent::Do(const pipeline::LogWaiting& effect) {
  if (effect.what == pipeline::LogWaiting::For::kNodes) {
    missing_nodes_[{effect.tensor, effect.round}] = effect.missing;
  }
  if (!NameWaiting()) return;
  std::string who;
  for (size_t i = 0; i < effect.missing.size(); ++i) {
    who += (who.empty() ? "" : ", ") + std::to_string(effect.missing[i]);
    if (i >= effect.absent_ns.size() || effect.absent_ns[i] == 0) continue;
    who += " (no connection for " + std::to_string(effect.absent_ns[i] / 1'000'000) + " ms)";
  }
  const double seconds = static_cast<double>(effect.waited_ns) / 1e9;
  switch (effect.what) {
    case pipeline::LogWaiting::For::kNodes:
      Log(LogLevel::kWarning, "tensor '", memory_->spec(effect.tensor).name, "' round ",
          effect.round, " waits since ", seconds, " s for node ", who);
      return;
    case pipeline::LogWaiting::For::kLocalRanks:
      Log(LogLevel::kWarning, "tensor '", memory_->spec(effect.tensor).name, "' round ",
          effect.round, " waits since ", seconds, " s for local rank ", who, " of node ",
          config_.node_rank);
      return;
    case pipeline::LogWaiting::For::kAggregators:
      Log(LogLevel::kWarning, "epoch ", member_->newest_view()->epoch, " of job '", config_.job,
          "' waits since ", seconds, " s for aggregator ", who);
      return;
    case pipeline::LogWaiting::For::kEpoch:
      Log(LogLevel::kWarning, "an epoch of job '", config_.job, "', ",
          member_->newest_view()->epoch, " or later, waits since ", seconds, " s for node ", who);
      return;
  }
}

}  // namespace talweg::agent
