// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/admission.h"

#include <algorithm>
#include <utility>

#include "libs/base/counted.h"
#include "libs/membership/texts.h"

namespace talweg::membership {
namespace {

// A node that has not asked for this time waits no longer. Agents ask at least every two seconds.
constexpr int64_t kForgottenNs = 10'000'000'000;
constexpr size_t kWaitingMax = 1024;
constexpr char kFile[] = " in the scheduler's quotas_file";

std::string TenantText(const std::string& tenant) { return "tenant '" + tenant + "'"; }

// How many of its tenant's members a job holds. It may always have as many as it needs.
uint64_t HeldMembers(const LiveJob& job) {
  return std::max<uint64_t>(job.members.size(), job.spec.min_members);
}

}  // namespace

Quota Admission::QuotaOf(const LiveJob& job) const {
  return quotas_.For(job.name, job.spec.tenant);
}

uint64_t Admission::MembersToBegin(const LiveJob& job) const {
  const uint64_t enough = std::min<uint64_t>(job.spec.BeginMembers(), QuotaOf(job).members_max);
  return std::min<uint64_t>(enough, job.begin_members_most.value_or(UINT32_MAX));
}

TenantUse Admission::UseOf(const std::string& tenant, std::optional<JobId> except) const {
  TenantUse use;
  for (const auto& [id, job] : jobs_->all()) {
    if (job.Over() || id == except || QuotaOf(job).share.tenant != tenant) continue;
    use.jobs.push_back(job.name);
    use.members_held += HeldMembers(job);
  }
  return use;
}

Answer Admission::CheckTenant(const JoinRequest& request) const {
  const std::string& said = request.spec.tenant;
  const Quota quota = quotas_.For(request.job_name, said);
  if (said.empty() || quota.tenant_of_rule.empty() || said == quota.tenant_of_rule) return {};
  return Refuse(Code::kRefused, "job '" + request.job_name + "' is of " +
                                    TenantText(quota.tenant_of_rule) + " by a rule" + kFile +
                                    ", and the " + AgentText(request.member) + " says " +
                                    TenantText(said) + "; leave its option tenant out");
}

Answer Admission::AdmitJob(const JoinRequest& request, Turn& turn) {
  const Quota quota = quotas_.For(request.job_name, request.spec.tenant);
  const std::string& tenant = quota.share.tenant;
  const uint64_t needed = request.spec.min_members;
  const std::string name = "job '" + request.job_name + "'";
  const auto never = [&](const std::string& whose, uint64_t allowed) {
    return Refuse(Code::kRefused, name + " needs min_members=" + std::to_string(needed) + ", and " +
                                      whose + " may have members_max=" + std::to_string(allowed) +
                                      kFile + "; ask for fewer, or raise it there");
  };
  if (needed > quota.members_max) return never("it", quota.members_max);
  if (needed > quota.tenant_members_max) return never(TenantText(tenant), quota.tenant_members_max);
  if (tenant.empty()) return {};
  const TenantUse use = UseOf(tenant, std::nullopt);
  std::string why;
  if (use.jobs.size() >= quota.tenant_jobs_max) {
    why = TenantText(tenant) + " has " + std::to_string(use.jobs.size()) +
          " of the jobs_max=" + std::to_string(quota.tenant_jobs_max) + " jobs that it may have" +
          kFile + " (" + JobsText(use.jobs) + "); it begins when one of them ends";
  } else if (use.members_held + needed > quota.tenant_members_max) {
    why = "it needs min_members=" + std::to_string(needed) + ", and jobs of " + TenantText(tenant) +
          " hold " + std::to_string(use.members_held) + " (" + JobsText(use.jobs) +
          ") of the members_max=" + std::to_string(quota.tenant_members_max) + kFile +
          "; it begins when one of them ends";
  } else if (const WaitingJoin* older = OlderThan(request, tenant, turn.now_ns)) {
    why = "job '" + older->job_name + "' of " + TenantText(tenant) +
          " came before it and waits: " + older->text;
  }
  if (why.empty()) return {};
  return Wait(request, std::nullopt, tenant, name + " waits: " + why, turn);
}

Answer Admission::AdmitMember(const LiveJob& job, const JoinRequest& request, uint64_t member_count,
                              Turn& turn) {
  const Quota quota = QuotaOf(job);
  const std::string name = "job '" + job.name + "'";
  if (member_count > quota.members_max) {
    return Refuse(Code::kFull, name + " has the members_max=" + std::to_string(quota.members_max) +
                                   " that it may have" + kFile + "; raise it there");
  }
  // The members that the job needs have been held for it from the beginning.
  if (quota.share.tenant.empty() || member_count <= HeldMembers(job)) return {};
  const TenantUse others = UseOf(quota.share.tenant, job.id);
  if (others.members_held + member_count <= quota.tenant_members_max) return {};
  return Wait(request, request.member.id.node, quota.share.tenant,
              "node " + std::to_string(request.member.id.node.value()) + " of " + name +
                  " waits: jobs of " + TenantText(quota.share.tenant) + " hold " +
                  Counted(others.members_held + HeldMembers(job), "node") +
                  " of the members_max=" + std::to_string(quota.tenant_members_max) + kFile +
                  "; it enters when there is room",
              turn);
}

Answer Admission::Wait(const JoinRequest& request, std::optional<NodeRank> node,
                       const std::string& tenant, std::string text, Turn& turn) {
  const auto same = std::find_if(waiting_.begin(), waiting_.end(), [&](const WaitingJoin& join) {
    return join.job_name == request.job_name && join.node == node;
  });
  if (same != waiting_.end()) {
    same->asked_ns = turn.now_ns;
    same->tenant = tenant;
    same->text = text;
  } else if (waiting_.size() < kWaitingMax) {
    waiting_.push_back({.job_name = request.job_name,
                        .tenant = tenant,
                        .node = node,
                        .text = text,
                        .since_ns = turn.now_ns,
                        .asked_ns = turn.now_ns});
    turn.Log(text);
  }
  return Refuse(Code::kNotYet, std::move(text));
}

const WaitingJoin* Admission::OlderThan(const JoinRequest& request, const std::string& tenant,
                                        int64_t now_ns) const {
  for (const WaitingJoin& join : waiting_) {
    if (join.node || join.tenant != tenant || now_ns - join.asked_ns >= kForgottenNs) continue;
    return join.job_name == request.job_name ? nullptr : &join;
  }
  return nullptr;
}

void Admission::EndWait(const JoinRequest& request) {
  std::erase_if(waiting_, [&](const WaitingJoin& join) {
    return join.job_name == request.job_name &&
           (!join.node || *join.node == request.member.id.node);
  });
}

void Admission::ForgetWaiting(int64_t now_ns) {
  std::erase_if(waiting_, [now_ns](const WaitingJoin& join) {
    return now_ns - join.asked_ns >= kForgottenNs;
  });
}

}  // namespace talweg::membership
