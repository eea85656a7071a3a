// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/scale.h"

#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::sim {
namespace {

ScaleResult Measure(uint32_t members, uint32_t cores, uint32_t aggregators = 4) {
  ScaleResult result =
      MeasureScale({.members = members, .cores = cores, .aggregators = aggregators});
  INFO(result.problem);
  REQUIRE(result.problem.empty());
  return result;
}

void CheckSame(const ScaleEvent& a, const ScaleEvent& b) {
  CHECK(a.scheduler.in == b.scheduler.in);
  CHECK(a.scheduler.out == b.scheduler.out);
  REQUIRE(a.aggregators.size() == b.aggregators.size());
  for (size_t i = 0; i < a.aggregators.size(); ++i) {
    CHECK(a.aggregators[i].in == b.aggregators[i].in);
    CHECK(a.aggregators[i].out == b.aggregators[i].out);
  }
}

// `many` has four times as many members as `few`, and may cost at most about four times as much.
void CheckGrowth(const Traffic& few, const Traffic& many, double bytes_max) {
  CHECK(static_cast<double>(many.messages) <= 4.2 * static_cast<double>(few.messages));
  CHECK(static_cast<double>(many.bytes) <= bytes_max * static_cast<double>(few.bytes));
}

void CheckGrowth(const StationCost& few, const StationCost& many) {
  CheckGrowth(few.in, many.in, 4.2);
  CheckGrowth(few.out, many.out, 4.2);
}

void CheckGrowth(const ScaleEvent& few, const ScaleEvent& many) {
  CheckGrowth(few.scheduler, many.scheduler);
  for (size_t i = 0; i < few.aggregators.size(); ++i) {
    CheckGrowth(few.aggregators[i], many.aggregators[i]);
  }
}

// Returns the average cost of one of them.
StationCost Mean(const std::vector<StationCost>& stations) {
  StationCost mean;
  for (const auto& [each, sum] :
       {std::pair(&StationCost::in, &mean.in), std::pair(&StationCost::out, &mean.out)}) {
    for (const StationCost& station : stations) {
      sum->messages += (station.*each).messages;
      sum->bytes += (station.*each).bytes;
    }
    sum->messages /= stations.size();
    sum->bytes /= stations.size();
  }
  return mean;
}

}  // namespace

TEST_CASE("Scale: stand-ins send as much as cores of members do", "[scale]") {
  const ScaleResult stand_ins = Measure(12, 0);
  const ScaleResult cores = Measure(12, 12);
  CheckSame(stand_ins.loss, cores.loss);
  CheckSame(stand_ins.join, cores.join);
}

TEST_CASE("Scale: the cost of a loss and of a join grows in proportion to the number of members",
          "[scale]") {
  const ScaleResult few = Measure(50, 1);
  const ScaleResult many = Measure(200, 1);
  CheckGrowth(few.loss, many.loss);
  CheckGrowth(few.join, many.join);
}

TEST_CASE("Scale: the cost grows in proportion where there are as many aggregators as members",
          "[scale]") {
  const ScaleResult few = Measure(30, 1, 30);
  const ScaleResult many = Measure(120, 1, 120);
  CheckGrowth(few.loss.scheduler, many.loss.scheduler);
  CheckGrowth(few.join.scheduler, many.join.scheduler);
  // One aggregator decides on each tensor, so the aggregators' costs differ. Their mean counts.
  CheckGrowth(Mean(few.loss.aggregators), Mean(many.loss.aggregators));
  CheckGrowth(Mean(few.join.aggregators), Mean(many.join.aggregators));
}

}  // namespace talweg::sim
