// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_FRONT_H_
#define TALWEG_SERVICES_SCHEDULER_FRONT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libs/rpc/call_gate.h"
#include "libs/rpc/credentials.h"
#include "services/scheduler/scheduler_driver.h"

namespace grpc {
class Service;
}

namespace talweg::scheduler {

// The gRPC services, without gRPC's headers. Their threads post every request to the core thread.
class Front {
 public:
  // Runs `work` with the driver on the core thread, in the order of the posts. Returns false if it
  // never will, because the daemon is ending.
  using Post = std::function<bool(std::function<void(SchedulerDriver&)> work)>;

  virtual ~Front() = default;
  virtual std::vector<grpc::Service*> services() = 0;
};

// The Front outlives the server of its services. `credentials` and `gate` are the server's.
// `job_secret` "": no call is sealed with one.
std::unique_ptr<Front> MakeFront(Front::Post post,
                                 std::shared_ptr<const rpc::Credentials> credentials,
                                 std::shared_ptr<rpc::CallGate> gate,
                                 const std::string& job_secret);

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_FRONT_H_
