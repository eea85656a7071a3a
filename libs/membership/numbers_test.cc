// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/numbers.h"

#include <catch2/catch.hpp>

namespace talweg::membership {
namespace {

constexpr int64_t kUnixNs = 1'800'000'000'000'000'000;  // A time in 2027.

view::View ViewOf(Epoch epoch) { return {.job = JobId{5}, .epoch = epoch}; }

TEST_CASE("Numbers: no id is given twice, even over a restart", "[membership]") {
  Turn turn(0);
  Numbers first({}, {}, 0);
  CHECK(first.start_count() == 1);
  CHECK(first.NextJob(turn) == JobId{1});
  CHECK(first.NextJob(turn) == JobId{2});
  CHECK(turn.write.job_next == JobId{3});
  const QuiesceId quiesce = first.NextQuiesce();
  CHECK(quiesce < first.NextQuiesce());

  Numbers second({}, {.start_count = 1, .job_next = JobId{3}}, 0);
  CHECK(second.start_count() == 2);
  CHECK(second.NextJob(turn) == JobId{3});
  CHECK(second.NextQuiesce().value() > quiesce.value() + 1000);
}

TEST_CASE("Numbers: with a clock, numbers are above all that an older store has given",
          "[membership]") {
  Turn turn(0);
  Numbers numbers({.start_unix_ns = kUnixNs}, {}, 0);
  const uint64_t from = NumbersFrom(kUnixNs);
  REQUIRE(from > 0);
  CHECK(numbers.epoch_start() == Epoch{from});
  CHECK(numbers.NextJob(turn) == JobId{from + 1});
  CHECK(numbers.NextQuiesce().value() > from);
}

TEST_CASE("Numbers: an id that somebody holds is not given", "[membership]") {
  Turn turn(0);
  Numbers numbers({}, {.job_next = JobId{3}}, 0);
  numbers.ObserveJob(JobId{2}, turn);
  CHECK_FALSE(turn.write.job_next);
  numbers.ObserveJob(JobId{10}, turn);
  CHECK(turn.write.job_next == JobId{11});
  CHECK(numbers.NextJob(turn) == JobId{11});
}

TEST_CASE("Numbers: an epoch is believed if it can have been given", "[membership]") {
  const Numbers numbers({.start_unix_ns = kUnixNs}, {}, 0);
  LiveJob job{.id = JobId{5}, .name = "j"};
  // A job that began here has given no epoch yet.
  CHECK(numbers.CheckEpoch(job, false, false, Epoch{0}, 0).ok());
  CHECK(numbers.CheckEpoch(job, false, false, Epoch{1}, 0).code == Code::kInvalid);
  // Members that joined here hold no later view than the present one.
  job.view = std::make_shared<const view::View>(ViewOf(Epoch{4}));
  CHECK(numbers.CheckEpoch(job, false, true, Epoch{4}, 0).ok());
  CHECK(numbers.CheckEpoch(job, true, true, Epoch{5}, 0).code == Code::kInvalid);
  // Members from the store may have got later epochs meanwhile, up to a day ahead of this clock.
  job.epoch_stored = Epoch{4};
  const uint64_t day_ns = uint64_t{86'400} * 1'000'000'000;
  const Epoch most{NumbersFrom(kUnixNs) + day_ns};
  CHECK(numbers.CheckEpoch(job, true, true, most, 0).ok());
  CHECK(numbers.CheckEpoch(job, true, true, most.Next(), 0).code == Code::kInvalid);
  CHECK(numbers.CheckJob(JobId{most.value()}, 0).ok());
  CHECK(numbers.CheckJob(JobId{most.value() + 2}, 0).code == Code::kInvalid);
}

}  // namespace
}  // namespace talweg::membership
