// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/conversion.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "libs/base/shown_address.h"

namespace talweg::rpc {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr int64_t kDefaultJoinTimeoutNs = 600 * kNsPerSecond;

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

// Returns the bytes of the character at the beginning of `text`; 0 if it is not valid.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  size_t bytes = 0;
  uint32_t value = 0;
  if (byte(0) < 0x80) return 1;
  if (byte(0) >= 0xc2 && byte(0) <= 0xdf) {
    bytes = 2;
    value = byte(0) & 0x1f;
  } else if (byte(0) >= 0xe0 && byte(0) <= 0xef) {
    bytes = 3;
    value = byte(0) & 0x0f;
  } else if (byte(0) >= 0xf0 && byte(0) <= 0xf4) {
    bytes = 4;
    value = byte(0) & 0x07;
  }
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3f);
  }
  const bool too_long = (bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000);
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  return too_long || surrogate || value > 0x10ffff ? 0 : bytes;
}

}  // namespace

scheduler::v1::MemberId ToShown(const view::MemberIdentity& id) {
  scheduler::v1::MemberId shown;
  shown.set_node_rank(id.node.value());
  return shown;
}

scheduler::v1::ViewMember ToShown(const view::ViewMember& member) {
  scheduler::v1::ViewMember shown = ToProto(member);
  *shown.mutable_id() = ToShown(member.id);
  return shown;
}

scheduler::v1::ViewAggregator ToShown(const view::ViewAggregator& aggregator) {
  scheduler::v1::ViewAggregator shown = ToProto(aggregator);
  shown.clear_incarnation();
  shown.set_data_address(ShownAddress(aggregator.data_address));
  return shown;
}

scheduler::v1::View ToShown(const view::View& view) {
  scheduler::v1::View shown = ToProto(view);
  shown.clear_digest();
  shown.clear_members();
  shown.clear_aggregators();
  for (const view::ViewMember& member : view.members) *shown.add_members() = ToShown(member);
  for (const view::ViewAggregator& aggregator : view.aggregators) {
    *shown.add_aggregators() = ToShown(aggregator);
  }
  return shown;
}

scheduler::v1::MemberId ToProto(const view::MemberIdentity& id) {
  scheduler::v1::MemberId message;
  message.set_node_rank(id.node.value());
  message.set_incarnation(id.incarnation.value());
  return message;
}

view::MemberIdentity FromProto(const scheduler::v1::MemberId& id) {
  return {NodeRank{id.node_rank()}, Incarnation{id.incarnation()}};
}

scheduler::v1::ViewMember ToProto(const view::ViewMember& member) {
  scheduler::v1::ViewMember message;
  *message.mutable_id() = ToProto(member.id);
  message.set_rank_count(member.rank_count);
  message.set_name(member.name);
  message.set_admin_address(member.admin_address);
  message.set_host_id(member.host_id);
  message.set_standby(member.standby);
  return message;
}

view::ViewMember FromProto(const scheduler::v1::ViewMember& member) {
  return {.id = FromProto(member.id()),
          .rank_count = member.rank_count(),
          .name = member.name(),
          .admin_address = member.admin_address(),
          .host_id = member.host_id(),
          .standby = member.standby()};
}

scheduler::v1::ViewAggregator ToProto(const view::ViewAggregator& aggregator) {
  scheduler::v1::ViewAggregator message;
  message.set_incarnation(aggregator.incarnation.value());
  message.set_name(aggregator.name);
  message.set_weight(aggregator.weight);
  message.set_data_address(aggregator.data_address);
  message.set_host_id(aggregator.host_id);
  message.set_admin_address(aggregator.admin_address);
  return message;
}

view::ViewAggregator FromProto(const scheduler::v1::ViewAggregator& aggregator) {
  return {.incarnation = Incarnation{aggregator.incarnation()},
          .name = aggregator.name(),
          .weight = aggregator.weight(),
          .data_address = aggregator.data_address(),
          .host_id = aggregator.host_id(),
          .admin_address = aggregator.admin_address()};
}

// Rules have the same numbers in both. The receiver checks whether there is such a rule.
scheduler::v1::Dealing ToProto(const Dealing& dealing) {
  scheduler::v1::Dealing message;
  message.set_rule(static_cast<scheduler::v1::DealingRule>(dealing.rule));
  message.set_constant(dealing.constant);
  return message;
}

Dealing FromProto(const scheduler::v1::Dealing& message) {
  if (message.rule() == scheduler::v1::DEALING_RULE_UNSPECIFIED) return {};
  // A number that is no rule must not turn into one.
  const auto rule = static_cast<uint8_t>(std::clamp(static_cast<int>(message.rule()), 0, 255));
  return {.rule = DealingRule{rule}, .constant = message.constant()};
}

namespace {

using ViewChange = scheduler::v1::WatchViewsResponse::ViewChange;
using AggregatorChange = scheduler::v1::WatchViewsResponse::AggregatorChange;

scheduler::v1::View WithoutProcesses(const view::View& view) {
  scheduler::v1::View message;
  message.set_job_id(view.job.value());
  message.set_epoch(view.epoch.value());
  message.set_slice_bytes_max(view.slice_bytes_max);
  message.set_digest(view.Digest());
  message.set_steps(view.steps);
  *message.mutable_dealing() = ToProto(view.dealing);
  return message;
}

std::vector<view::ViewAggregator> AggregatorsOf(const scheduler::v1::View& message) {
  std::vector<view::ViewAggregator> aggregators;
  for (const auto& each : message.aggregators()) aggregators.push_back(FromProto(each));
  return aggregators;
}

absl::StatusOr<view::View> Complete(const scheduler::v1::View& message,
                                    std::vector<view::ViewMember> members,
                                    std::vector<view::ViewAggregator> aggregators) {
  const view::View view{.job = JobId{message.job_id()},
                        .epoch = Epoch{message.epoch()},
                        .slice_bytes_max = message.slice_bytes_max(),
                        .dealing = FromProto(message.dealing()),
                        .steps = message.steps(),
                        .members = std::move(members),
                        .aggregators = std::move(aggregators)};
  const std::string name = "the view of epoch " + std::to_string(message.epoch()) + " of job " +
                           std::to_string(message.job_id());
  if (const std::string problem = view.Problem(); !problem.empty()) {
    return Invalid(name + " is not valid: " + problem);
  }
  if (view.Digest() != message.digest()) {
    return Invalid(name + " has another digest than its sender computed; the versions of this " +
                   "process and of the scheduler do not fit");
  }
  return view;
}

AggregatorChange AggregatorChangeOf(const view::View& base, const view::View& view) {
  std::map<Incarnation, const view::ViewAggregator*> before;
  for (const view::ViewAggregator& each : base.aggregators) before[each.incarnation] = &each;
  std::map<uint32_t, uint32_t> reweighed;  // From a weight in the base to the new weight.
  AggregatorChange change;
  for (const view::ViewAggregator& each : view.aggregators) {
    const auto found = before.find(each.incarnation);
    if (found != before.end()) {
      view::ViewAggregator as_before = each;
      as_before.weight = found->second->weight;
      const bool stays =
          as_before == *found->second &&
          reweighed.try_emplace(as_before.weight, each.weight).first->second == each.weight;
      if (stays) {
        before.erase(found);
        continue;
      }
    }
    *change.add_entered() = ToProto(each);
  }
  for (const auto& [incarnation, unused] : before) change.add_left(incarnation.value());
  for (const auto& [from, to] : reweighed) {
    if (from == to) continue;
    AggregatorChange::Reweighed& entry = *change.add_reweighed();
    entry.set_from(from);
    entry.set_to(to);
  }
  return change;
}

std::vector<view::ViewAggregator> ChangedAggregators(const view::View& base,
                                                     const AggregatorChange& change) {
  const std::set<uint64_t> left(change.left().begin(), change.left().end());
  std::map<uint32_t, uint32_t> reweighed;
  for (const auto& each : change.reweighed()) reweighed[each.from()] = each.to();
  std::vector<view::ViewAggregator> aggregators;
  for (const view::ViewAggregator& each : base.aggregators) {
    if (left.contains(each.incarnation.value())) continue;
    aggregators.push_back(each);
    const auto found = reweighed.find(each.weight);
    if (found != reweighed.end()) aggregators.back().weight = found->second;
  }
  for (const auto& each : change.entered()) aggregators.push_back(FromProto(each));
  std::sort(
      aggregators.begin(), aggregators.end(),
      [](const view::ViewAggregator& a, const view::ViewAggregator& b) { return a.name < b.name; });
  return aggregators;
}

}  // namespace

scheduler::v1::View ToProto(const view::View& view) {
  scheduler::v1::View message = WithoutProcesses(view);
  for (const view::ViewMember& member : view.members) *message.add_members() = ToProto(member);
  for (const view::ViewAggregator& aggregator : view.aggregators) {
    *message.add_aggregators() = ToProto(aggregator);
  }
  return message;
}

absl::StatusOr<view::View> FromProto(const scheduler::v1::View& message) {
  std::vector<view::ViewMember> members;
  for (const auto& member : message.members()) members.push_back(FromProto(member));
  return Complete(message, std::move(members), AggregatorsOf(message));
}

ViewChange ChangeOf(const view::View& base, const view::View& view) {
  ViewChange change;
  change.set_base_epoch(base.epoch.value());
  *change.mutable_view() = WithoutProcesses(view);
  *change.mutable_aggregators() = AggregatorChangeOf(base, view);
  const auto is_in = [](const view::View& other, const view::ViewMember& member) {
    const std::optional<MemberIndex> index = other.IndexOf(member.id);
    return index && other.members[index->value()] == member;
  };
  for (const view::ViewMember& member : base.members) {
    if (!is_in(view, member)) change.add_left_node_ranks(member.id.node.value());
  }
  for (const view::ViewMember& member : view.members) {
    if (!is_in(base, member)) *change.add_entered() = ToProto(member);
  }
  return change;
}

absl::StatusOr<view::View> Changed(const view::View& base, const ViewChange& change) {
  if (base.job.value() != change.view().job_id() || base.epoch.value() != change.base_epoch()) {
    return Invalid("the change to the view of epoch " + std::to_string(change.view().epoch()) +
                   " of job " + std::to_string(change.view().job_id()) + " is one of epoch " +
                   std::to_string(change.base_epoch()) + ", and that of epoch " +
                   std::to_string(base.epoch.value()) + " of job " +
                   std::to_string(base.job.value()) + " came before it");
  }
  const std::set<uint32_t> left(change.left_node_ranks().begin(), change.left_node_ranks().end());
  std::vector<view::ViewMember> members;
  for (const view::ViewMember& member : base.members) {
    if (!left.contains(member.id.node.value())) members.push_back(member);
  }
  for (const auto& member : change.entered()) members.push_back(FromProto(member));
  std::sort(
      members.begin(), members.end(),
      [](const view::ViewMember& a, const view::ViewMember& b) { return a.id.node < b.id.node; });
  return Complete(change.view(), std::move(members),
                  change.has_aggregators() ? ChangedAggregators(base, change.aggregators())
                                           : AggregatorsOf(change.view()));
}

scheduler::v1::JobSpec ToProto(const membership::JobSpec& spec) {
  scheduler::v1::JobSpec message;
  message.set_min_members(spec.min_members);
  message.set_max_members(spec.max_members);
  message.set_begin_members(spec.begin_members);
  message.set_slice_bytes_max(spec.slice_bytes_max);
  *message.mutable_dealing() = ToProto(spec.dealing);
  message.set_loss_policy(spec.loss_policy == membership::LossPolicy::kFailJob
                              ? scheduler::v1::LOSS_POLICY_FAIL_JOB
                              : scheduler::v1::LOSS_POLICY_CONTINUE);
  *message.mutable_join_timeout() = DurationFromNs(spec.join_timeout_ns);
  *message.mutable_gather() = DurationFromNs(spec.gather_ns);
  message.set_tenant(CleanUtf8(spec.tenant));
  return message;
}

absl::StatusOr<membership::JobSpec> FromProto(const scheduler::v1::JobSpec& message) {
  membership::JobSpec spec{.min_members = message.min_members(),
                           .max_members = message.max_members(),
                           .begin_members = message.begin_members(),
                           .slice_bytes_max = message.slice_bytes_max(),
                           .dealing = FromProto(message.dealing())};
  switch (message.loss_policy()) {
    case scheduler::v1::LOSS_POLICY_FAIL_JOB:
      spec.loss_policy = membership::LossPolicy::kFailJob;
      break;
    case scheduler::v1::LOSS_POLICY_CONTINUE:
      spec.loss_policy = membership::LossPolicy::kContinue;
      break;
    default:
      return Invalid("spec.loss_policy is " + std::to_string(message.loss_policy()) +
                     "; it must be LOSS_POLICY_FAIL_JOB or LOSS_POLICY_CONTINUE");
  }
  spec.join_timeout_ns =
      message.has_join_timeout() ? NsFromDuration(message.join_timeout()) : kDefaultJoinTimeoutNs;
  spec.gather_ns =
      message.has_gather() ? NsFromDuration(message.gather()) : membership::kDefaultGatherNs;
  spec.tenant = message.tenant();
  return spec;
}

uint64_t LimitToProto(uint64_t limit) { return limit == view::kNoLimit ? 0 : limit; }
uint64_t LimitFromProto(uint64_t limit) { return limit == 0 ? view::kNoLimit : limit; }

scheduler::v1::WatchJobsResponse::Gone ToProto(const view::Gone& gone) {
  scheduler::v1::WatchJobsResponse::Gone message;
  for (const view::MemberIdentity& id : gone.members) *message.add_members() = ToProto(id);
  message.set_is_everybody(gone.is_everybody);
  return message;
}

view::Gone FromProto(const scheduler::v1::WatchJobsResponse::Gone& message) {
  view::Gone gone{.is_everybody = message.is_everybody()};
  for (const auto& id : message.members()) gone.members.push_back(FromProto(id));
  return gone;
}

scheduler::v1::JobQuota ToProto(const view::JobQuota& quota) {
  scheduler::v1::JobQuota message;
  message.set_tenant(CleanUtf8(quota.tenant));
  message.set_priority(static_cast<scheduler::v1::Priority>(quota.priority));
  message.set_weight(quota.weight);
  message.set_tenant_weight(quota.tenant_weight);
  message.set_memory_bytes_max(LimitToProto(quota.limit.memory_bytes_max));
  message.set_tensors_max(LimitToProto(quota.limit.tensors_max));
  message.set_tenant_memory_bytes_max(LimitToProto(quota.tenant_limit.memory_bytes_max));
  message.set_tenant_tensors_max(LimitToProto(quota.tenant_limit.tensors_max));
  return message;
}

view::JobQuota FromProto(const scheduler::v1::JobQuota& message) {
  view::JobQuota quota;
  quota.tenant = message.tenant();
  // An unknown value comes from a newer release.
  if (message.priority() == scheduler::v1::PRIORITY_LOW) quota.priority = view::Priority::kLow;
  if (message.priority() == scheduler::v1::PRIORITY_HIGH) quota.priority = view::Priority::kHigh;
  quota.weight = std::max<uint32_t>(message.weight(), 1);
  quota.tenant_weight = std::max<uint32_t>(message.tenant_weight(), 1);
  quota.limit = {LimitFromProto(message.memory_bytes_max()), LimitFromProto(message.tensors_max())};
  quota.tenant_limit = {LimitFromProto(message.tenant_memory_bytes_max()),
                        LimitFromProto(message.tenant_tensors_max())};
  return quota;
}

scheduler::v1::ProtocolVersion ToProto(const Version& version) {
  scheduler::v1::ProtocolVersion message;
  message.set_major(version.major);
  message.set_minor(version.minor);
  message.set_build(version.build);
  return message;
}

Version FromProto(const scheduler::v1::ProtocolVersion& version) {
  return {.major = version.major(), .minor = version.minor(), .build = version.build()};
}

std::string VersionText(const Version& version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor) + " (build " +
         (version.build.empty() ? "unknown" : version.build) + ")";
}

std::string VersionProblem(const Version& ours, const Version& theirs, const std::string& who) {
  if (ours.major == theirs.major) return "";
  return who + " speaks version " + VersionText(theirs) + " of the protocol, this process " +
         VersionText(ours) + "; install the same major version everywhere";
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string CleanUtf8(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    if (bytes == 0) {
      clean += "\xef\xbf\xbd";
    } else {
      clean += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return clean;
}

google::protobuf::Duration DurationFromNs(int64_t ns) {
  google::protobuf::Duration duration;
  duration.set_seconds(ns / kNsPerSecond);
  duration.set_nanos(static_cast<int32_t>(ns % kNsPerSecond));
  return duration;
}

int64_t NsFromDuration(const google::protobuf::Duration& duration) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t ns = 0;
  if (__builtin_mul_overflow(duration.seconds(), kNsPerSecond, &ns) ||
      __builtin_add_overflow(ns, int64_t{duration.nanos()}, &ns)) {
    return duration.seconds() < 0 ? -kMax : kMax;
  }
  return ns;
}

google::protobuf::Timestamp TimestampFromUnixNs(int64_t unix_ns) {
  google::protobuf::Timestamp timestamp;
  timestamp.set_seconds(unix_ns / kNsPerSecond);
  timestamp.set_nanos(static_cast<int32_t>(unix_ns % kNsPerSecond));
  return timestamp;
}

}  // namespace talweg::rpc
