// SPDX-License-Identifier: Apache-2.0
// An agent's sealed calls, and what whoever answers in its place hears.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/base/test_directory.h"
#include "libs/rpc/admin_client.h"
#include "libs/rpc/admin_service.h"
#include "libs/rpc/credentials.h"
#include "libs/rpc/make_certificates.h"
#include "libs/rpc/sealing.h"
#include "libs/rpc/secret.h"
#include "libs/rpc/server.h"
#include "proto/talweg/agent/v1/agent.grpc.pb.h"
#include "proto/talweg/scheduler/v1/sealed.grpc.pb.h"

namespace talweg::rpc {
namespace {

namespace v1 = scheduler::v1;

constexpr int64_t kTimeoutNs = 60'000'000'000;
constexpr char kSetTrace[] = "/talweg.agent.v1.AdminService/SetTrace";
const std::string kSecret(64, 's');

// An agent that keeps what it is asked.
struct SealedAgent {
  explicit SealedAgent(const std::shared_ptr<const Credentials>& credentials = {}) {
    service = MakeAgentSealedService(
        [this](const agent::v1::SetTraceRequest& request,
               const Done<agent::v1::SetTraceResponse>& done) {
          const std::lock_guard lock(mutex);
          ++calls;
          buffer_bytes = request.buffer_bytes();
          done(agent::v1::SetTraceResponse());
        },
        kSecret, credentials);
    auto started = Server::Start({.credentials = credentials}, {service->service()});
    REQUIRE(started.ok());
    server = *std::move(started);
  }

  std::mutex mutex;
  int calls = 0;
  uint64_t buffer_bytes = 0;
  std::unique_ptr<ServiceHolder> service;
  std::unique_ptr<Server> server;
};

// Answers in an agent's place, and keeps what it is told.
class Impostor final : public v1::SealedService::Service {
 public:
  explicit Impostor(std::string proof) : proof_(std::move(proof)), admin_(this) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    address = "127.0.0.1:" + std::to_string(port);
  }
  ~Impostor() override { server_->Shutdown(); }

  grpc::Status Greet(grpc::ServerContext*, const v1::GreetRequest* request,
                     v1::GreetResponse* response) override {
    Hear(*request);
    response->set_public_key(keys_.public_key());
    response->set_proof(proof_);
    return grpc::Status::OK;
  }
  grpc::Status Call(grpc::ServerContext*, const v1::CallRequest* request,
                    v1::CallResponse*) override {
    return Hear(*request);
  }
  std::string heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

  std::string address;

 private:
  struct Admin final : agent::v1::AdminService::Service {
    explicit Admin(Impostor* impostor) : impostor(impostor) {}
    grpc::Status SetTrace(grpc::ServerContext*, const agent::v1::SetTraceRequest* request,
                          agent::v1::SetTraceResponse*) override {
      return impostor->Hear(*request);
    }
    Impostor* const impostor;
  };

  template <typename Request>
  grpc::Status Hear(const Request& request) {
    const std::lock_guard lock(mutex_);
    heard_ += request.SerializeAsString();
    return grpc::Status::OK;
  }

  const KeyPair keys_;
  const std::string proof_;
  Admin admin_;
  std::mutex mutex_;
  std::string heard_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_CASE("Sealed agent: whoever answers in its place hears a key and a nonce", "[rpc]") {
  Impostor impostor(GENERATE(std::string(), std::string(32, 'p')));
  agent::v1::SetTraceRequest request;
  request.set_buffer_bytes(0x7777777777);
  const absl::Status status =
      AgentAdminClient(impostor.address, kTimeoutNs).SetTrace(request, kSecret);
  CHECK(absl::IsPermissionDenied(status));
  CHECK(impostor.heard().size() == 2 + kPublicKeyBytes + 2 + kNonceBytes);
  CHECK(impostor.heard().find("ssss") == std::string::npos);
}

TEST_CASE("Sealed agent: a call has an effect once, and as it was made", "[rpc]") {
  SealedAgent agent;
  CHECK(AgentAdminClient(agent.server->address(), kTimeoutNs).SetTrace({}, kSecret).ok());
  CHECK(agent.calls == 1);
  const auto stub = v1::SealedService::NewStub(
      grpc::CreateChannel(agent.server->address(), grpc::InsecureChannelCredentials()));
  const KeyPair keys;
  v1::GreetRequest greeting;
  greeting.set_public_key(keys.public_key());
  greeting.set_nonce(NewSecret());
  v1::GreetResponse greeted;
  grpc::ClientContext greets;
  REQUIRE(stub->Greet(&greets, greeting, &greeted).ok());
  const SealedSession session(kSecret, *keys.SharedWith(greeted.public_key()), keys.public_key(),
                              greeted.public_key());
  const auto sealed = [&](uint64_t count, const std::string& method) {
    agent::v1::SetTraceRequest request;
    request.set_buffer_bytes(4096);
    v1::CallRequest call;
    call.set_public_key(keys.public_key());
    call.set_count(count);
    call.set_method(method);
    call.set_sealed(session.SealCall(count, method, request.SerializeAsString()));
    return call;
  };
  const auto send = [&](const v1::CallRequest& call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::CallResponse response;
    return stub->Call(&context, call, &response).error_code();
  };
  const v1::CallRequest call = sealed(1, kSetTrace);
  CHECK(send(call) == grpc::StatusCode::OK);
  CHECK(agent.buffer_bytes == 4096);
  CHECK(send(call) == grpc::StatusCode::ABORTED);
  v1::CallRequest changed = sealed(2, kSetTrace);
  changed.set_count(3);
  CHECK(send(changed) == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(send(sealed(4, "/talweg.agent.v1.AdminService/GetStatus")) ==
        grpc::StatusCode::UNIMPLEMENTED);
  CHECK(agent.calls == 2);
}

TEST_CASE("Sealed agent: with TLS the caller's role must allow the call inside as well", "[rpc]") {
  const TestDirectory directory;
  const auto path = [&](const std::string& name) { return directory.path() + "/" + name; };
  REQUIRE(MakeAuthority(path("ca"), "example.org", 2).ok());
  const auto certify = [&](const std::string& place, const Identity& identity) {
    REQUIRE(MakeCertificate(path("ca"), path(place), {.identity = identity, .life_s = kSecondsADay})
                .ok());
    auto loaded = Credentials::Load({.tls_directory = path(place)});
    REQUIRE(loaded.ok());
    return *std::move(loaded);
  };
  SealedAgent agent(certify("agent", {Role::kNode, "mnist"}));
  const auto ask = [&](const std::string& place, const Identity& identity) {
    return AgentAdminClient(agent.server->address(), kTimeoutNs, certify(place, identity))
        .SetTrace({}, kSecret);
  };
  CHECK(ask("operator", {Role::kOperator, ""}).ok());
  CHECK(agent.calls == 1);
  const absl::Status refused = ask("node", {Role::kNode, "mnist"});
  CHECK(absl::IsPermissionDenied(refused));
  CHECK(std::string(refused.message()).find("SetTrace is for operator") != std::string::npos);
  CHECK(absl::IsPermissionDenied(ask("viewer", {Role::kViewer, ""})));
  CHECK(agent.calls == 1);
}

}  // namespace
}  // namespace talweg::rpc
