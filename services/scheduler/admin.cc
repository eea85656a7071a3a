// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/admin.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "libs/rpc/conversion.h"

namespace talweg::scheduler {
namespace {

using rpc::DurationFromNs;
using rpc::ToProto;
using rpc::ToShown;

v1::JobState StateOf(membership::JobState state) {
  switch (state) {
    case membership::JobState::kForming: return v1::JOB_STATE_FORMING;
    case membership::JobState::kRunning: return v1::JOB_STATE_RUNNING;
    case membership::JobState::kFailed: return v1::JOB_STATE_FAILED;
    case membership::JobState::kFinished: return v1::JOB_STATE_FINISHED;
  }
  return v1::JOB_STATE_UNSPECIFIED;
}

v1::AggregatorStatus::State StateOf(membership::AggregatorState state) {
  switch (state) {
    case membership::AggregatorState::kLive: return v1::AggregatorStatus::STATE_LIVE;
    case membership::AggregatorState::kDraining: return v1::AggregatorStatus::STATE_DRAINING;
    case membership::AggregatorState::kLost: return v1::AggregatorStatus::STATE_LOST;
  }
  return v1::AggregatorStatus::STATE_UNSPECIFIED;
}

v1::MemberStatus StatusOf(const membership::MemberRecord& record) {
  v1::MemberStatus status;
  *status.mutable_member() = ToShown(record.member);
  status.set_state_text(record.text);
  status.set_host_id(record.member.host_id);
  status.set_state(record.state == membership::MemberState::kLeft ? v1::MEMBER_STATE_LEFT
                                                                  : v1::MEMBER_STATE_LOST);
  return status;
}

}  // namespace

v1::JobSummary SummaryOf(const membership::SchedulerCore& core, const membership::LiveJob& job) {
  v1::JobSummary summary;
  summary.set_job_id(job.id.value());
  summary.set_name(job.name);
  summary.set_state(StateOf(job.state));
  summary.set_state_text(core.StateText(job));
  *summary.mutable_spec() = ToProto(job.spec);
  *summary.mutable_created_at() = rpc::TimestampFromUnixNs(job.created_unix_ns);
  const membership::Quota quota = core.QuotaOf(job);
  *summary.mutable_quota() = ToProto(quota.share);
  summary.set_members_max(rpc::LimitToProto(quota.members_max));
  if (job.view) {
    summary.set_epoch(job.view->epoch.value());
    summary.set_member_count(static_cast<uint32_t>(job.view->members.size()));
    summary.set_rank_count(job.view->RankCount());
    summary.set_aggregator_count(static_cast<uint32_t>(job.view->aggregators.size()));
  } else {
    summary.set_member_count(static_cast<uint32_t>(job.members.size()));
    uint32_t rank_count = 0;
    for (const auto& [node, member] : job.members) rank_count += member.record.member.rank_count;
    summary.set_rank_count(rank_count);
  }
  return summary;
}

void FillWaiting(const membership::SchedulerCore& core, int64_t now_ns,
                 v1::ListJobsResponse* response) {
  std::set<std::string> tenants;
  for (const auto& [id, job] : core.jobs()) {
    if (!job.Over()) tenants.insert(core.QuotaOf(job).share.tenant);
  }
  for (const membership::WaitingJoin& join : core.waiting()) {
    tenants.insert(join.tenant);
    v1::WaitingJoin* shown = response->add_waiting();
    shown->set_job_name(join.job_name);
    shown->set_tenant(join.tenant);
    if (join.node) shown->set_node_rank(join.node->value());
    shown->set_text(join.text);
    *shown->mutable_waited() = DurationFromNs(now_ns - join.since_ns);
  }
  tenants.erase("");
  for (const std::string& name : tenants) {
    // The quota's tenant fields, which are the same for all jobs of the tenant.
    const membership::Quota quota = core.TenantQuota(name);
    const membership::TenantUse use = core.UseOf(name);
    v1::TenantUse* shown = response->add_tenants();
    shown->set_name(name);
    shown->set_job_count(use.jobs.size());
    shown->set_jobs_max(rpc::LimitToProto(quota.tenant_jobs_max));
    shown->set_members_held(use.members_held);
    shown->set_members_max(rpc::LimitToProto(quota.tenant_members_max));
    shown->set_weight(quota.share.tenant_weight);
    shown->set_memory_bytes_max(rpc::LimitToProto(quota.share.tenant_limit.memory_bytes_max));
    shown->set_tensors_max(rpc::LimitToProto(quota.share.tenant_limit.tensors_max));
  }
}

// Returns whether the node is a standby of the job's view.
bool IsStandby(const membership::LiveJob& job, NodeRank node) {
  if (!job.view) return false;
  const std::optional<MemberIndex> index = job.view->IndexOf(node);
  return index && job.view->members[index->value()].standby;
}

v1::GetJobResponse DetailsOf(const membership::SchedulerCore& core, const membership::LiveJob& job,
                             int64_t now_ns) {
  v1::GetJobResponse details;
  *details.mutable_summary() = SummaryOf(core, job);
  for (const auto& [node, member] : job.members) {
    v1::MemberStatus status = StatusOf(member.record);
    status.set_state(job.Pending(member) ? v1::MEMBER_STATE_PENDING : v1::MEMBER_STATE_JOINED);
    status.mutable_member()->set_standby(IsStandby(job, node));
    status.set_attached(member.stream.has_value());
    *status.mutable_lease_remaining() =
        DurationFromNs(std::max<int64_t>(member.lease_end_ns - now_ns, 0));
    status.set_epoch_held(member.epoch_held.value());
    status.set_has_state(job.HasState(member));
    *details.add_members() = std::move(status);
  }
  for (const membership::MemberRecord& gone : job.gone) *details.add_members() = StatusOf(gone);
  if (job.view) {
    *details.mutable_view() = ToShown(*job.view);
    double weights = 0;
    const auto weight_of = [&job](const view::ViewAggregator& aggregator) {
      return WeightsCount(job.view->dealing) ? aggregator.weight : 1;
    };
    for (const view::ViewAggregator& aggregator : job.view->aggregators)
      weights += weight_of(aggregator);
    for (const view::ViewAggregator& aggregator : job.view->aggregators) {
      v1::AggregatorShare* share = details.add_shares();
      share->set_name(aggregator.name);
      share->set_share_of_bytes(weight_of(aggregator) / weights);
    }
  }
  for (const membership::SpareAggregator& spare : core.SparesOf(job)) {
    v1::SpareAggregator* shown = details.add_spare_aggregators();
    shown->set_name(spare.name);
    shown->set_enters_next_view(spare.enters_next_view);
  }
  if (job.quiesce) {
    details.set_quiesce_id(job.quiesce->id.value());
    for (const view::MemberIdentity& id : job.quiesce->waits_for) {
      *details.add_quiesce_waits_for() = ToShown(id);
    }
  }
  for (const membership::Complaint& complaint : job.complaints) {
    v1::Complaint* shown = details.add_complaints();
    *shown->mutable_reporter() = ToShown(complaint.reporter);
    shown->set_about(complaint.about);
    shown->set_text(complaint.text);
    *shown->mutable_age() = DurationFromNs(now_ns - complaint.at_ns);
  }
  return details;
}

v1::ListAggregatorsResponse AggregatorsOf(const membership::SchedulerCore& core, int64_t now_ns) {
  std::multimap<std::string, const membership::LiveAggregator*> by_name;
  for (const auto& [id, aggregator] : core.aggregators()) {
    by_name.emplace(aggregator.record.aggregator.name, &aggregator);
  }
  v1::ListAggregatorsResponse response;
  for (const auto& [name, aggregator] : by_name) {
    v1::AggregatorStatus* status = response.add_aggregators();
    *status->mutable_aggregator() = ToShown(aggregator->record.aggregator);
    status->set_state(StateOf(aggregator->record.state));
    status->set_state_text(aggregator->record.text);
    status->set_attached(aggregator->stream.has_value());
    if (aggregator->record.state != membership::AggregatorState::kLost) {
      *status->mutable_lease_remaining() =
          DurationFromNs(std::max<int64_t>(aggregator->lease_end_ns - now_ns, 0));
    }
    for (const auto& [id, job] : core.jobs()) {
      if (job.state == membership::JobState::kRunning &&
          job.view->IndexOfAggregator(aggregator->record.aggregator.incarnation)) {
        status->add_job_ids(id.value());
      }
    }
  }
  return response;
}

}  // namespace talweg::scheduler
