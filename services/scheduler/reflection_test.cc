// SPDX-License-Identifier: Apache-2.0
// What a generic tool sees: it has no generated code of the services, only what the server tells of
// them.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/rpc/admin_client.h"
#include "services/scheduler/daemon_testing.h"
#include "services/scheduler/testing.h"

namespace talweg::scheduler {
namespace {

TEST_CASE("Scheduler: health and reflection answer generic tools", "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  CHECK(rpc::CheckHealth(daemon.address(), "", 30 * kSecond).ok());
  CHECK(rpc::CheckHealth(daemon.address(), "talweg.scheduler.v1.AdminService", 30 * kSecond).ok());
  CHECK_FALSE(rpc::CheckHealth(daemon.address(), "no.such.Service", 30 * kSecond).ok());

  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  auto* factory = google::protobuf::MessageFactory::generated_factory();
  const auto* request_type =
      pool->FindMessageTypeByName("grpc.reflection.v1alpha.ServerReflectionRequest");
  const auto* response_type =
      pool->FindMessageTypeByName("grpc.reflection.v1alpha.ServerReflectionResponse");
  REQUIRE(request_type != nullptr);
  REQUIRE(response_type != nullptr);
  grpc::GenericStub stub(grpc::CreateChannel(daemon.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::CompletionQueue queue;
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  REQUIRE(done());
  const auto ask = [&](const std::string& field) {
    const std::unique_ptr<google::protobuf::Message> request(
        factory->GetPrototype(request_type)->New());
    request->GetReflection()->SetString(request.get(), request_type->FindFieldByName(field),
                                        "talweg.scheduler.v1.MembershipService");
    const grpc::Slice slice(request->SerializeAsString());
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    REQUIRE(done());
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    REQUIRE(done());
    std::vector<grpc::Slice> slices;
    REQUIRE(answer.Dump(&slices).ok());
    std::string bytes;
    for (const grpc::Slice& part : slices) {
      bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
    const std::unique_ptr<google::protobuf::Message> response(
        factory->GetPrototype(response_type)->New());
    REQUIRE(response->ParseFromString(bytes));
    return response->DebugString();
  };
  const std::string services = ask("list_services");
  for (const char* service : {"MembershipService", "PoolService", "AdminService"}) {
    CHECK(Contains(services, std::string("talweg.scheduler.v1.") + service));
  }
  CHECK(Contains(services, "grpc.health.v1.Health"));
  CHECK(Contains(ask("file_containing_symbol"), "WatchViews"));
  call->WritesDone(nullptr);
  done();
  grpc::Status status;
  call->Finish(&status, nullptr);
  done();
  queue.Shutdown();
  while (done()) {
  }
}

}  // namespace
}  // namespace talweg::scheduler
