// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_SCHEDULER_DRIVER_H_
#define TALWEG_SERVICES_SCHEDULER_SCHEDULER_DRIVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/membership/scheduler_core.h"
#include "libs/rpc/version.h"
#include "libs/runtime/clock.h"
#include "libs/store/store.h"
#include "libs/telemetry/log.h"
#include "proto/talweg/scheduler/v1/admin.pb.h"
#include "proto/talweg/scheduler/v1/membership.pb.h"
#include "proto/talweg/scheduler/v1/pool.pb.h"
#include "services/scheduler/watches.h"

namespace talweg::scheduler {

// Passes requests to the scheduler core, and performs the core's effects: first it stores, then it
// tells the streams. Uses the proto messages, but no gRPC.
//
// One owner thread. Blocks while the store syncs.
class SchedulerDriver {
 public:
  SchedulerDriver(const membership::Config& config, const rpc::Version& version,
                  std::unique_ptr<store::Store> store, const runtime::Clock* clock,
                  std::function<void(const absl::Status&)> on_failure);

  // Loads the store, and continues from its state.
  absl::Status Open();
  void SetAddress(const std::string& address) { address_ = address; }
  // From then on agents that join and aggregators that register must show `secret`. Empty: they
  // need none.
  void SetJobSecret(const std::string& secret);
  // From then on refuses agents and aggregators with another data_security: "none", "keyed" or
  // "tls". "any": refuses none.
  void SetDataSecurity(const std::string& data_security) { data_security_ = data_security; }

  absl::Status Join(const v1::JoinRequest& request, v1::JoinResponse* response);
  absl::Status RenewLease(const v1::RenewLeaseRequest& request, v1::RenewLeaseResponse* response);
  absl::Status Leave(const v1::LeaveRequest& request, v1::LeaveResponse* response);
  absl::Status ReportLost(const v1::ReportLostRequest& request, v1::ReportLostResponse* response);
  absl::Status Quiesced(const v1::QuiescedRequest& request, v1::QuiescedResponse* response);
  // Ends the stream if the caller is refused.
  void WatchViews(membership::StreamId id, const std::shared_ptr<MemberStream>& stream,
                  const v1::WatchViewsRequest& request);

  absl::Status RegisterAggregator(const v1::RegisterAggregatorRequest& request,
                                  v1::RegisterAggregatorResponse* response);
  absl::Status RenewAggregator(const v1::RenewAggregatorRequest& request,
                               v1::RenewAggregatorResponse* response);
  absl::Status DeregisterAggregator(const v1::DeregisterAggregatorRequest& request,
                                    v1::DeregisterAggregatorResponse* response);
  void WatchJobs(membership::StreamId id, const std::shared_ptr<AggregatorStream>& stream,
                 const v1::WatchJobsRequest& request);

  absl::Status ListJobs(const v1::ListJobsRequest& request, v1::ListJobsResponse* response);
  absl::Status GetJob(const v1::GetJobRequest& request, v1::GetJobResponse* response);
  absl::Status LowerBeginMembers(const v1::LowerBeginMembersRequest& request,
                                 v1::LowerBeginMembersResponse* response);
  absl::Status ListAggregators(const v1::ListAggregatorsRequest& request,
                               v1::ListAggregatorsResponse* response);
  absl::Status GetScheduler(const v1::GetSchedulerRequest& request,
                            v1::GetSchedulerResponse* response);

  // `shut_out`: see SchedulerCore::OnStreamBroken.
  void OnStreamBroken(membership::StreamId id, const std::string& shut_out);
  // The peer has taken the message that was sent last on this stream.
  void OnStreamSent(membership::StreamId id) { watches_.OnSent(id, clock_->NowNs()); }
  // Replaces the rules.
  void SetQuotas(membership::Quotas quotas);
  void OnTick();
  // Ends all streams. No member or aggregator is lost. The core must not be used after that.
  void EndStreams(const absl::Status& status);

 private:
  // Runs one event of the scheduler core, and performs its effects. Fails if the store does.
  template <typename Event>
  absl::Status Do(const Event& event);
  class Performer;
  absl::Status Perform(const std::vector<membership::Effect>& effects);
  absl::Status Persist(const membership::StoreWrite& write);
  absl::Status ToStatus(const membership::Answer& answer);
  absl::Status CheckJobSecret(std::string_view method, const std::string& shown,
                              const std::string& who);
  // Returns OK if the secrets in `request` are right, else an error that names `who`.
  template <typename Request>
  absl::Status CheckSecrets(std::string_view method, const Request& request,
                            const std::string& who);
  // `shown`: the data_security of `who`. "": it has named none.
  absl::Status CheckDataSecurity(const std::string& shown, const std::string& who);
  absl::Status CheckVersion(const v1::ProtocolVersion& theirs, const std::string& who);
  google::protobuf::Duration Lease() const;

  const membership::Config config_;
  const rpc::Version version_;
  const std::unique_ptr<store::Store> store_;
  const runtime::Clock* const clock_;
  const std::function<void(const absl::Status&)> on_failure_;
  std::optional<membership::SchedulerCore> membership_;
  std::optional<membership::SecretHash> job_secret_;
  std::string data_security_ = "any";
  absl::Status failed_;  // The store's failure. After that the driver does nothing.
  Watches watches_;

  // For GetScheduler.
  std::string address_;
  const int64_t started_ns_;
  const int64_t started_unix_ns_;
  uint64_t store_write_count_ = 0;
  int64_t store_write_max_ns_ = 0;
  telemetry::BoundedLog refusals_;  // Callers without a secret cause them.
  std::map<std::string, uint64_t> refused_by_code_;
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_SCHEDULER_DRIVER_H_
