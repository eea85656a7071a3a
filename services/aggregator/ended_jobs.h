// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_ENDED_JOBS_H_
#define TALWEG_SERVICES_AGGREGATOR_ENDED_JOBS_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "libs/aggregation/departed.h"
#include "libs/base/ids.h"

namespace talweg::aggregator {

// The epoch in which each of the last kJobsMax jobs ended here, and who has departed from it. A
// scheduler with an older store may publish such a job again. Its members would go on as if this
// aggregator still had their declarations and contributions.
//
// It keeps at most kDepartedMax departed members, of all jobs together: those of the latest jobs.
// One owner thread.
class EndedJobs {
 public:
  static constexpr size_t kJobsMax = 65'536;
  static constexpr size_t kDepartedMax = 65'536;

  explicit EndedJobs(std::string aggregator) : aggregator_(std::move(aggregator)) {}

  void Add(JobId job, Epoch epoch, aggregation::Departed departed) {
    epochs_[job] = epoch;
    // Ids ascend, so the first one is the oldest job's.
    if (epochs_.size() > kJobsMax) epochs_.erase(epochs_.begin());
    Forget(departed_.find(job));
    departed_count_ += departed.size();
    departed_.emplace(job, std::move(departed));
    while (departed_count_ > kDepartedMax || departed_.size() > kJobsMax) {
      Forget(departed_.begin());
    }
  }

  // Returns nullopt if the job has not ended here, or if that is forgotten.
  std::optional<Epoch> EpochOf(JobId job) const {
    const auto found = epochs_.find(job);
    if (found == epochs_.end()) return std::nullopt;
    return found->second;
  }
  // Returns who has departed from a job that begins again here: nobody, if it has not ended here.
  aggregation::Departed DepartedFrom(JobId job) const {
    const auto found = departed_.find(job);
    if (found != departed_.end()) return found->second;
    return epochs_.contains(job) ? aggregation::Departed::Everybody() : aggregation::Departed();
  }
  // Returns whether the job may have ended here and been forgotten. Ids ascend, so it may if its id
  // is below all that are kept.
  bool IsForgotten(JobId job) const {
    return epochs_.size() == kJobsMax && job < epochs_.begin()->first;
  }

  // Returns the text that refuses a Hello for a job that is not served here.
  std::string WhyUnknown(JobId job) const {
    const std::string id = std::to_string(job.value());
    const std::optional<Epoch> epoch = EpochOf(job);
    if (!epoch) {
      return "aggregator '" + aggregator_ + "' knows no job " + id +
             ": is it registered with the same scheduler as the agent?";
    }
    return "job " + id + " was over at aggregator '" + aggregator_ + "' in epoch " +
           std::to_string(epoch->value()) +
           ": has the scheduler been started with an older store? Start the job again";
  }

 private:
  using DepartedByJob = std::map<JobId, aggregation::Departed>;

  void Forget(DepartedByJob::iterator known) {
    if (known == departed_.end()) return;
    departed_count_ -= known->second.size();
    departed_.erase(known);
  }

  const std::string aggregator_;
  std::map<JobId, Epoch> epochs_;
  DepartedByJob departed_;
  size_t departed_count_ = 0;  // In all of departed_.
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_ENDED_JOBS_H_
