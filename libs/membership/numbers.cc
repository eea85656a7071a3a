// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/numbers.h"

#include <algorithm>
#include <string>

namespace talweg::membership {

Numbers::Numbers(const Config& config, const Snapshot& snapshot, int64_t now_ns)
    : start_count_(snapshot.start_count + 1),
      start_unix_ns_(config.start_unix_ns),
      start_ns_(now_ns),
      epoch_start_(NumbersFrom(config.start_unix_ns)),
      quiesce_last_(std::max(epoch_start_.value(), start_count_ << 32)),
      job_next_(std::max(snapshot.job_next, JobId{epoch_start_.value() + 1})) {
  for (const JobRecord& record : snapshot.jobs) {
    job_next_ = std::max(job_next_, record.id.Next());
  }
  job_next_stored_ = job_next_;
}

JobId Numbers::NextJob(Turn& turn) {
  const JobId id = job_next_;
  job_next_ = job_next_.Next();
  turn.write.job_next = job_next_;
  return id;
}

void Numbers::ObserveJob(JobId id, Turn& turn) {
  if (id < job_next_ || id > kJobIdMax) return;
  job_next_ = id.Next();
  turn.write.job_next = job_next_;
}

uint64_t Numbers::BelievedTo(uint64_t stored, int64_t now_ns) const {
  const int64_t unix_ns = start_unix_ns_ == 0 ? 0 : start_unix_ns_ + (now_ns - start_ns_);
  return view::BelievedTo(stored, unix_ns);
}

Answer Numbers::CheckEpoch(const LiveJob& job, bool from_store, bool in_view, Epoch held,
                           int64_t now_ns) const {
  uint64_t largest = in_view ? job.view->epoch.value() : 0;
  if (from_store && job.epoch_stored) {
    largest = std::max(largest, BelievedTo(job.epoch_stored->value(), now_ns));
  }
  if (held.value() <= largest) return {};
  return {.code = Code::kInvalid,
          .text = "epoch " + std::to_string(held.value()) + " of job '" + job.name +
                  "' cannot be right: the caller can have been given " +
                  (largest == 0 ? "none yet" : "none above " + std::to_string(largest))};
}

Answer Numbers::CheckJob(JobId id, int64_t now_ns) const {
  if (id.value() <= BelievedTo(job_next_stored_.value(), now_ns)) return {};
  return {.code = Code::kInvalid,
          .text = "job " + std::to_string(id.value()) +
                  " cannot be right: no scheduler can have given that id yet"};
}

}  // namespace talweg::membership
