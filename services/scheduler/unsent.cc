// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/unsent.h"

#include <optional>
#include <variant>

#include "libs/base/ids.h"

namespace talweg::scheduler {
namespace {

using membership::AggregatorMessage;
using membership::JobClosed;
using membership::JobFailed;
using membership::JobQuotaChanged;
using membership::JobView;
using membership::MemberLeft;
using membership::MemberMessage;
using membership::Quiesce;
using membership::QuiesceCancelled;
using membership::SharedView;

std::optional<JobId> JobOf(const AggregatorMessage& message) {
  if (const auto* job = std::get_if<JobView>(&message)) return job->view->job;
  if (const auto* closed = std::get_if<JobClosed>(&message)) return closed->job;
  if (const auto* quota = std::get_if<JobQuotaChanged>(&message)) return quota->job;
  return std::nullopt;
}

}  // namespace

size_t TextBytes(const MemberMessage& message) {
  if (const auto* failed = std::get_if<JobFailed>(&message)) return failed->text.size();
  if (const auto* left = std::get_if<MemberLeft>(&message)) return left->text.size();
  if (const auto* quiesce = std::get_if<Quiesce>(&message)) {
    return quiesce->joining.size() * sizeof(NodeRank);
  }
  return 0;
}

size_t TextBytes(const AggregatorMessage& message) {
  if (const auto* job = std::get_if<JobView>(&message)) {
    return job->job_name.size() + job->gone.members.size() * sizeof(view::MemberIdentity);
  }
  if (const auto* closed = std::get_if<JobClosed>(&message)) return closed->text.size();
  return 0;
}

bool Replaces(const MemberMessage& newer) { return std::holds_alternative<SharedView>(newer); }
bool Replaces(const AggregatorMessage& newer) { return JobOf(newer).has_value(); }

// A newer view ends a quiesce that began before it.
bool IsReplacedBy(const MemberMessage& newer, const MemberMessage& older) {
  return Replaces(newer) &&
         (std::holds_alternative<SharedView>(older) || std::holds_alternative<Quiesce>(older) ||
          std::holds_alternative<QuiesceCancelled>(older));
}

// A view has the rules of its job. After the end of a job nothing else counts.
bool IsReplacedBy(const AggregatorMessage& newer, const AggregatorMessage& older) {
  const std::optional<JobId> job = JobOf(newer);
  if (!job || job != JobOf(older)) return false;
  return !std::holds_alternative<JobQuotaChanged>(newer) ||
         std::holds_alternative<JobQuotaChanged>(older);
}

bool HasText(const MemberMessage& message) {
  return std::holds_alternative<JobFailed>(message) || std::holds_alternative<MemberLeft>(message);
}

bool HasText(const AggregatorMessage& message) {
  return std::holds_alternative<JobClosed>(message);
}

}  // namespace talweg::scheduler
