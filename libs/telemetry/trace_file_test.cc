// SPDX-License-Identifier: Apache-2.0
#include "libs/telemetry/trace_file.h"

#include <utility>

#include <catch2/catch.hpp>

namespace talweg::telemetry {
namespace {

TEST_CASE("TraceFile: a row for each tensor, whose spans do not overlap", "[telemetry]") {
  TraceFile file("agent \"0\"", 7);
  file.Add(
      {.phase = TracePhase::kPush, .tensor = "w\n", .round = 3, .begin_ns = 1500, .end_ns = 4000});
  file.Add(
      {.phase = TracePhase::kSum, .tensor = "b", .begin_ns = 2000, .end_ns = 2001, .bytes = 64});
  file.Add(
      {.phase = TracePhase::kPull, .tensor = "w\n", .round = 3, .begin_ns = 3000, .end_ns = 5000});
  CHECK(std::move(file).End() ==
        R"({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","name":"process_name","pid":7,"args":{"name":"agent \"0\""}},
{"ph":"M","name":"thread_name","pid":7,"tid":1,"args":{"name":"w\u000a"}},
{"ph":"X","cat":"talweg","name":"push","pid":7,"tid":1,"ts":1.500,"dur":2.500,"args":{"tensor":"w\u000a","round":3,"bytes":0}},
{"ph":"M","name":"thread_name","pid":7,"tid":2,"args":{"name":"b"}},
{"ph":"X","cat":"talweg","name":"sum","pid":7,"tid":2,"ts":2.000,"dur":0.001,"args":{"tensor":"b","round":0,"bytes":64}},
{"ph":"X","cat":"talweg","name":"pull","pid":7,"tid":1,"ts":4.000,"dur":1.000,"args":{"tensor":"w\u000a","round":3,"bytes":0}}
]}
)");
}

TEST_CASE("TraceFile: one without spans is whole", "[telemetry]") {
  CHECK(TraceFile("a", 0).End() == R"({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","name":"process_name","pid":0,"args":{"name":"a"}}
]}
)");
}

}  // namespace
}  // namespace talweg::telemetry
