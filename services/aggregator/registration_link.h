// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_REGISTRATION_LINK_H_
#define TALWEG_SERVICES_AGGREGATOR_REGISTRATION_LINK_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "libs/rpc/scheduler_client.h"
#include "services/aggregator/scheduler_link.h"

namespace talweg::aggregator {

// Calls that block, on their way to a thread that may block. Any thread.
class BlockingCalls {
 public:
  void Post(std::function<void()> call);
  // Runs the next call. False: none came in `timeout_ns`, or none comes any more.
  bool RunNext(int64_t timeout_ns);
  // No call is run from now on.
  void Close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  bool closed_ = false;
};

// A SchedulerLink over gRPC.
//
// `post` runs a closure on the data thread; any thread may call it. Drain and Deregister are done
// by whoever runs `calls`, which is over before this object is destroyed.
std::unique_ptr<SchedulerLink> NewRegistrationLink(rpc::SchedulerLinkOptions options,
                                                   std::function<void(std::function<void()>)> post,
                                                   BlockingCalls* calls,
                                                   SchedulerLink::OnEvent on_event);

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_REGISTRATION_LINK_H_
