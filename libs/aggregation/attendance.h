// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_ATTENDANCE_H_
#define TALWEG_LIBS_AGGREGATION_ATTENDANCE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "libs/base/awake_time.h"
#include "libs/base/ids.h"

namespace talweg::aggregation {

// A member of the present view.
struct PresentMember {
  std::optional<ConnectionId> connection;  // Active in the present epoch.
  int64_t absent_ns = 0;        // For how long it has had no connection, counted by ticks.
  bool absent_at_tick = false;  // Absent at the last tick.
  bool has_left = false;        // It has said goodbye.
};

// Which members of the present view are here, over which connection; and for how long the others
// have been away.
//
// A pure class. One owner thread. Time in which this process is stopped does not count as absence.
class Attendance {
 public:
  // A new view: nobody is here yet.
  void OnView(size_t member_count) { members_.assign(member_count, {}); }
  // The member enters the present epoch over this connection.
  void Enter(MemberIndex member, ConnectionId connection);
  void Leave(MemberIndex member) { members_[member.value()].connection.reset(); }
  void LeaveAll();
  void OnGoodbye(MemberIndex member) { members_[member.value()].has_left = true; }
  // Call it a few times a second.
  void OnTick(int64_t now_ns);

  const std::vector<PresentMember>& members() const { return members_; }  // By member index.
  const std::optional<ConnectionId>& ConnectionOf(MemberIndex member) const {
    return members_[member.value()].connection;
  }

 private:
  std::vector<PresentMember> members_;
  AwakeTime awake_;  // By ticks.
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_ATTENDANCE_H_
