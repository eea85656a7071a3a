// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/attendance.h"

#include <catch2/catch.hpp>

namespace talweg::aggregation {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST_CASE("Attendance: ticks count how long a member has been away", "[aggregation]") {
  Attendance attendance;
  attendance.OnView(2);
  attendance.Enter(MemberIndex{0}, ConnectionId{10});
  attendance.OnTick(100 * kSecond);
  attendance.Leave(MemberIndex{0});
  // It was here at the last tick, so it has been away for less than the time since.
  attendance.OnTick(101 * kSecond);
  CHECK(attendance.members()[0].absent_ns == 0);
  CHECK(attendance.members()[1].absent_ns == kSecond);
  attendance.OnTick(102 * kSecond);
  CHECK(attendance.members()[0].absent_ns == kSecond);
  CHECK(attendance.members()[1].absent_ns == 2 * kSecond);

  attendance.Enter(MemberIndex{0}, ConnectionId{20});
  CHECK(attendance.members()[0].absent_ns == 0);
  CHECK(attendance.ConnectionOf(MemberIndex{0}) == ConnectionId{20});
  attendance.OnTick(103 * kSecond);
  CHECK(attendance.members()[0].absent_ns == 0);
}

TEST_CASE("Attendance: while this process is stopped nobody is absent", "[aggregation]") {
  Attendance attendance;
  attendance.OnView(1);
  attendance.OnTick(100 * kSecond);
  attendance.OnTick(101 * kSecond);
  attendance.OnTick(500 * kSecond);
  CHECK(attendance.members()[0].absent_ns == kSecond + AwakeTime::kGapMaxNs);
}

TEST_CASE("Attendance: a new view begins without anybody", "[aggregation]") {
  Attendance attendance;
  attendance.OnView(1);
  attendance.Enter(MemberIndex{0}, ConnectionId{10});
  attendance.OnView(2);
  CHECK_FALSE(attendance.ConnectionOf(MemberIndex{0}).has_value());
  attendance.Enter(MemberIndex{1}, ConnectionId{11});
  attendance.LeaveAll();
  CHECK_FALSE(attendance.ConnectionOf(MemberIndex{1}).has_value());
}

}  // namespace
}  // namespace talweg::aggregation
