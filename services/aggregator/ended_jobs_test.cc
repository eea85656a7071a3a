// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/ended_jobs.h"

#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::aggregator {
namespace {

TEST_CASE("EndedJobs: it knows an ended job's epoch, and reports it", "[aggregator]") {
  EndedJobs ended("agg");
  CHECK(ended.WhyUnknown(JobId{7}).find("knows no job 7") != std::string::npos);
  ended.Add(JobId{7}, Epoch{3}, {});
  ended.Add(JobId{7}, Epoch{4}, {});
  CHECK(ended.EpochOf(JobId{7}) == Epoch{4});
  CHECK(ended.WhyUnknown(JobId{7}).find("'agg' in epoch 4") != std::string::npos);
  CHECK_FALSE(ended.IsForgotten(JobId{6}));
}

TEST_CASE("EndedJobs: the oldest jobs are forgotten, and that is known", "[aggregator]") {
  EndedJobs ended("agg");
  for (uint64_t i = 1; i <= EndedJobs::kJobsMax + 2; ++i) ended.Add(JobId{i}, Epoch{1}, {});
  CHECK_FALSE(ended.EpochOf(JobId{2}).has_value());
  CHECK(ended.IsForgotten(JobId{2}));
  CHECK_FALSE(ended.IsForgotten(JobId{3}));
  CHECK(ended.EpochOf(JobId{3}) == Epoch{1});
}

aggregation::Departed Nodes(uint32_t count) {
  std::vector<view::ViewMember> members;
  for (uint32_t node = 0; node < count; ++node) {
    members.push_back({.id = {NodeRank{node}, Incarnation{7}}, .rank_count = 1});
  }
  aggregation::Departed departed;
  departed.Add(members);
  return departed;
}

TEST_CASE("EndedJobs: a job that begins again knows who had departed from it", "[aggregator]") {
  EndedJobs ended("agg");
  ended.Add(JobId{7}, Epoch{3}, Nodes(2));
  const view::MemberIdentity node{NodeRank{1}, Incarnation{7}};
  CHECK(ended.DepartedFrom(JobId{7}).Has(node));
  CHECK_FALSE(ended.DepartedFrom(JobId{8}).Has(node));
  ended.Add(JobId{7}, Epoch{4}, Nodes(1));
  CHECK_FALSE(ended.DepartedFrom(JobId{7}).Has(node));
}

TEST_CASE("EndedJobs: from a job whose members are forgotten, everybody has departed",
          "[aggregator]") {
  constexpr uint32_t kEach = aggregation::Departed::kMembersMax;
  constexpr uint64_t kKept = EndedJobs::kDepartedMax / kEach;
  EndedJobs ended("agg");
  for (uint64_t job = 1; job <= kKept; ++job) ended.Add(JobId{job}, Epoch{1}, Nodes(kEach));
  CHECK_FALSE(ended.DepartedFrom(JobId{1}).is_everybody());
  ended.Add(JobId{kKept + 1}, Epoch{1}, Nodes(1));
  CHECK(ended.DepartedFrom(JobId{1}).is_everybody());
  CHECK(ended.DepartedFrom(JobId{2}).size() == kEach);
  CHECK(ended.DepartedFrom(JobId{kKept + 1}).size() == 1);
}

}  // namespace
}  // namespace talweg::aggregator
