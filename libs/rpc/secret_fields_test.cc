// SPDX-License-Identifier: Apache-2.0
// Which fields of our messages hold a secret, and who may see them.
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include <catch2/catch.hpp>
#include <google/protobuf/descriptor.pb.h>

#include "libs/rpc/authorization.h"
#include "proto/talweg/agent/v1/agent.pb.h"
#include "proto/talweg/aggregator/v1/aggregator.pb.h"
#include "proto/talweg/scheduler/v1/admin.pb.h"
#include "proto/talweg/scheduler/v1/membership.pb.h"
#include "proto/talweg/scheduler/v1/pool.pb.h"
#include "proto/talweg/scheduler/v1/sealed.pb.h"

namespace talweg::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::MethodDescriptor;

enum class Holds {
  kJobSecret,      // From callers of older releases alone: ours never fill it.
  kSessionSecret,  // In a request that is sealed where the caller has a job secret.
  kPublic,         // No secret, in spite of its name.
  kSealed,         // Encrypted with a key that the job secret makes.
  kAddress,        // Has a key in it, which AdminServices leave out (secrets_test).
};

// Each field that may hold a secret, as its name or its type shows.
const std::map<std::string, Holds> kFields = {
    {"scheduler.v1.JoinRequest.job_secret", Holds::kJobSecret},
    {"scheduler.v1.RegisterAggregatorRequest.job_secret", Holds::kJobSecret},
    {"scheduler.v1.LowerBeginMembersRequest.job_secret", Holds::kJobSecret},
    {"scheduler.v1.JoinRequest.session_secret", Holds::kSessionSecret},
    {"scheduler.v1.RenewLeaseRequest.session_secret", Holds::kSessionSecret},
    {"scheduler.v1.WatchViewsRequest.session_secret", Holds::kSessionSecret},
    {"scheduler.v1.ReportLostRequest.session_secret", Holds::kSessionSecret},
    {"scheduler.v1.LeaveRequest.session_secret", Holds::kSessionSecret},
    {"scheduler.v1.QuiescedRequest.session_secret", Holds::kSessionSecret},
    {"scheduler.v1.RegisterAggregatorRequest.session_secret", Holds::kSessionSecret},
    {"scheduler.v1.RenewAggregatorRequest.session_secret", Holds::kSessionSecret},
    {"scheduler.v1.DeregisterAggregatorRequest.session_secret", Holds::kSessionSecret},
    {"scheduler.v1.WatchJobsRequest.session_secret", Holds::kSessionSecret},
    {"scheduler.v1.ViewAggregator.data_address", Holds::kAddress},
    {"aggregator.v1.GetStatusResponse.data_address", Holds::kAddress},
    {"scheduler.v1.GreetRequest.public_key", Holds::kPublic},
    {"scheduler.v1.GreetRequest.nonce", Holds::kPublic},
    {"scheduler.v1.GreetResponse.public_key", Holds::kPublic},
    {"scheduler.v1.GreetResponse.proof", Holds::kPublic},
    {"scheduler.v1.CallRequest.public_key", Holds::kPublic},
    {"scheduler.v1.CallResponse.salt", Holds::kPublic},
    {"scheduler.v1.WatchRequest.public_key", Holds::kPublic},
    {"scheduler.v1.WatchResponse.salt", Holds::kPublic},
    {"scheduler.v1.CallRequest.sealed", Holds::kSealed},
    {"scheduler.v1.CallResponse.sealed", Holds::kSealed},
    {"scheduler.v1.WatchRequest.sealed", Holds::kSealed},
    {"scheduler.v1.WatchResponse.sealed", Holds::kSealed},
};

// Secrets are bytes, or have a name that says so.
bool MayHoldSecret(const FieldDescriptor& field) {
  if (field.type() == FieldDescriptor::TYPE_BYTES) return true;
  constexpr std::array<std::string_view, 12> kWords = {
      "secret",  "password", "token",  "key",   "seed",   "credential",
      "private", "proof",    "cookie", "nonce", "sealed", "data_address"};
  return std::any_of(kWords.begin(), kWords.end(), [&](std::string_view word) {
    return field.name().find(word) != std::string::npos;
  });
}

// Calls `visit` for each field of the message, and of the messages in it.
template <typename Visit>
void Walk(const Descriptor& message, std::set<const Descriptor*>& seen, const Visit& visit) {
  if (!seen.insert(&message).second) return;
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    // A map's entries are named by protobuf: "key" and "value".
    if (!message.options().map_entry()) visit(field);
    if (field.message_type() != nullptr) Walk(*field.message_type(), seen, visit);
  }
}

const MethodDescriptor& MethodOf(std::string_view grpc_name) {
  std::string name(grpc_name.substr(1));
  name[name.find('/')] = '.';
  INFO(name);
  const auto* method = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
  REQUIRE(method != nullptr);
  return *method;
}

std::string NameOfField(const FieldDescriptor& field) {
  return field.full_name().substr(std::string_view("talweg.").size());
}

// The linker leaves out files of which nothing is named.
void NameEveryFile() {
  REQUIRE(agent::v1::GetStatusRequest::descriptor() != nullptr);
  REQUIRE(aggregator::v1::GetStatusRequest::descriptor() != nullptr);
  REQUIRE(scheduler::v1::ListJobsRequest::descriptor() != nullptr);
  REQUIRE(scheduler::v1::JoinRequest::descriptor() != nullptr);
  REQUIRE(scheduler::v1::RegisterAggregatorRequest::descriptor() != nullptr);
  REQUIRE(scheduler::v1::GreetRequest::descriptor() != nullptr);
}

TEST_CASE("Secret fields: every field of a call that may hold a secret is known", "[rpc]") {
  NameEveryFile();
  std::set<std::string> found;
  for (const Rule& rule : Rules()) {
    if (!rule.method.starts_with("/talweg.")) continue;
    const MethodDescriptor& method = MethodOf(rule.method);
    std::set<const Descriptor*> seen;
    const auto visit = [&](const FieldDescriptor& field) {
      if (!MayHoldSecret(field)) return;
      const std::string name = NameOfField(field);
      INFO(name << ", of " << rule.method);
      const auto known = kFields.find(name);
      CHECK(known != kFields.end());
      found.insert(name);
    };
    Walk(*method.input_type(), seen, visit);
    Walk(*method.output_type(), seen, visit);
  }
  for (const auto& [name, holds] : kFields) {
    INFO(name);
    CHECK(found.contains(name));
  }
}

TEST_CASE("Secret fields: an answer holds no secret, and neither does a question of a tool",
          "[rpc]") {
  NameEveryFile();
  for (const Rule& rule : Rules()) {
    if (!rule.method.starts_with("/talweg.")) continue;
    const MethodDescriptor& method = MethodOf(rule.method);
    const bool is_tools = method.service()->name() == "AdminService";
    const auto visit = [&](const FieldDescriptor& field) {
      const auto known = kFields.find(NameOfField(field));
      if (known == kFields.end()) return;
      INFO(known->first << ", of " << rule.method);
      CHECK(known->second != Holds::kSessionSecret);
      // An older launcher lowers the number of members with it.
      const bool is_older = rule.method == "/talweg.scheduler.v1.AdminService/LowerBeginMembers";
      CHECK((known->second != Holds::kJobSecret || is_older));
    };
    std::set<const Descriptor*> seen;
    if (is_tools) Walk(*method.input_type(), seen, visit);
    seen.clear();
    Walk(*method.output_type(), seen, visit);
  }
}

}  // namespace
}  // namespace talweg::rpc
