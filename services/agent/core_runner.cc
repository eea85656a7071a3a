// SPDX-License-Identifier: Apache-2.0
#include "services/agent/core_runner.h"

namespace talweg::agent {

void CoreRunner::Begin(pipeline::AgentCoreConfig config) {
  core_ = std::make_unique<pipeline::AgentCore>(std::move(config));
}

void CoreRunner::Deliver(Event event) {
  events_.push_back(std::move(event));
  if (performing_) return;  // The outer call delivers it next.
  performing_ = true;
  while (!events_.empty()) {
    const auto next = std::move(events_.front());
    events_.pop_front();
    pipeline::Effects effects;
    next(effects);
    dirty_ = true;
    perform_(effects);
  }
  performing_ = false;
}

void CoreRunner::FailJob(const std::string& text) {
  Deliver([this, text](pipeline::Effects& out) { core_->OnJobFailed(text, clock_->NowNs(), out); });
}

bool CoreRunner::Flush() {
  if (!std::exchange(dirty_, false)) return false;
  Deliver([this](pipeline::Effects& out) { core_->Flush(clock_->NowNs(), out); });
  dirty_ = false;
  return true;
}

}  // namespace talweg::agent
