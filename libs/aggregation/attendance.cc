// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/attendance.h"

#include <utility>

namespace talweg::aggregation {

void Attendance::Enter(MemberIndex member, ConnectionId connection) {
  members_[member.value()] = {.connection = connection};
}

void Attendance::LeaveAll() {
  for (PresentMember& member : members_) member.connection.reset();
}

void Attendance::OnTick(int64_t now_ns) {
  const int64_t gone_ns = awake_.Take(now_ns);
  for (PresentMember& member : members_) {
    // A member that was here at the last tick has been away for less than the time since.
    const bool was_absent = std::exchange(member.absent_at_tick, !member.connection);
    if (was_absent && member.absent_at_tick) {
      member.absent_ns += gone_ns;
    }
  }
}

}  // namespace talweg::aggregation
