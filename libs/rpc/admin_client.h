// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_ADMIN_CLIENT_H_
#define TALWEG_LIBS_RPC_ADMIN_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/rpc/credentials.h"
#include "proto/talweg/agent/v1/agent.pb.h"
#include "proto/talweg/aggregator/v1/aggregator.pb.h"
#include "proto/talweg/scheduler/v1/admin.pb.h"

// Clients of the daemons' admin services, without gRPC's headers. Every call blocks for at most the
// client's timeout. Errors name the daemon, its address and the remedy. Without credentials there
// is no TLS. Thread-safe.
namespace talweg::rpc {

class SchedulerAdminClient {
 public:
  SchedulerAdminClient(const std::string& address, int64_t timeout_ns,
                       std::shared_ptr<const Credentials> credentials = nullptr);
  ~SchedulerAdminClient();

  absl::StatusOr<scheduler::v1::ListJobsResponse> ListJobs();
  absl::StatusOr<scheduler::v1::GetJobResponse> GetJob(const scheduler::v1::GetJobRequest& request);
  absl::StatusOr<scheduler::v1::ListAggregatorsResponse> ListAggregators();
  absl::StatusOr<scheduler::v1::GetSchedulerResponse> GetScheduler();
  absl::StatusOr<scheduler::v1::LowerBeginMembersResponse> LowerBeginMembers(
      const scheduler::v1::LowerBeginMembersRequest& request);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

class AggregatorAdminClient {
 public:
  AggregatorAdminClient(const std::string& address, int64_t timeout_ns,
                        std::shared_ptr<const Credentials> credentials = nullptr);
  ~AggregatorAdminClient();

  absl::StatusOr<aggregator::v1::GetStatusResponse> GetStatus(
      const aggregator::v1::GetStatusRequest& request);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

class AgentAdminClient {
 public:
  AgentAdminClient(const std::string& address, int64_t timeout_ns,
                   std::shared_ptr<const Credentials> credentials = nullptr);
  ~AgentAdminClient();

  absl::StatusOr<agent::v1::GetStatusResponse> GetStatus(
      const agent::v1::GetStatusRequest& request);
  // Sealed with `job_secret`; "": not sealed, for an agent without one.
  absl::Status SetTrace(const agent::v1::SetTraceRequest& request,
                        const std::string& job_secret = "");
  // Returns all pieces joined.
  absl::StatusOr<agent::v1::GetTraceResponse> GetTrace();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Asks a daemon's health service. Returns OK if `service` serves; "" is the whole daemon.
absl::Status CheckHealth(const std::string& address, const std::string& service, int64_t timeout_ns,
                         std::shared_ptr<const Credentials> credentials = nullptr);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_ADMIN_CLIENT_H_
