// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/admin_client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <future>
#include <utility>
#include <vector>

#include "libs/rpc/channel.h"
#include "libs/rpc/sealed_caller.h"
#include "proto/talweg/agent/v1/agent.grpc.pb.h"
#include "proto/talweg/aggregator/v1/aggregator.grpc.pb.h"
#include "proto/talweg/scheduler/v1/admin.grpc.pb.h"

namespace talweg::rpc {
namespace {

constexpr int64_t kBackoffMinNs = 50'000'000;
constexpr int64_t kBackoffMaxNs = 1'000'000'000;

template <typename Service>
class Caller {
 public:
  using Stub = typename Service::Stub;

  Caller(std::string what, Role role, const std::string& address, int64_t timeout_ns,
         std::shared_ptr<const Credentials> credentials)
      : what_(std::move(what)), address_(address), timeout_ns_(timeout_ns) {
    valid_ = CheckAddress(what_, address_);
    if (valid_.ok()) {
      channel_ = MakeChannel({.address = address,
                              .backoff_min_ns = kBackoffMinNs,
                              .backoff_max_ns = kBackoffMaxNs,
                              .credentials = std::move(credentials),
                              .peers = {role}});
      stub_ = Service::NewStub(channel_);
    }
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request) {
    if (!valid_.ok()) return valid_;
    grpc::ClientContext context;
    SetDeadline(context, timeout_ns_);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) return ToAbsl(status, what_, address_);
    return response;
  }

  // For a call that asks for the job secret.
  template <typename Request, typename Response>
  absl::StatusOr<Response> CallSealed(Daemon daemon, const std::string& job_secret,
                                      std::string_view method, const Request& request) {
    if (!valid_.ok()) return valid_;
    SealedCaller caller(daemon, job_secret, channel_, address_);
    grpc::ClientContext greeting;
    SetDeadline(greeting, timeout_ns_);
    if (const grpc::Status greeted = caller.Greet(greeting); !greeted.ok()) {
      return ToAbsl(greeted, what_, address_);
    }
    grpc::ClientContext context;
    SetDeadline(context, timeout_ns_);
    Response response;
    const grpc::Status status = caller.Call(method, context, request, &response, nullptr);
    if (!status.ok()) return ToAbsl(status, what_, address_);
    return response;
  }

  absl::StatusOr<agent::v1::GetTraceResponse> ReadTrace() {
    if (!valid_.ok()) return valid_;
    grpc::ClientContext context;
    SetDeadline(context, timeout_ns_);
    const auto stream = stub_->GetTrace(&context, agent::v1::GetTraceRequest());
    agent::v1::GetTraceResponse whole;
    agent::v1::GetTraceResponse piece;
    while (stream->Read(&piece)) whole.MergeFrom(piece);
    const grpc::Status status = stream->Finish();
    if (!status.ok()) return ToAbsl(status, what_, address_);
    return whole;
  }

 private:
  const std::string what_;
  const std::string address_;
  const int64_t timeout_ns_;
  absl::Status valid_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Stub> stub_;
};

// The wire format of grpc.health.v1, for which the installed headers have no client: one string
// field in the request, one enumeration in the response (1: serving).
std::string EncodeHealthRequest(const std::string& service) {
  std::string bytes;
  if (service.empty()) return bytes;
  bytes.push_back('\x0a');
  size_t length = service.size();
  while (length >= 0x80) {
    bytes.push_back(static_cast<char>(length | 0x80));
    length >>= 7;
  }
  bytes.push_back(static_cast<char>(length));
  return bytes + service;
}

}  // namespace

class SchedulerAdminClient::Impl : public Caller<scheduler::v1::AdminService> {
  using Caller::Caller;
};
class AggregatorAdminClient::Impl : public Caller<aggregator::v1::AdminService> {
  using Caller::Caller;
};
class AgentAdminClient::Impl : public Caller<agent::v1::AdminService> {
  using Caller::Caller;
};

SchedulerAdminClient::SchedulerAdminClient(const std::string& address, int64_t timeout_ns,
                                           std::shared_ptr<const Credentials> credentials)
    : impl_(std::make_unique<Impl>("scheduler", Role::kScheduler, address, timeout_ns,
                                   std::move(credentials))) {}
SchedulerAdminClient::~SchedulerAdminClient() = default;

absl::StatusOr<scheduler::v1::ListJobsResponse> SchedulerAdminClient::ListJobs() {
  return impl_->Call(&scheduler::v1::AdminService::Stub::ListJobs,
                     scheduler::v1::ListJobsRequest());
}
absl::StatusOr<scheduler::v1::GetJobResponse> SchedulerAdminClient::GetJob(
    const scheduler::v1::GetJobRequest& request) {
  return impl_->Call(&scheduler::v1::AdminService::Stub::GetJob, request);
}
absl::StatusOr<scheduler::v1::ListAggregatorsResponse> SchedulerAdminClient::ListAggregators() {
  return impl_->Call(&scheduler::v1::AdminService::Stub::ListAggregators,
                     scheduler::v1::ListAggregatorsRequest());
}
absl::StatusOr<scheduler::v1::GetSchedulerResponse> SchedulerAdminClient::GetScheduler() {
  return impl_->Call(&scheduler::v1::AdminService::Stub::GetScheduler,
                     scheduler::v1::GetSchedulerRequest());
}
absl::StatusOr<scheduler::v1::LowerBeginMembersResponse> SchedulerAdminClient::LowerBeginMembers(
    const scheduler::v1::LowerBeginMembersRequest& request) {
  if (request.job_secret().empty()) {
    return impl_->Call(&scheduler::v1::AdminService::Stub::LowerBeginMembers, request);
  }
  scheduler::v1::LowerBeginMembersRequest sealed = request;
  sealed.clear_job_secret();
  return impl_->CallSealed<scheduler::v1::LowerBeginMembersRequest,
                           scheduler::v1::LowerBeginMembersResponse>(
      Daemon::kScheduler, request.job_secret(),
      "/talweg.scheduler.v1.AdminService/LowerBeginMembers", sealed);
}

AggregatorAdminClient::AggregatorAdminClient(const std::string& address, int64_t timeout_ns,
                                             std::shared_ptr<const Credentials> credentials)
    : impl_(std::make_unique<Impl>("aggregator", Role::kAggregator, address, timeout_ns,
                                   std::move(credentials))) {}
AggregatorAdminClient::~AggregatorAdminClient() = default;

absl::StatusOr<aggregator::v1::GetStatusResponse> AggregatorAdminClient::GetStatus(
    const aggregator::v1::GetStatusRequest& request) {
  return impl_->Call(&aggregator::v1::AdminService::Stub::GetStatus, request);
}

AgentAdminClient::AgentAdminClient(const std::string& address, int64_t timeout_ns,
                                   std::shared_ptr<const Credentials> credentials)
    : impl_(std::make_unique<Impl>("agent", Role::kNode, address, timeout_ns,
                                   std::move(credentials))) {}
AgentAdminClient::~AgentAdminClient() = default;

absl::StatusOr<agent::v1::GetStatusResponse> AgentAdminClient::GetStatus(
    const agent::v1::GetStatusRequest& request) {
  return impl_->Call(&agent::v1::AdminService::Stub::GetStatus, request);
}
absl::Status AgentAdminClient::SetTrace(const agent::v1::SetTraceRequest& request,
                                        const std::string& job_secret) {
  if (job_secret.empty()) {
    return impl_->Call(&agent::v1::AdminService::Stub::SetTrace, request).status();
  }
  return impl_
      ->CallSealed<agent::v1::SetTraceRequest, agent::v1::SetTraceResponse>(
          Daemon::kAgent, job_secret, "/talweg.agent.v1.AdminService/SetTrace", request)
      .status();
}
absl::StatusOr<agent::v1::GetTraceResponse> AgentAdminClient::GetTrace() {
  return impl_->ReadTrace();
}

absl::Status CheckHealth(const std::string& address, const std::string& service, int64_t timeout_ns,
                         std::shared_ptr<const Credentials> credentials) {
  const absl::Status valid = CheckAddress("daemon", address);
  if (!valid.ok()) return valid;
  grpc::GenericStub stub(MakeChannel({.address = address,
                                      .backoff_min_ns = kBackoffMinNs,
                                      .backoff_max_ns = kBackoffMaxNs,
                                      .credentials = std::move(credentials),
                                      .peers = {}}));
  grpc::ClientContext context;
  SetDeadline(context, timeout_ns);
  const grpc::Slice slice(EncodeHealthRequest(service));
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> answered;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&answered](grpc::Status status) { answered.set_value(std::move(status)); });
  const grpc::Status status = answered.get_future().get();
  if (!status.ok()) return ToAbsl(status, "daemon", address);
  std::vector<grpc::Slice> slices;
  response.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& part : slices) {
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  if (bytes == "\x08\x01") return absl::OkStatus();
  return absl::UnavailableError("daemon at " + address + " is not serving" +
                                (service.empty() ? "" : " " + service));
}

}  // namespace talweg::rpc
