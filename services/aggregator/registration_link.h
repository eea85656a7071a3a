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

// A queue of blocking calls for a thread that may block. Any thread may use it.
class BlockingCalls {
 public:
  void Post(std::function<void()> call);
  // Runs the next call. Returns false if none came within `timeout_ns`, or after Close.
  bool RunNext(int64_t timeout_ns);
  // From now on no call runs.
  void Close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  bool closed_ = false;
};

// A SchedulerLink over gRPC.
//
// `post` runs a closure on the data thread; any thread may call it. The thread that runs `calls`
// does Drain and Deregister. It must have stopped before this object is destroyed.
std::unique_ptr<SchedulerLink> NewRegistrationLink(rpc::SchedulerLinkOptions options,
                                                   std::function<void(std::function<void()>)> post,
                                                   BlockingCalls* calls,
                                                   SchedulerLink::OnEvent on_event);

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_REGISTRATION_LINK_H_
