// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/ended_jobs.h"

#include <string>

#include <catch2/catch.hpp>

namespace talweg::aggregator {
namespace {

TEST_CASE("EndedJobs: it knows an ended job's epoch, and reports it", "[aggregator]") {
  EndedJobs ended("agg");
  CHECK(ended.WhyUnknown(JobId{7}).find("knows no job 7") != std::string::npos);
  ended.Add(JobId{7}, Epoch{3});
  ended.Add(JobId{7}, Epoch{4});
  CHECK(ended.EpochOf(JobId{7}) == Epoch{4});
  CHECK(ended.WhyUnknown(JobId{7}).find("'agg' in epoch 4") != std::string::npos);
  CHECK_FALSE(ended.IsForgotten(JobId{6}));
}

TEST_CASE("EndedJobs: the oldest jobs are forgotten, and that is known", "[aggregator]") {
  EndedJobs ended("agg");
  for (uint64_t i = 1; i <= EndedJobs::kJobsMax + 2; ++i) ended.Add(JobId{i}, Epoch{1});
  CHECK_FALSE(ended.EpochOf(JobId{2}).has_value());
  CHECK(ended.IsForgotten(JobId{2}));
  CHECK_FALSE(ended.IsForgotten(JobId{3}));
  CHECK(ended.EpochOf(JobId{3}) == Epoch{1});
}

}  // namespace
}  // namespace talweg::aggregator
