// SPDX-License-Identifier: Apache-2.0
#include "services/agent/timeline.h"

#include <catch2/catch.hpp>

namespace talweg::agent {
namespace {

constexpr pipeline::TensorIndex kTensor{3};

// A round of one tensor over an aggregator, with an event every 100 ns from `at_ns` on.
void Live(Timeline& timeline, uint64_t round, int64_t at_ns) {
  timeline.OnPushed(kTensor, Round{round}, false, at_ns);
  timeline.OnPushed(kTensor, Round{round}, true, at_ns + 100);
  timeline.OnReduced(kTensor, Round{round}, at_ns + 200, at_ns + 300);
  timeline.OnSent(kTensor, Round{round}, at_ns + 300);
  timeline.OnWriteDone(kTensor, at_ns + 400);
  timeline.OnResult(kTensor, Round{round}, at_ns + 500);
  timeline.OnResult(kTensor, Round{round}, at_ns + 600);
  timeline.OnVisible(kTensor, "w\"\n", Round{round}, 64, at_ns + 700);
}

TEST_CASE("Timeline: a round becomes its phases, end to end", "[agent]") {
  Timeline timeline(2);
  Live(timeline, 1, 1000);
  REQUIRE(timeline.end() == 6);
  struct Expected {
    TracePhase phase;
    int64_t begin_ns;
    int64_t end_ns;
  };
  const std::vector<Expected> expected = {
      {TracePhase::kRanks, 1000, 1100},       {TracePhase::kQueue, 1100, 1200},
      {TracePhase::kLocalReduce, 1200, 1300}, {TracePhase::kPush, 1300, 1400},
      {TracePhase::kSum, 1400, 1500},         {TracePhase::kPull, 1500, 1700}};
  for (size_t i = 0; i < expected.size(); ++i) {
    const TimelineEvent& event = timeline.event(i);
    CHECK(event.phase == expected[i].phase);
    CHECK(event.begin_ns == expected[i].begin_ns);
    CHECK(event.end_ns == expected[i].end_ns);
    CHECK(*event.tensor == "w\"\n");
    CHECK(event.bytes == 64);
  }
}

TEST_CASE("Timeline: a round that has not ended does not pass to another job", "[agent]") {
  Timeline timeline(2);
  timeline.OnPushed(kTensor, Round{1}, true, 100);
  timeline.ForgetOpen();
  Live(timeline, 1, 1000);
  REQUIRE(timeline.end() == 6);
  CHECK(timeline.event(0).begin_ns == 1000);
}

TEST_CASE("Timeline: it keeps only the first rounds, or all while it records", "[agent]") {
  Timeline timeline(2);
  for (uint64_t round = 1; round <= 4; ++round) {
    Live(timeline, round, 1000 * static_cast<int64_t>(round));
  }
  CHECK(timeline.first() == 0);
  CHECK(timeline.end() == 12);
  timeline.Record(true, 8);
  CHECK(timeline.end() == 0);
  Live(timeline, 5, 5000);
  Live(timeline, 6, 6000);
  CHECK(timeline.first() == 4);  // The oldest are dropped, and the others keep their numbers.
  CHECK(timeline.end() == 12);
  CHECK(timeline.event(4).round == Round{5});
  CHECK(timeline.event(11).round == Round{6});
  timeline.Record(false, 8);
  Live(timeline, 7, 7000);
  CHECK(timeline.end() == 12);

  Timeline off(0);
  Live(off, 1, 0);
  CHECK(off.end() == 0);
}

TEST_CASE("Timeline: the JSON names process and rows, in microseconds, with names escaped",
          "[agent]") {
  Timeline timeline(1);
  Live(timeline, 1, 1'000'500);
  const std::string json = timeline.Json("agent", 77);
  CHECK(json.find("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":77,"
                  "\"args\":{\"name\":\"agent\"}}") != std::string::npos);
  CHECK(json.find("\"name\":\"push\",\"pid\":77,\"tid\":1,\"ts\":1000.800,\"dur\":0.100") !=
        std::string::npos);
  CHECK(json.find("w\\\"\\u000a") != std::string::npos);
  CHECK(json.substr(json.size() - 4) == "\n]}\n");
}

}  // namespace
}  // namespace talweg::agent
