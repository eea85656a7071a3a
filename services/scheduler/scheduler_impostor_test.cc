// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/base/test_directory.h"
#include "libs/rpc/admin_client.h"
#include "libs/rpc/scheduler_client.h"
#include "libs/rpc/sealing.h"
#include "libs/rpc/secret.h"
#include "libs/store/store.h"
#include "proto/talweg/scheduler/v1/admin.grpc.pb.h"
#include "proto/talweg/scheduler/v1/membership.grpc.pb.h"
#include "proto/talweg/scheduler/v1/pool.grpc.pb.h"
#include "proto/talweg/scheduler/v1/sealed.grpc.pb.h"
#include "services/scheduler/daemon_testing.h"
#include "services/scheduler/testing.h"

// Somebody who does not know the job secret has the scheduler's address.
namespace talweg::scheduler {
namespace {

const std::string kSecret(64, 's');

// Answers as it likes, and keeps what it is told.
class Impostor {
 public:
  using Proof = std::function<grpc::Status(const v1::GreetRequest&, v1::GreetResponse*)>;

  // `address`: where it listens, "127.0.0.1:0" by default.
  explicit Impostor(Proof proof, const std::string& address = "127.0.0.1:0")
      : sealed_(this, std::move(proof)), members_(this), pool_(this), admin_(this) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&sealed_);
    builder.RegisterService(&members_);
    builder.RegisterService(&pool_);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
  }

  const std::string& address() const { return address_; }
  std::string heard() const {
    const std::lock_guard lock(mutex_);
    return heard_;
  }
  int count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  // Waits until it has heard that many requests.
  void WaitFor(int count) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, kPatience, [&] { return count_ >= count; }));
  }

 private:
  template <typename Request>
  grpc::Status Hear(const Request& request) {
    const std::lock_guard lock(mutex_);
    heard_ += request.SerializeAsString();
    ++count_;
    changed_.notify_all();
    return {grpc::StatusCode::FAILED_PRECONDITION, "the impostor puts you out"};
  }

  struct Sealed final : v1::SealedService::Service {
    Sealed(Impostor* impostor, Proof proof) : impostor(impostor), proof(std::move(proof)) {}
    grpc::Status Greet(grpc::ServerContext*, const v1::GreetRequest* request,
                       v1::GreetResponse* response) override {
      impostor->Hear(*request);
      return proof(*request, response);
    }
    grpc::Status Call(grpc::ServerContext*, const v1::CallRequest* request,
                      v1::CallResponse*) override {
      return impostor->Hear(*request);
    }
    grpc::Status Watch(grpc::ServerContext*, const v1::WatchRequest* request,
                       grpc::ServerWriter<v1::WatchResponse>*) override {
      return impostor->Hear(*request);
    }
    Impostor* const impostor;
    const Proof proof;
  };
  struct Members final : v1::MembershipService::Service {
    explicit Members(Impostor* impostor) : impostor(impostor) {}
    grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request,
                      v1::JoinResponse*) override {
      return impostor->Hear(*request);
    }
    grpc::Status RenewLease(grpc::ServerContext*, const v1::RenewLeaseRequest* request,
                            v1::RenewLeaseResponse*) override {
      return impostor->Hear(*request);
    }
    grpc::Status WatchViews(grpc::ServerContext*, const v1::WatchViewsRequest* request,
                            grpc::ServerWriter<v1::WatchViewsResponse>*) override {
      return impostor->Hear(*request);
    }
    Impostor* const impostor;
  };
  struct Pool final : v1::PoolService::Service {
    explicit Pool(Impostor* impostor) : impostor(impostor) {}
    grpc::Status RegisterAggregator(grpc::ServerContext*,
                                    const v1::RegisterAggregatorRequest* request,
                                    v1::RegisterAggregatorResponse*) override {
      return impostor->Hear(*request);
    }
    Impostor* const impostor;
  };
  struct Admin final : v1::AdminService::Service {
    explicit Admin(Impostor* impostor) : impostor(impostor) {}
    grpc::Status LowerBeginMembers(grpc::ServerContext*,
                                   const v1::LowerBeginMembersRequest* request,
                                   v1::LowerBeginMembersResponse*) override {
      return impostor->Hear(*request);
    }
    Impostor* const impostor;
  };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string heard_;
  int count_ = 0;
  Sealed sealed_;
  Members members_;
  Pool pool_;
  Admin admin_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

rpc::SchedulerLinkOptions WithSecret(const std::string& address) {
  rpc::SchedulerLinkOptions link = Link(address);
  link.job_secret = kSecret;
  return link;
}

// Ways to answer Greet without the secret.
grpc::Status NoProof(const v1::GreetRequest&, v1::GreetResponse*) { return grpc::Status::OK; }
grpc::Status Echo(const v1::GreetRequest& request, v1::GreetResponse* response) {
  response->set_public_key(request.public_key());
  response->set_proof(request.nonce());
  return grpc::Status::OK;
}
grpc::Status AnotherSecret(const v1::GreetRequest& request, v1::GreetResponse* response) {
  const rpc::KeyPair own;
  response->set_public_key(own.public_key());
  response->set_proof(rpc::DaemonProof(std::string(64, 't'), {.daemon = rpc::Daemon::kScheduler,
                                                              .caller = request.public_key(),
                                                              .nonce = request.nonce(),
                                                              .public_key = own.public_key()}));
  return grpc::Status::OK;
}
grpc::Status AsAnAgent(const v1::GreetRequest& request, v1::GreetResponse* response) {
  const rpc::KeyPair own;
  response->set_public_key(own.public_key());
  response->set_proof(rpc::DaemonProof(kSecret, {.daemon = rpc::Daemon::kAgent,
                                                 .caller = request.public_key(),
                                                 .nonce = request.nonce(),
                                                 .public_key = own.public_key()}));
  return grpc::Status::OK;
}
grpc::Status AnOlderOne(const v1::GreetRequest&, v1::GreetResponse*) {
  return {grpc::StatusCode::UNIMPLEMENTED, ""};
}

TEST_CASE("Scheduler: whoever has its address and not the job secret is told nothing",
          "[scheduler]") {
  const Impostor::Proof proof = GENERATE(NoProof, Echo, AnotherSecret, AsAnAgent, AnOlderOne);
  Impostor impostor(proof);
  {
    TestMember member(WithSecret(impostor.address()), Spec(0, 1, 1));
    const absl::Status refusal = member.Refusal();
    CHECK((refusal.code() == absl::StatusCode::kPermissionDenied ||
           refusal.code() == absl::StatusCode::kUnimplemented));
    CHECK(Contains(Message(refusal), "job secret"));
    CHECK_FALSE(Contains(Message(refusal), kSecret.substr(0, 8)));
  }
  {
    Events<rpc::AggregatorEvent> events;
    rpc::AggregatorRegistration pool(
        WithSecret(impostor.address()),
        [&](rpc::AggregatorEvent event) { events.Put(std::move(event)); });
    pool.Register({.incarnation = Incarnation{200},
                   .name = "a0",
                   .data_address = "tcp://127.0.0.1:1/keyed/s" + std::string(64, '7'),
                   .host_id = "h"});
    CHECK_FALSE(events.Next<rpc::RegistrationRefused>().status.ok());
  }
  rpc::SchedulerAdminClient launcher(impostor.address(), 30 * kSecond);
  v1::LowerBeginMembersRequest lower;
  lower.set_job_name("mnist");
  lower.set_begin_members(1);
  lower.set_job_secret(kSecret);
  CHECK_FALSE(launcher.LowerBeginMembers(lower).ok());
  // It has heard three greetings: two keys and nonces, and no name.
  CHECK(impostor.count() == 3);
  for (const char* said : {"ssssssss", "77777777", "mnist", "host-0", "a0"}) {
    CHECK_FALSE(Contains(impostor.heard(), said));
  }
  CHECK(impostor.heard().size() == 3 * (2 + rpc::kPublicKeyBytes + 2 + rpc::kNonceBytes));
}

// Asks the true scheduler to prove itself, and hands on the proof.
class Relay {
 public:
  explicit Relay(const std::string& address)
      : stub_(v1::SealedService::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {}

  grpc::Status Greet(const v1::GreetRequest& request, v1::GreetResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    return stub_->Greet(&context, request, response);
  }

 private:
  const std::unique_ptr<v1::SealedService::Stub> stub_;
};

TEST_CASE("Scheduler: whoever hands on its proof reads nothing, and is not believed",
          "[scheduler]") {
  SchedulerOptions options;
  options.job_secret = kSecret;
  const Daemon daemon(store::MakeMemoryStore(), options);
  Relay relay(daemon.address());
  Impostor impostor([&](const v1::GreetRequest& request, v1::GreetResponse* response) {
    return relay.Greet(request, response);
  });
  rpc::SchedulerLinkOptions link = WithSecret(impostor.address());
  link.join_timeout_ns = kSecond / 2;
  TestMember member(link, Spec(0, 1, 1));
  // "The impostor puts you out" is no word of the scheduler.
  const absl::Status refusal = member.Refusal();
  CHECK(refusal.code() == absl::StatusCode::kUnavailable);
  CHECK(Contains(Message(refusal), "has not proven that it knows the job secret"));
  CHECK(impostor.count() >= 2);
  for (const char* said : {"ssssssss", "mnist", "host-0"}) {
    CHECK_FALSE(Contains(impostor.heard(), said));
  }
}

TEST_CASE("Scheduler: an impostor that gets its port for a while puts no member out",
          "[scheduler]") {
  const TestDirectory directory;
  SchedulerOptions options;
  options.job_secret = kSecret;
  const auto open_store = [&] {
    auto store = store::OpenSqliteStore(directory.path() + "/store");
    REQUIRE(store.ok());
    return *std::move(store);
  };
  std::optional<Daemon> daemon(std::in_place, open_store(), options);
  const uint16_t port = daemon->port();
  const std::string address = daemon->address();
  TestMember member(WithSecret(address), Spec(0, 1, 1));
  member.events.Next<rpc::ViewPublished>();

  daemon.reset();
  {
    Impostor impostor(AnotherSecret, address);
    member.events.Next<rpc::Unreachable>();
    impostor.WaitFor(3);
    CHECK_FALSE(Contains(impostor.heard(), "ssssssss"));
    CHECK_FALSE(Contains(impostor.heard(), "mnist"));
  }
  options.server.port_min = port;
  options.server.port_max = port;
  daemon.emplace(open_store(), options);
  member.events.Next<rpc::Reachable>();
  CHECK_FALSE(member.events.Has<rpc::LeaseLost>());
  // It speaks for itself at the scheduler as before.
  CHECK(member.client->Leave(rpc::SchedulerClient::LeaveReason::kFinished, "", 30 * kSecond).ok());
  rpc::SchedulerAdminClient admin(address, 30 * kSecond);
  const auto jobs = admin.ListJobs();
  REQUIRE(jobs.ok());
  CHECK(jobs->jobs(0).state() == v1::JOB_STATE_FINISHED);
}

// Makes sealed calls by hand.
class Sealer {
 public:
  explicit Sealer(const std::string& address)
      : stub_(v1::SealedService::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
    v1::GreetRequest request;
    request.set_public_key(keys_.public_key());
    request.set_nonce(rpc::NewSecret());
    v1::GreetResponse response;
    grpc::ClientContext context;
    REQUIRE(stub_->Greet(&context, request, &response).ok());
    session_.emplace(kSecret, *keys_.SharedWith(response.public_key()), keys_.public_key(),
                     response.public_key());
  }

  template <typename Request>
  v1::CallRequest Sealed(const std::string& method, const Request& request) {
    v1::CallRequest call;
    call.set_public_key(keys_.public_key());
    call.set_count(++count_);
    call.set_method(method);
    call.set_sealed(session_->SealCall(count_, method, request.SerializeAsString()));
    return call;
  }
  grpc::Status Send(const v1::CallRequest& call, v1::Answer* answer = nullptr) {
    v1::CallResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const grpc::Status status = stub_->Call(&context, call, &response);
    if (status.ok() && answer != nullptr) {
      const auto opened =
          session_->AnswersTo(call.count(), response.salt()).Open(response.sealed());
      REQUIRE(opened);
      REQUIRE(answer->ParseFromString(*opened));
    }
    return status;
  }

 private:
  const rpc::KeyPair keys_;
  const std::unique_ptr<v1::SealedService::Stub> stub_;
  std::optional<rpc::SealedSession> session_;
  uint64_t count_ = 0;
};

TEST_CASE("Scheduler: a sealed call has an effect once, in one life, and as it was made",
          "[scheduler]") {
  SchedulerOptions options;
  options.job_secret = kSecret;
  std::optional<Daemon> daemon(std::in_place, store::MakeMemoryStore(), options);
  const std::string kRenew = "/talweg.scheduler.v1.MembershipService/RenewLease";
  std::optional<Sealer> sealer(std::in_place, daemon->address());
  const v1::CallRequest call = sealer->Sealed(kRenew, v1::RenewLeaseRequest());
  v1::Answer answer;
  REQUIRE(sealer->Send(call, &answer).ok());
  CHECK(answer.code() == static_cast<uint32_t>(grpc::StatusCode::NOT_FOUND));
  CHECK(sealer->Send(call).error_code() == grpc::StatusCode::ABORTED);

  const auto denied = [&](const v1::CallRequest& changed) {
    CHECK(sealer->Send(changed).error_code() == grpc::StatusCode::UNAUTHENTICATED);
  };
  v1::CallRequest changed = sealer->Sealed(kRenew, v1::RenewLeaseRequest());
  changed.set_method("/talweg.scheduler.v1.MembershipService/Leave");
  denied(changed);
  changed.set_method(kRenew);
  changed.set_count(changed.count() + 1);
  denied(changed);
  changed.set_public_key(rpc::KeyPair().public_key());
  denied(changed);
  changed.set_public_key(std::string(rpc::kPublicKeyBytes, '\0'));
  denied(changed);
  changed.clear_sealed();
  denied(changed);
  // A method that is not for sealed calls, and bytes that are no request.
  CHECK(sealer->Send(sealer->Sealed("/talweg.scheduler.v1.SealedService/Call", v1::CallRequest()))
            .error_code() == grpc::StatusCode::UNIMPLEMENTED);
  v1::GreetRequest garbage;
  garbage.set_nonce(std::string(100, '\xff'));
  garbage.set_public_key(std::string(100, '\xff'));
  REQUIRE(sealer
              ->Send(sealer->Sealed("/talweg.scheduler.v1.MembershipService/Quiesced", garbage),
                     &answer)
              .ok());
  CHECK(answer.code() != 0);

  const uint16_t port = daemon->port();
  daemon.reset();
  options.server.port_min = port;
  options.server.port_max = port;
  daemon.emplace(store::MakeMemoryStore(), options);
  v1::CallRequest late = call;
  late.set_count(call.count());
  grpc::Status status;
  do {  // gRPC connects again.
    status = sealer->Send(late);
  } while (status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(status.error_code() == grpc::StatusCode::UNAUTHENTICATED);
}

TEST_CASE("Scheduler: without a job secret it says so to a process that has one", "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  TestMember member(WithSecret(daemon.address()), Spec(0, 1, 1));
  const absl::Status refusal = member.Refusal();
  CHECK(refusal.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Contains(Message(refusal), "the scheduler has no job secret"));
  CHECK(Contains(Message(refusal), "--secret_file=none"));
}

}  // namespace
}  // namespace talweg::scheduler
