// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_ATTACKERS_LONE_MEMBER_H_
#define TALWEG_TESTS_ATTACKERS_LONE_MEMBER_H_

#include <future>
#include <string>

#include "libs/base/ids.h"
#include "libs/rpc/scheduler_client.h"
#include "libs/view/view.h"

namespace talweg {

// The only member of a job of its own. An attacker gets keys and a view through it. The member
// stays in the job as long as the object lives.
class LoneMember {
 public:
  // Joins with `setting` as its data_security, and waits for its first view.
  LoneMember(const std::string& scheduler, const std::string& setting, const std::string& job,
             view::MemberIdentity self);

  // Returns whether there is a view with an aggregator. If not, the cause has been printed.
  bool is_in() const { return is_in_; }
  const view::View& view() const { return view_; }
  view::MemberIdentity self() const { return self_; }
  // Ends the job. Returns when the scheduler has answered.
  void Leave();

 private:
  const view::MemberIdentity self_;
  std::promise<view::View> promise_;
  bool is_told_ = false;
  rpc::SchedulerClient client_;
  view::View view_;
  bool is_in_ = false;
};

}  // namespace talweg

#endif  // TALWEG_TESTS_ATTACKERS_LONE_MEMBER_H_
