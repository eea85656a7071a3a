// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/front.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "proto/talweg/scheduler/v1/admin.grpc.pb.h"
#include "proto/talweg/scheduler/v1/membership.grpc.pb.h"
#include "proto/talweg/scheduler/v1/pool.grpc.pb.h"
#include "services/scheduler/front_gate.h"
#include "services/scheduler/sealed_service.h"

namespace talweg::scheduler {
namespace {

class MembershipService final : public v1::MembershipService::CallbackService {
 public:
  explicit MembershipService(Gate* gate) : gate_(gate) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::Join);
  }
  grpc::ServerUnaryReactor* RenewLease(grpc::CallbackServerContext* context,
                                       const v1::RenewLeaseRequest* request,
                                       v1::RenewLeaseResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::RenewLease);
  }
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request,
                                  v1::LeaveResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::Leave);
  }
  grpc::ServerUnaryReactor* ReportLost(grpc::CallbackServerContext* context,
                                       const v1::ReportLostRequest* request,
                                       v1::ReportLostResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::ReportLost);
  }
  grpc::ServerUnaryReactor* Quiesced(grpc::CallbackServerContext* context,
                                     const v1::QuiescedRequest* request,
                                     v1::QuiescedResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::Quiesced);
  }
  grpc::ServerWriteReactor<v1::WatchViewsResponse>* WatchViews(
      grpc::CallbackServerContext* context, const v1::WatchViewsRequest* request) override {
    return gate_->Watch(context, request, &SchedulerDriver::WatchViews);
  }

 private:
  Gate* const gate_;
};

class PoolService final : public v1::PoolService::CallbackService {
 public:
  explicit PoolService(Gate* gate) : gate_(gate) {}

  grpc::ServerUnaryReactor* RegisterAggregator(grpc::CallbackServerContext* context,
                                               const v1::RegisterAggregatorRequest* request,
                                               v1::RegisterAggregatorResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::RegisterAggregator);
  }
  grpc::ServerUnaryReactor* RenewAggregator(grpc::CallbackServerContext* context,
                                            const v1::RenewAggregatorRequest* request,
                                            v1::RenewAggregatorResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::RenewAggregator);
  }
  grpc::ServerUnaryReactor* DeregisterAggregator(
      grpc::CallbackServerContext* context, const v1::DeregisterAggregatorRequest* request,
      v1::DeregisterAggregatorResponse* response) override {
    return gate_->Answer(context, request, response, &SchedulerDriver::DeregisterAggregator);
  }
  grpc::ServerWriteReactor<v1::WatchJobsResponse>* WatchJobs(
      grpc::CallbackServerContext* context, const v1::WatchJobsRequest* request) override {
    return gate_->Watch(context, request, &SchedulerDriver::WatchJobs);
  }

 private:
  Gate* const gate_;
};

class AdminService final : public v1::AdminService::CallbackService {
 public:
  explicit AdminService(Gate* gate) : gate_(gate) {}

  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    return gate_->Show(context, request, response, &SchedulerDriver::ListJobs);
  }
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override {
    return gate_->Show(context, request, response, &SchedulerDriver::GetJob);
  }
  grpc::ServerUnaryReactor* ListAggregators(grpc::CallbackServerContext* context,
                                            const v1::ListAggregatorsRequest* request,
                                            v1::ListAggregatorsResponse* response) override {
    return gate_->Show(context, request, response, &SchedulerDriver::ListAggregators);
  }
  grpc::ServerUnaryReactor* GetScheduler(grpc::CallbackServerContext* context,
                                         const v1::GetSchedulerRequest* request,
                                         v1::GetSchedulerResponse* response) override {
    return gate_->Show(context, request, response, &SchedulerDriver::GetScheduler);
  }
  grpc::ServerUnaryReactor* LowerBeginMembers(grpc::CallbackServerContext* context,
                                              const v1::LowerBeginMembersRequest* request,
                                              v1::LowerBeginMembersResponse* response) override {
    return gate_->Show(context, request, response, &SchedulerDriver::LowerBeginMembers);
  }

 private:
  Gate* const gate_;
};

class GrpcFront final : public Front {
 public:
  GrpcFront(Post post, std::shared_ptr<const rpc::Credentials> credentials,
            std::shared_ptr<rpc::CallGate> calls, const std::string& job_secret)
      : gate_(std::move(post), std::move(credentials), std::move(calls)),
        membership_(&gate_),
        pool_(&gate_),
        admin_(&gate_),
        sealed_(&gate_, job_secret) {}

  std::vector<grpc::Service*> services() override {
    return {&membership_, &pool_, &admin_, &sealed_};
  }

 private:
  Gate gate_;
  MembershipService membership_;
  PoolService pool_;
  AdminService admin_;
  SealedService sealed_;
};

}  // namespace

std::unique_ptr<Front> MakeFront(Front::Post post,
                                 std::shared_ptr<const rpc::Credentials> credentials,
                                 std::shared_ptr<rpc::CallGate> gate,
                                 const std::string& job_secret) {
  return std::make_unique<GrpcFront>(std::move(post), std::move(credentials), std::move(gate),
                                     job_secret);
}

}  // namespace talweg::scheduler
