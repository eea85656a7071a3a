// SPDX-License-Identifier: Apache-2.0
//
// The .proto files against golden/proto.txt, which has what they were. A process of another release
// reads a renumbered or retyped field wrongly, and says nothing. After a change that only adds, or
// that reserves a number, write the file anew:
//   TALWEG_GOLDEN_OUT=$PWD/tests/compat/golden bazel run //tests/compat:proto_golden_test
#include <cstdlib>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>
#include <google/protobuf/descriptor.pb.h>

#include "proto/config/config.pb.h"
#include "proto/talweg/agent/v1/agent.pb.h"
#include "proto/talweg/aggregator/v1/aggregator.pb.h"
#include "proto/talweg/scheduler/v1/admin.pb.h"
#include "proto/talweg/scheduler/v1/membership.pb.h"
#include "proto/talweg/scheduler/v1/pool.pb.h"
#include "proto/talweg/scheduler/v1/scheduler.pb.h"
#include "proto/talweg/scheduler/v1/sealed.pb.h"
#include "tests/compat/proto_surface.h"

namespace talweg {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptorProto;
using google::protobuf::FileDescriptorProto;

ProtoSurface Read() {
  ProtoSurface golden;
  std::ifstream in("tests/compat/golden/proto.txt");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) golden[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return golden;
}

// The files that define these messages.
template <typename... Message>
ProtoSurface SurfaceOf() {
  ProtoSurface surface;
  (AddFile(*Message::descriptor()->file(), &surface), ...);
  return surface;
}

TEST_CASE("Proto: no field, enum value or call means another thing than before", "[compat]") {
  const auto now = SurfaceOf<config::v1::SchedulerConfig, agent::v1::GetStatusRequest,
                             aggregator::v1::GetStatusRequest, scheduler::v1::ListJobsRequest,
                             scheduler::v1::JoinRequest, scheduler::v1::RegisterAggregatorRequest,
                             scheduler::v1::MemberId, scheduler::v1::GreetRequest>();
  const ProtoSurface golden = Read();
  for (const std::string& each : Breaks(golden, now)) FAIL_CHECK(each);
  if (const char* directory = std::getenv("TALWEG_GOLDEN_OUT"); directory != nullptr) {
    REQUIRE(Breaks(golden, now).empty());
    std::ofstream out(std::string(directory) + "/proto.txt");
    for (const auto& [key, text] : now) out << key << ": " << text << "\n";
    out.close();
    REQUIRE(out.good());
    return;
  }
  CHECK(golden.size() > 200);
  for (const auto& [key, text] : now) {
    INFO(key << ": " << text << " is not in golden/proto.txt: write that file anew, as above");
    const auto found = golden.find(key);
    CHECK((found != golden.end() && found->second == text));
  }
}

// A message with one field, and the number 7 reserved.
ProtoSurface SurfaceWith(int number, FieldDescriptorProto::Type type, const std::string& name,
                         bool reserves) {
  FileDescriptorProto file;
  file.set_name("x.proto");
  file.set_syntax("proto3");
  auto* message = file.add_message_type();
  message->set_name("X");
  auto* field = message->add_field();
  field->set_name(name);
  field->set_number(number);
  field->set_type(type);
  field->set_label(FieldDescriptorProto::LABEL_OPTIONAL);
  if (reserves) {
    auto* range = message->add_reserved_range();
    range->set_start(7);
    range->set_end(8);
  }
  DescriptorPool pool;
  const auto* built = pool.BuildFile(file);
  REQUIRE(built != nullptr);
  ProtoSurface surface;
  AddFile(*built, &surface);
  return surface;
}

TEST_CASE("Proto: what breaks another release is found", "[compat]") {
  const auto before = SurfaceWith(1, FieldDescriptorProto::TYPE_UINT64, "n", true);
  CHECK(before == ProtoSurface{{"X 1", "uint64 n"}, {"X 7", "reserved"}});
  CHECK(Breaks(before, before).empty());
  SECTION("Another type") {
    const auto now = SurfaceWith(1, FieldDescriptorProto::TYPE_SINT64, "n", true);
    CHECK(Breaks(before, now).size() == 1);
  }
  SECTION("Another number") {
    const auto now = SurfaceWith(2, FieldDescriptorProto::TYPE_UINT64, "n", true);
    CHECK(Breaks(before, now).size() == 1);
  }
  SECTION("Another name, which is what JSON has") {
    const auto now = SurfaceWith(1, FieldDescriptorProto::TYPE_UINT64, "m", true);
    CHECK(Breaks(before, now).size() == 1);
  }
  SECTION("A reserved number that is used again, and the field's own number free") {
    const auto now = SurfaceWith(7, FieldDescriptorProto::TYPE_UINT64, "n", false);
    CHECK(Breaks(before, now).size() == 2);
  }
  SECTION("A reserved number that is free again") {
    const auto now = SurfaceWith(1, FieldDescriptorProto::TYPE_UINT64, "n", false);
    CHECK(Breaks(before, now).size() == 1);
  }
  SECTION("A new field, and one that becomes reserved, break nothing") {
    ProtoSurface now = before;
    now["X 2"] = "string text";
    now["X 1"] = "reserved";
    CHECK(Breaks(before, now).empty());
  }
}

}  // namespace
}  // namespace talweg
