// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_ATTACKERS_LONE_MEMBER_H_
#define TALWEG_TESTS_ATTACKERS_LONE_MEMBER_H_

#include <cstdint>
#include <future>
#include <string>

#include "libs/base/ids.h"
#include "libs/rpc/scheduler_client.h"
#include "libs/view/view.h"

namespace talweg {

// A member of a job of its own, or one of the members of such a job. An attacker gets keys and a
// view through it. The member stays in the job as long as the object lives; then it is lost.
class LoneMember {
 public:
  // Joins with `setting` as its data_security. The job begins with `members` members, and goes on
  // with one.
  LoneMember(const std::string& scheduler, const std::string& setting, const std::string& job,
             view::MemberIdentity self, uint32_t members = 1);

  // Waits for the first view. Returns whether it has an aggregator; if not, prints why.
  bool WaitForView();
  // The addresses in it have the member's keys of its epoch.
  const view::View& view() const { return view_; }
  // The first aggregator's addresses, with the member's keys of another epoch.
  std::string AddressIn(Epoch epoch) const;
  view::MemberIdentity self() const { return self_; }
  // Ends the job. Returns when the scheduler has answered.
  void Leave();

 private:
  const view::MemberIdentity self_;
  std::promise<view::View> promise_;
  bool is_told_ = false;
  rpc::SchedulerClient client_;
  view::View view_;
  std::string seeds_;  // The first aggregator's addresses, as the scheduler has told them.
};

}  // namespace talweg

#endif  // TALWEG_TESTS_ATTACKERS_LONE_MEMBER_H_
