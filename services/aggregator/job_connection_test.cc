// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/job_connection.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "libs/runtime/manual_clock.h"
#include "libs/transport/loopback/loopback_transport.h"

namespace talweg::aggregator {
namespace {

using wire::FrameType;

constexpr ConnectionId kId{10};
constexpr uint32_t kResultBytes = 64 * kKiB;

// Keeps in order what is posted.
class PostedTransport final : public transport::Transport {
 public:
  absl::StatusOr<std::string> Listen(const transport::ListenSpec&) override { return "here"; }
  absl::StatusOr<ConnectionId> Connect(const std::string&) override { return ConnectionId{1}; }
  void Close(ConnectionId) override {}
  absl::StatusOr<transport::Region> Register(std::span<std::byte>) override {
    return transport::Region();
  }
  transport::PostResult PostWrite(ConnectionId, transport::RegionSlice, wire::RemoteRef,
                                  uint64_t context) override {
    posted.push_back("write " + std::to_string(context));
    return transport::PostResult::kPosted;
  }
  transport::PostResult PostFrame(ConnectionId, std::vector<std::byte> bytes) override {
    const wire::Header header = std::get<wire::Frame>(wire::ParseFrame(bytes)).header;
    frame_bytes += bytes.size();
    posted.push_back(std::string(wire::FrameTypeName(header.type)) +
                     (header.credit_bytes > 0 ? " +" + std::to_string(header.credit_bytes) : ""));
    return transport::PostResult::kPosted;
  }
  int Poll(transport::EventSink&, int) override { return 0; }
  int WaitDescriptor() const override { return -1; }
  bool PrepareToSleep() override { return true; }
  uint64_t PendingBytes(ConnectionId) const override { return pending_bytes; }

  std::vector<std::string> posted;
  uint64_t frame_bytes = 0;  // The sum over all posted frames.
  uint64_t pending_bytes = 0;
};

struct Fixture {
  explicit Fixture(uint64_t window_bytes = aggregation::ResultQueue::kNoWindow,
                   const std::string& host = "")
      : connection(
            {.id = kId,
             .job = JobId{1},
             .peer = {.host = host},
             .results_window_bytes = window_bytes},
            {.transport = &transport, .clock = &clock, .totals = &totals, .unflushed = &unflushed},
            &credit) {}

  void SendWritten(uint64_t write) {
    connection.SendResult({.connection = kId,
                           .epoch = Epoch{1},
                           .entry = {.length_bytes = kResultBytes, .form = wire::Form::kWritten},
                           .travel_bytes = kResultBytes,
                           .write = aggregation::WriteId{write}},
                          memory);
  }
  // Returns what was posted since the last call.
  std::vector<std::string> Posted() {
    connection.Flush(Epoch{1}, 0);
    return std::exchange(transport.posted, {});
  }

  PostedTransport transport;
  runtime::ManualClock clock;
  DataPlaneTotals totals;
  std::vector<ConnectionId> unflushed;
  // Another job is there, too.
  void Share() { other.emplace(JobId{2}, &lane); }
  void GiveBack() {
    SharedLink::Turn* const turn = credit.turn();
    link.Settle({&turn, 1}, 0);
    credit.GiveBack([this](ConnectionId, uint64_t bytes) { connection.GiveCredit(bytes); });
  }

  SharedLink link;
  SharedLink::Lane lane{&link, [] {}};
  HeldCredit credit{JobId{1}, &lane};
  std::optional<HeldCredit> other;
  std::unique_ptr<transport::LoopbackNetwork> network = transport::NewLoopbackNetwork();
  std::unique_ptr<transport::Transport> memory_transport = network->NewTransport();
  SlotPool pool{memory_transport.get(), &AnonymousMemory()};
  SlotMemory memory = pool.Allocate(kResultBytes);
  JobConnection connection;
};

TEST_CASE("JobConnection: a result is written before it is announced", "[aggregator]") {
  Fixture f;
  f.SendWritten(1);
  CHECK(f.unflushed == std::vector{kId});
  CHECK(f.Posted() == std::vector<std::string>{"write 1", "Result"});
  CHECK(f.connection.OnWritten(1));
  CHECK_FALSE(f.connection.OnWritten(1));
  CHECK(f.totals.sent_bytes == f.connection.traffic().sent_bytes);
}

TEST_CASE("JobConnection: results past the window wait, and leave before a FenceAck",
          "[aggregator]") {
  Fixture f(kResultBytes);
  f.SendWritten(1);
  f.SendWritten(2);
  f.SendWritten(3);
  CHECK(f.totals.results_queued == 2);
  CHECK(f.Posted() == std::vector<std::string>{"write 1", "Result"});
  CHECK_FALSE(f.connection.OnWritten(2));  // Write 2 still waits.
  CHECK(f.connection.OnWritten(1));
  CHECK(f.Posted() == std::vector<std::string>{"write 2", "Result"});
  f.connection.Say({.connection = kId, .epoch = Epoch{2}, .entry = wire::FenceAck{}});
  CHECK(f.totals.results_hurried == 1);
  CHECK(f.Posted() == std::vector<std::string>{"write 3", "Result", "FenceAck"});
}

TEST_CASE("JobConnection: credit comes back at once, or waits where jobs share the link",
          "[aggregator]") {
  SECTION("The job has a link of its own") {
    Fixture f(aggregation::ResultQueue::kNoWindow, "10.0.0.1");
    f.connection.ReturnCredit(100);
    CHECK(f.Posted() == std::vector<std::string>{"Credit +100"});
  }
  SECTION("The jobs share a link") {
    Fixture f(aggregation::ResultQueue::kNoWindow, "10.0.0.1");
    f.Share();
    f.connection.ReturnCredit(100);
    CHECK(f.Posted().empty());
    f.GiveBack();
    CHECK(f.Posted() == std::vector<std::string>{"Credit +100"});
    // Nothing is in flight after a Welcome.
    f.connection.ReturnCredit(100);
    f.connection.Say({.connection = kId, .epoch = Epoch{1}, .entry = wire::Welcome{}});
    f.GiveBack();
    CHECK(f.Posted() == std::vector<std::string>{"Welcome"});
  }
  SECTION("The link is this machine's memory") {
    Fixture f;
    f.Share();
    f.connection.ReturnCredit(100);
    CHECK(f.Posted() == std::vector<std::string>{"Credit +100"});
  }
}

TEST_CASE("JobConnection: its job wants the link as long as results are being written",
          "[aggregator]") {
  Fixture f(aggregation::ResultQueue::kNoWindow, "10.0.0.1");
  f.Share();
  f.SendWritten(1);
  f.GiveBack();
  CHECK(f.link.PartOf(JobId{1}) > 0);
  SECTION("The result is written") { f.connection.OnWritten(1); }
  SECTION("The connection is over") { f.connection.End(); }
  f.GiveBack();
  CHECK(f.link.PartOf(JobId{1}) == 0);
}

TEST_CASE("JobConnection: it knows how many bytes of frames wait", "[aggregator]") {
  Fixture f;
  const auto fail = [&f] {
    f.connection.Say({.connection = kId, .epoch = Epoch{1}, .entry = wire::Failed{.text = "no"}});
    f.Posted();
  };
  fail();
  const uint64_t each = f.transport.frame_bytes;
  // Nothing has left: the frame, a result, and another frame with the result's own.
  f.transport.pending_bytes = kGiB;
  f.SendWritten(1);
  fail();
  const uint64_t frames = f.transport.frame_bytes;
  f.transport.pending_bytes = frames + kResultBytes;
  CHECK(f.connection.HasMoreFramesThan(frames - 1));
  CHECK_FALSE(f.connection.HasMoreFramesThan(frames));
  // The first frame has left, and half of the result.
  f.transport.pending_bytes = frames - each + kResultBytes / 2;
  CHECK(f.connection.HasMoreFramesThan(frames - each - 1));
  CHECK_FALSE(f.connection.HasMoreFramesThan(frames - each));
  f.transport.pending_bytes = 0;
  CHECK_FALSE(f.connection.HasMoreFramesThan(0));
}

}  // namespace
}  // namespace talweg::aggregator
