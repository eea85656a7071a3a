// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/job_table.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "libs/membership/texts.h"

namespace talweg::membership {
namespace {

// The members' leases begin anew.
LiveJob FromStore(const JobRecord& record, const Config& config, Epoch epoch_start,
                  int64_t now_ns) {
  LiveJob job{.id = record.id,
              .name = record.name,
              .spec = record.spec,
              .state = record.state,
              .text = record.text,
              .epoch_floor = record.epoch_floor,
              .epoch_start = epoch_start,
              .epoch_stored = record.epoch_floor,
              .created_unix_ns = record.created_unix_ns,
              .view = record.view ? std::make_shared<const view::View>(*record.view) : nullptr,
              .recovers = record.state == JobState::kRunning,
              .join_deadline_ns = now_ns + record.spec.join_timeout_ns};
  for (const MemberRecord& member : record.members) {
    if (member.state != MemberState::kJoined) {
      job.gone.push_back(member);
      continue;
    }
    job.members[member.member.id.node] = {.record = member,
                                          .from_store = true,
                                          .attached_before = true,
                                          .lease_end_ns = now_ns + config.lease_ns};
  }
  if (job.Over() && job.members.empty()) job.over_at_ns = now_ns;
  return job;
}

}  // namespace

JobTable::JobTable(const Config& config, const Snapshot& snapshot, Epoch epoch_start,
                   int64_t now_ns)
    : history_ns_(config.history_ns), history_jobs_max_(config.history_jobs_max) {
  for (const JobRecord& record : snapshot.jobs) {
    jobs_[record.id] = FromStore(record, config, epoch_start, now_ns);
  }
}

LiveJob* JobTable::Find(JobId id) {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

const LiveJob* JobTable::Find(JobId id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

LiveJob* JobTable::FindOpen(const std::string& name) {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    return entry.second.name == name && !entry.second.Over();
  });
  return found == jobs_.end() ? nullptr : &found->second;
}

bool JobTable::HasFinished(const std::string& name) const {
  const auto newest = std::find_if(jobs_.rbegin(), jobs_.rend(),
                                   [&](const auto& entry) { return entry.second.name == name; });
  return newest != jobs_.rend() && newest->second.state == JobState::kFinished;
}

size_t JobTable::OpenCount() const {
  return static_cast<size_t>(std::count_if(jobs_.begin(), jobs_.end(),
                                           [](const auto& entry) { return !entry.second.Over(); }));
}

LiveJob& JobTable::Add(JobId id, const JoinRequest& request, int64_t now_ns) {
  LiveJob& job = jobs_[id];
  job.id = id;
  job.name = request.job_name;
  job.spec = request.spec;
  job.created_unix_ns = request.unix_ns;
  job.join_deadline_ns = now_ns + request.spec.join_timeout_ns;
  return job;
}

std::optional<JoinAnswer> JobTable::JoinedBefore(const JoinRequest& request) const {
  for (const auto& [id, job] : jobs_) {
    if (job.name != request.job_name) continue;
    const auto member = job.members.find(request.member.id.node);
    const bool alive =
        member != job.members.end() && member->second.record.member.id == request.member.id;
    if (alive && !SameSecret(member->second.record.secret, request.secret)) {
      return JoinAnswer{Unproven(request.member.id), JobId{0}, job.state};
    }
    if (alive && !job.Over()) return JoinAnswer{{}, id, job.state};
    if (alive) return JoinAnswer{Refuse(Code::kRefused, job.text), id, job.state};
    for (const MemberRecord& gone : job.gone) {
      if (gone.member.id != request.member.id) continue;
      if (!SameSecret(gone.secret, request.secret)) {
        return JoinAnswer{Unproven(request.member.id), JobId{0}, job.state};
      }
      return JoinAnswer{
          Refuse(Code::kRefused, gone.text + "; it must join with a new incarnation (restart "
                                             "the agent)"),
          id, job.state};
    }
  }
  return std::nullopt;
}

void JobTable::Collect(Turn& turn) {
  std::vector<std::pair<int64_t, JobId>> over;
  for (const auto& [id, job] : jobs_) {
    if (job.Over() && job.members.empty()) over.emplace_back(job.over_at_ns, id);
  }
  std::sort(over.begin(), over.end());
  size_t kept = over.size();
  for (const auto& [over_at_ns, id] : over) {
    if (kept <= history_jobs_max_ && turn.now_ns - over_at_ns < history_ns_) break;
    jobs_.erase(id);
    turn.write.jobs_removed.push_back(id);
    --kept;
  }
}

}  // namespace talweg::membership
