// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/watches.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::scheduler {
namespace {

using membership::Attached;
using membership::JobClosed;
using membership::JobFailed;
using membership::JobQuotaChanged;
using membership::JobView;
using membership::MemberLeft;
using membership::Quiesce;
using membership::QuiesceCancelled;
using membership::QuiesceId;
using membership::SharedView;
using membership::StreamId;

constexpr int64_t kSecond = 1'000'000'000;
const WatchLimits kLimits = {};

ViewPointer MakeView(uint64_t epoch, uint32_t members, size_t text_bytes = 20, uint64_t job = 4) {
  view::View view{.job = JobId{job}, .epoch = Epoch{epoch}};
  for (uint32_t node = 0; node < members; ++node) {
    view.members.push_back({.id = {NodeRank{node}, Incarnation{100 + node}},
                            .rank_count = 1,
                            .name = "host",
                            .admin_address = std::string(text_bytes, 'a'),
                            .host_id = std::string(text_bytes, 'h')});
  }
  return std::make_shared<const view::View>(std::move(view));
}

// A stream whose peer takes what it is sent when the test says so.
template <typename Response>
struct FakeStream final : Stream<Response> {
  void Send(Response response) override { sent.push_back(std::move(response)); }
  void End(const absl::Status& status) override { ended = status; }
  void Cut(const std::string& why) override { cut = why; }

  std::vector<Response> sent;
  absl::Status ended;
  std::string cut;
};
using FakeMember = FakeStream<v1::WatchViewsResponse>;
using FakeAggregator = FakeStream<v1::WatchJobsResponse>;

struct Fixture {
  explicit Fixture(const WatchLimits& limits = kLimits) : watches(limits, rpc::Version()) {}

  std::shared_ptr<FakeMember> Member(uint64_t id, bool takes_changes = true, uint64_t job = 4) {
    auto stream = std::make_shared<FakeMember>();
    watches.Open(StreamId{id}, stream,
                 {.member = {NodeRank{0}, Incarnation{100}}, .takes_changes = takes_changes}, job);
    return stream;
  }
  void Tell(uint64_t id, membership::MemberMessage message) {
    watches.Tell(membership::TellMember{StreamId{id}, std::move(message)}, now_ns);
  }
  void TellAggregator(uint64_t id, membership::AggregatorMessage message) {
    watches.Tell(membership::TellAggregator{StreamId{id}, std::move(message)}, now_ns);
  }
  void Sent(uint64_t id) { watches.OnSent(StreamId{id}, now_ns); }

  int64_t now_ns = 0;
  Watches watches;
};

TEST_CASE("Watches: a stream is sent one message at a time", "[scheduler]") {
  Fixture f;
  const auto stream = f.Member(1);
  f.Tell(1, Attached{});
  f.Tell(1, SharedView(MakeView(1, 3)));
  f.Tell(1, JobFailed{"over"});
  CHECK(stream->sent.size() == 1);
  f.Sent(1);
  REQUIRE(stream->sent.size() == 2);
  CHECK(stream->sent[1].view().epoch() == 1);
  f.Sent(1);
  REQUIRE(stream->sent.size() == 3);
  CHECK(stream->sent[2].job_failed().text() == "over");
  f.Sent(1);
  CHECK(f.watches.waiting_bytes() == 0);
}

TEST_CASE("Watches: a newer view takes the place of those that were not sent", "[scheduler]") {
  const bool takes_changes = GENERATE(true, false);
  Fixture f;
  const auto stream = f.Member(1, takes_changes);
  f.Tell(1, SharedView(MakeView(1, 3)));
  f.Tell(1, SharedView(MakeView(2, 4)));
  f.Tell(1, QuiesceCancelled{QuiesceId{6}});
  f.Tell(1, Quiesce{.id = QuiesceId{7}, .joining = {}});
  f.Tell(1, MemberLeft{{NodeRank{2}, Incarnation{102}}, "left"});
  f.Tell(1, SharedView(MakeView(3, 5)));
  f.Tell(1, Quiesce{.id = QuiesceId{8}, .joining = {}});
  for (int i = 0; i < 4; ++i) f.Sent(1);
  REQUIRE(stream->sent.size() == 4);
  CHECK(stream->sent[1].member_left().text() == "left");
  CHECK(stream->sent[3].quiesce().quiesce_id() == 8);
  // The change starts from the view that was sent.
  REQUIRE(stream->sent[2].has_view_change() == takes_changes);
  if (takes_changes) {
    CHECK(stream->sent[2].view_change().base_epoch() == 1);
    CHECK(stream->sent[2].view_change().entered_size() == 2);
  } else {
    CHECK(stream->sent[2].view().members_size() == 5);
  }
}

TEST_CASE("Watches: an aggregator's stream keeps what is newest of each job", "[scheduler]") {
  Fixture f;
  const auto stream = std::make_shared<FakeAggregator>();
  f.watches.Open(StreamId{1}, stream, {.takes_changes = true});
  f.TellAggregator(1, Attached{});
  f.TellAggregator(1, JobView{"bert", SharedView(MakeView(1, 3, 20, 5))});
  f.TellAggregator(1, JobView{"mnist", SharedView(MakeView(1, 3))});
  f.TellAggregator(1, JobQuotaChanged{JobId{4}, {.tenant = "old"}});
  f.TellAggregator(1, JobView{"mnist", SharedView(MakeView(2, 4)), {.tenant = "new"}});
  f.TellAggregator(1, JobQuotaChanged{JobId{5}, {.tenant = "old"}});
  f.TellAggregator(1, JobQuotaChanged{JobId{5}, {.tenant = "new"}});
  for (int i = 0; i < 5; ++i) f.Sent(1);
  REQUIRE(stream->sent.size() == 4);
  CHECK(stream->sent[1].job_view().job_name() == "bert");
  CHECK(stream->sent[2].job_view().view().epoch() == 2);
  CHECK(stream->sent[2].job_view().quota().tenant() == "new");
  CHECK(stream->sent[3].job_quota().quota().tenant() == "new");
  // What came before the end of a job is not sent any more.
  f.TellAggregator(1, JobQuotaChanged{JobId{5}, {}});
  f.TellAggregator(1, JobView{"mnist", SharedView(MakeView(3, 4))});
  f.TellAggregator(1, JobClosed{JobId{4}, "over"});
  f.Sent(1);
  REQUIRE(stream->sent.size() == 6);
  CHECK(stream->sent[5].job_closed().text() == "over");
}

TEST_CASE("Watches: a stream is ended after its messages", "[scheduler]") {
  Fixture f;
  const auto stream = f.Member(1);
  f.Tell(1, JobFailed{"over"});
  f.Tell(1, MemberLeft{{NodeRank{2}, Incarnation{102}}, "left"});
  f.watches.Close(StreamId{1}, absl::AbortedError("replaced"), 0);
  f.Sent(1);
  CHECK(stream->ended.ok());
  f.Sent(1);
  CHECK(stream->sent.size() == 2);
  CHECK(stream->ended == absl::AbortedError("replaced"));
  CHECK(f.watches.waiting_bytes() == 0);
}

TEST_CASE("Watches: a stream that takes nothing for a lease is cut", "[scheduler]") {
  Fixture f;
  const auto stream = f.Member(1);
  const auto other = f.Member(2);
  f.Tell(1, Attached{});
  f.now_ns = kLimits.lease_ns - 1;
  f.watches.OnTick(f.now_ns);
  CHECK(stream->cut.empty());
  f.Tell(2, Attached{});
  f.now_ns = kLimits.lease_ns;
  f.watches.OnTick(f.now_ns);
  CHECK(stream->cut == "it did not read what the scheduler sent it");
  CHECK(other->cut.empty());
  f.Sent(1);  // Too late.
  f.Tell(1, JobFailed{"over"});
  CHECK(stream->sent.size() == 1);
  // One that is to be ended is cut as well.
  f.watches.Close(StreamId{2}, absl::AbortedError("replaced"), f.now_ns);
  f.watches.OnTick(2 * kLimits.lease_ns);
  CHECK_FALSE(other->cut.empty());
  CHECK(f.watches.waiting_bytes() == 0);
}

TEST_CASE("Watches: views of members that read nothing take bounded memory", "[scheduler]") {
  Fixture f;
  const bool takes_changes = GENERATE(true, false);
  // Each view is 2 MB long. All of them together are 2 GB for each epoch.
  constexpr uint64_t kMembers = 1000;
  std::vector<std::shared_ptr<FakeMember>> streams;
  for (uint64_t id = 1; id <= kMembers; ++id) streams.push_back(f.Member(id, takes_changes));
  // Another job goes on.
  const auto honest = f.Member(kMembers + 1, takes_changes, 5);
  const auto hears = [&](uint64_t epoch) {
    const size_t before = honest->sent.size();
    f.Tell(kMembers + 1, SharedView(MakeView(epoch, 10, 20, 5)));
    CHECK(honest->sent.size() == before + 1);
    f.Sent(kMembers + 1);
  };
  for (uint64_t epoch = 1; epoch <= 4; ++epoch) {
    const ViewPointer view = MakeView(epoch, kMembers, 1024);
    for (uint64_t id = 1; id <= kMembers; ++id) f.Tell(id, SharedView(view));
    CHECK(f.watches.waiting_bytes() < kLimits.large_bytes_max + 8 * kMiB);
    hears(epoch);
  }
  // Those that hold the room lose it to others that wait.
  const auto sent_count = [&] {
    size_t count = 0;
    for (const auto& stream : streams) count += stream->sent.size();
    return count;
  };
  const size_t first = sent_count();
  CHECK(first > 10);
  CHECK(first < 40);
  // A long view of another job waits for its turn: that is the next one.
  const auto large = f.Member(kMembers + 2, takes_changes, 6);
  f.Tell(kMembers + 2, SharedView(MakeView(1, 100, 1024, 6)));
  CHECK(large->sent.empty());
  f.now_ns = kLimits.contended_ns;
  f.watches.OnTick(f.now_ns);
  CHECK(f.watches.cut_count() == first);
  CHECK(large->sent.size() == 1);
  CHECK(sent_count() > first);
  CHECK(honest->cut.empty());
  CHECK(f.watches.waiting_bytes() < kLimits.large_bytes_max + 8 * kMiB);
}

TEST_CASE("Watches: members that read get their first views, and 5000 ends", "[scheduler]") {
  Fixture f;
  constexpr uint64_t kMembers = 500;
  std::vector<std::shared_ptr<FakeMember>> streams;
  for (uint64_t id = 1; id <= kMembers; ++id) streams.push_back(f.Member(id));
  // All together are 200 MB.
  const ViewPointer view = MakeView(1, kMembers, 400);
  std::vector<uint64_t> sending;
  uint64_t most = 0;
  // They all are told at once. Then each takes what it was sent.
  for (uint64_t id = 1; id <= kMembers; ++id) f.Tell(id, SharedView(view));
  for (bool some = true; some;) {
    some = false;
    most = std::max(most, f.watches.waiting_bytes());
    for (uint64_t id = 1; id <= kMembers; ++id) {
      if (streams[id - 1]->sent.empty()) continue;
      some = true;
      CHECK(streams[id - 1]->sent[0].view().members_size() == kMembers);
      streams[id - 1]->sent.clear();
      f.Sent(id);
    }
  }
  CHECK(f.watches.waiting_bytes() == 0);
  CHECK(most < kLimits.large_bytes_max + 8 * kMiB);
  // All end before anybody has read a word of it.
  for (uint32_t node = 0; node < 5000; ++node) {
    const MemberLeft left{{NodeRank{node}, Incarnation{node}}, "the agent of a node has finished"};
    for (uint64_t id = 1; id <= kMembers; ++id) f.Tell(id, left);
  }
  CHECK(f.watches.cut_count() == 0);
  CHECK(f.watches.waiting_bytes() > 5000 * kMembers * sizeof(std::shared_ptr<int>) / 2);
}

TEST_CASE("Watches: who has waited longest is cut when too much waits", "[scheduler]") {
  Fixture f({.waiting_bytes_max = kMiB});
  const auto first = f.Member(1);
  const auto second = f.Member(2);
  f.Tell(1, Attached{});
  f.now_ns = 1;
  const std::string text(60'000, 't');
  for (uint32_t i = 0; i < 100; ++i) {
    f.Tell(2, MemberLeft{{NodeRank{i}, Incarnation{1}}, text});
    CHECK(f.watches.waiting_bytes() <= kMiB);
  }
  CHECK_FALSE(first->cut.empty());
  CHECK_FALSE(second->cut.empty());
  CHECK(f.watches.waiting_bytes() == 0);
  // A text that many streams are told is kept once.
  for (uint64_t id = 3; id < 103; ++id) f.Member(id);
  for (uint32_t i = 0; i < 5; ++i) {
    for (uint64_t id = 3; id < 103; ++id) {
      f.Tell(id, MemberLeft{{NodeRank{i}, Incarnation{1}}, std::string(7'000, 't')});
    }
  }
  CHECK(f.watches.cut_count() == 2);
}

TEST_CASE("Watches: one stream may have so many messages unsent", "[scheduler]") {
  Fixture f({.unsent_max = 3});
  const auto stream = f.Member(1);
  for (uint32_t i = 0; i < 4; ++i) f.Tell(1, MemberLeft{{NodeRank{i}, Incarnation{1}}, "left"});
  CHECK(stream->cut.empty());
  f.Tell(1, MemberLeft{{NodeRank{4}, Incarnation{1}}, "left"});
  CHECK_FALSE(stream->cut.empty());
}

TEST_CASE("Watches: old views that streams hold count", "[scheduler]") {
  // Each stream has taken another view, and takes nothing more.
  Fixture f({.waiting_bytes_max = 3 * kMiB});
  std::vector<std::shared_ptr<FakeMember>> streams;
  for (uint64_t id = 1; id <= 10; ++id) {
    streams.push_back(f.Member(id));
    f.Tell(id, SharedView(MakeView(id, 250, 1024)));
    f.Sent(id);
    CHECK(f.watches.waiting_bytes() < 100);
  }
  for (uint64_t id = 1; id <= 10; ++id) f.Tell(id, QuiesceCancelled{QuiesceId{1}});
  CHECK(f.watches.cut_count() > 2);
  CHECK(f.watches.waiting_bytes() <= 3 * kMiB);
}

TEST_CASE("Watches: at the end all streams get what they have not been sent", "[scheduler]") {
  Fixture f;
  const auto stream = f.Member(1);
  for (const char* text : {"one", "two"}) f.Tell(1, JobFailed{text});
  f.watches.EndAll(absl::UnavailableError("ends"));
  REQUIRE(stream->sent.size() == 2);
  CHECK(stream->sent[1].job_failed().text() == "two");
  CHECK(stream->ended == absl::UnavailableError("ends"));
  CHECK(f.watches.waiting_bytes() == 0);
}

}  // namespace
}  // namespace talweg::scheduler
