// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/test_directory.h"
#include "libs/rpc/conversion.h"
#include "libs/rpc/credentials_access.h"
#include "libs/rpc/make_certificates.h"
#include "libs/rpc/secret.h"
#include "proto/talweg/scheduler/v1/membership.grpc.pb.h"
#include "proto/talweg/scheduler/v1/pool.grpc.pb.h"
#include "services/scheduler/daemon_testing.h"
#include "services/scheduler/testing.h"

namespace talweg::scheduler {
namespace {

using rpc::Role;

constexpr std::array kServers = {Role::kScheduler};

// An authority, and certificates that it has signed.
class Authority {
 public:
  Authority() { REQUIRE(rpc::MakeAuthority(path("ca"), "example.org", 2).ok()); }

  std::shared_ptr<const rpc::Credentials> Certify(Role role, const std::string& name = "") {
    const std::string directory = path("tls" + std::to_string(++count_));
    const absl::Status made = rpc::MakeCertificate(
        path("ca"), directory, {.identity = {role, name}, .life_s = rpc::kSecondsADay});
    INFO(made);
    REQUIRE(made.ok());
    auto loaded = rpc::Credentials::Load({.tls_directory = directory});
    INFO(loaded.status());
    REQUIRE(loaded.ok());
    return *loaded;
  }

 private:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }

  TestDirectory directory_;
  int count_ = 0;
};

// A process with a certificate, and with the session secret of its own place.
struct Caller {
  Caller(const std::string& address, const std::shared_ptr<const rpc::Credentials>& credentials)
      : channel(grpc::CreateChannel(
            address, rpc::CredentialsAccess::Channel(credentials, address, kServers))),
        members(v1::MembershipService::NewStub(channel)),
        pool(v1::PoolService::NewStub(channel)) {}

  template <typename Stub, typename Request, typename Response>
  grpc::Status Call(Stub& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    return (stub.*method)(&context, request, response);
  }
  template <typename Stub, typename Request, typename Response>
  grpc::Status Call(Stub& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request) {
    Response response;
    return Call(stub, method, request, &response);
  }

  // Joins as a node of a job of two. Returns the job's id.
  uint64_t Join(const std::string& job, uint32_t node) {
    const rpc::JoinSpec spec = Spec(node, 2, 2);
    v1::JoinRequest request;
    *request.mutable_version() = rpc::ToProto(rpc::Version{});
    request.set_job_name(job);
    *request.mutable_spec() = rpc::ToProto(spec.spec);
    *request.mutable_id() = rpc::ToProto(spec.member.id);
    request.set_rank_count(1);
    request.set_session_secret(secret);
    v1::JoinResponse response;
    const grpc::Status status =
        Call(*members, &v1::MembershipService::Stub::Join, request, &response);
    INFO(status.error_message());
    REQUIRE(status.ok());
    return response.job_id();
  }

  void Register(const std::string& name, uint64_t incarnation) {
    v1::RegisterAggregatorRequest request;
    *request.mutable_version() = rpc::ToProto(rpc::Version{});
    *request.mutable_aggregator() = rpc::ToProto(view::ViewAggregator{
        .incarnation = Incarnation{incarnation}, .name = name, .data_address = "fi:tcp://x:1"});
    request.set_session_secret(secret);
    const grpc::Status status = Call(*pool, &v1::PoolService::Stub::RegisterAggregator, request);
    INFO(status.error_message());
    REQUIRE(status.ok());
  }

  template <typename Request>
  Request As(uint64_t job, uint32_t node) {
    Request request;
    request.set_job_id(job);
    *request.mutable_id() = rpc::ToProto(Spec(node, 2, 2).member.id);
    request.set_session_secret(secret);
    return request;
  }

  // Makes each of a member's calls with those ids. Returns the codes.
  std::vector<grpc::StatusCode> SpeakFor(uint64_t job, uint32_t node) {
    using Stub = v1::MembershipService::Stub;
    std::vector<grpc::StatusCode> codes;
    codes.push_back(
        Call(*members, &Stub::RenewLease, As<v1::RenewLeaseRequest>(job, node)).error_code());
    codes.push_back(
        Call(*members, &Stub::Quiesced, As<v1::QuiescedRequest>(job, node)).error_code());
    auto lost = As<v1::ReportLostRequest>(job, node);
    lost.set_rank(node);
    codes.push_back(Call(*members, &Stub::ReportLost, lost).error_code());
    for (const auto reason : {v1::LEAVE_REASON_STOPPED, v1::LEAVE_REASON_FINISHED}) {
      auto leave = As<v1::LeaveRequest>(job, node);
      leave.set_reason(reason);
      codes.push_back(Call(*members, &Stub::Leave, leave).error_code());
    }
    auto watch = As<v1::WatchViewsRequest>(job, node);
    *watch.mutable_version() = rpc::ToProto(rpc::Version{});
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    codes.push_back(members->WatchViews(&context, watch)->Finish().error_code());
    return codes;
  }

  // Makes each of an aggregator's calls with that incarnation.
  std::vector<grpc::StatusCode> SpeakForAggregator(uint64_t incarnation) {
    using Stub = v1::PoolService::Stub;
    std::vector<grpc::StatusCode> codes;
    v1::RenewAggregatorRequest renew;
    renew.set_incarnation(incarnation);
    renew.set_session_secret(secret);
    codes.push_back(Call(*pool, &Stub::RenewAggregator, renew).error_code());
    v1::DeregisterAggregatorRequest deregister;
    deregister.set_incarnation(incarnation);
    deregister.set_leave(true);
    deregister.set_session_secret(secret);
    codes.push_back(Call(*pool, &Stub::DeregisterAggregator, deregister).error_code());
    v1::WatchJobsRequest watch;
    *watch.mutable_version() = rpc::ToProto(rpc::Version{});
    watch.set_incarnation(incarnation);
    watch.set_session_secret(secret);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    codes.push_back(pool->WatchJobs(&context, watch)->Finish().error_code());
    return codes;
  }

  const std::string secret = rpc::NewSecret();
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::MembershipService::Stub> members;
  const std::unique_ptr<v1::PoolService::Stub> pool;
};

TEST_CASE("Scheduler: a certificate of another job or node does not speak for a member",
          "[scheduler]") {
  Authority authority;
  SchedulerOptions options;
  options.server.credentials = authority.Certify(Role::kScheduler);
  const Daemon daemon(store::MakeMemoryStore(), options);
  const auto certificate = authority.Certify(Role::kNode, "mnist");
  Caller victim(daemon.address(), certificate);
  const uint64_t job = victim.Join("mnist", 0);
  const std::vector<grpc::StatusCode> denied(6, grpc::StatusCode::PERMISSION_DENIED);

  // Another node of the job, with the same certificate.
  Caller neighbour(daemon.address(), certificate);
  REQUIRE(neighbour.Join("mnist", 1) == job);
  CHECK(neighbour.SpeakFor(job, 0) == denied);
  // A node of another job, with the same rank and incarnation there.
  Caller other(daemon.address(), authority.Certify(Role::kNode, "other"));
  REQUIRE(other.Join("other", 0) != job);
  CHECK(other.SpeakFor(job, 0) == denied);
  // One that has joined nothing, of another job, or of any.
  CHECK(Caller(daemon.address(), authority.Certify(Role::kNode, "third")).SpeakFor(job, 0) ==
        denied);
  CHECK(Caller(daemon.address(), authority.Certify(Role::kNode, "*")).SpeakFor(job, 0) == denied);
  // Other roles may not even ask.
  for (const Role role : {Role::kViewer, Role::kOperator}) {
    CHECK(Caller(daemon.address(), authority.Certify(role)).SpeakFor(job, 0) == denied);
  }
  CHECK(Caller(daemon.address(), authority.Certify(Role::kAggregator, "a0")).SpeakFor(job, 0) ==
        denied);

  // Nobody is lost. Each speaks for itself.
  for (const auto& [caller, node] : {std::pair(&victim, 0U), std::pair(&neighbour, 1U)}) {
    const auto renew = caller->As<v1::RenewLeaseRequest>(job, node);
    CHECK(caller->Call(*caller->members, &v1::MembershipService::Stub::RenewLease, renew).ok());
  }
}

TEST_CASE("Scheduler: a certificate of another name does not speak for an aggregator",
          "[scheduler]") {
  Authority authority;
  SchedulerOptions options;
  options.server.credentials = authority.Certify(Role::kScheduler);
  const Daemon daemon(store::MakeMemoryStore(), options);
  Caller victim(daemon.address(), authority.Certify(Role::kAggregator, "a0"));
  victim.Register("a0", 200);
  Caller other(daemon.address(), authority.Certify(Role::kAggregator, "b0"));
  other.Register("b0", 201);
  const std::vector<grpc::StatusCode> denied(3, grpc::StatusCode::PERMISSION_DENIED);
  CHECK(other.SpeakForAggregator(200) == denied);
  CHECK(
      Caller(daemon.address(), authority.Certify(Role::kAggregator, "*")).SpeakForAggregator(200) ==
      denied);
  CHECK(Caller(daemon.address(), authority.Certify(Role::kNode, "mnist")).SpeakForAggregator(200) ==
        denied);
  v1::RenewAggregatorRequest renew;
  renew.set_incarnation(200);
  renew.set_session_secret(victim.secret);
  CHECK(victim.Call(*victim.pool, &v1::PoolService::Stub::RenewAggregator, renew).ok());
}

TEST_CASE("Scheduler: a sealed call is for those who may make the call inside", "[scheduler]") {
  Authority authority;
  SchedulerOptions options;
  options.job_secret = std::string(64, 's');
  options.server.credentials = authority.Certify(Role::kScheduler);
  const Daemon daemon(store::MakeMemoryStore(), options);
  rpc::SchedulerLinkOptions link = Link(daemon.address());
  link.job_secret = options.job_secret;
  for (const auto& [role, name, why] :
       {std::tuple(Role::kAggregator, "a0", "Join is for node"),
        std::tuple(Role::kOperator, "", "Join is for node"),
        std::tuple(Role::kViewer, "", "Greet is for aggregator or node or operator"),
        std::tuple(Role::kNode, "another", "may not act as node of job 'mnist'")}) {
    link.credentials = authority.Certify(role, name);
    TestMember stranger(link, Spec(0, 1, 1));
    const absl::Status status = stranger.Refusal();
    CHECK(status.code() == absl::StatusCode::kPermissionDenied);
    CHECK(Contains(Message(status), why));
  }
  link.credentials = authority.Certify(Role::kNode, "mnist");
  {
    Events<rpc::AggregatorEvent> events;
    rpc::AggregatorRegistration pool(
        link, [&](rpc::AggregatorEvent event) { events.Put(std::move(event)); });
    pool.Register({.incarnation = Incarnation{200},
                   .name = "a0",
                   .data_address = "fi:tcp://x:1",
                   .host_id = "h"});
    CHECK(Contains(Message(events.Next<rpc::RegistrationRefused>().status),
                   "RegisterAggregator is for aggregator"));
  }
  TestMember member(link, Spec(0, 1, 1));
  member.events.Next<rpc::ViewPublished>();
}

}  // namespace
}  // namespace talweg::scheduler
