// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/data_plane.h"

#include <poll.h>

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/fingerprint.h"
#include "libs/runtime/clock.h"
#include "libs/transport/libfabric/fabric_transport.h"
#include "libs/transport/tcp/tcp_transport.h"
#include "libs/view/placement.h"

// The data plane over a real transport, spoken to by agents that are made by hand.
namespace talweg {
namespace {

using wire::FrameType;

constexpr Incarnation kSelf{900};

TensorKey KeyOf(const std::string& name) { return TensorKey{Fingerprint64(name)}; }

// Time that goes on by itself, and that a test can move ahead.
class SkippingClock final : public Clock {
 public:
  int64_t NowNs() const override { return real_.NowNs() + skipped_ns; }
  int64_t skipped_ns = 0;

 private:
  MonotonicClock real_;
};

View MakeView(uint64_t job, uint32_t members, uint64_t epoch = 1) {
  View view;
  view.job = JobId{job};
  view.epoch = Epoch{epoch};
  for (uint32_t i = 0; i < members; ++i) {
    view.members.push_back(
        {.id = {NodeRank{i}, Incarnation{100 + i}}, .rank_count = i + 1, .name = "host"});
  }
  view.aggregators.push_back({.incarnation = kSelf, .name = "agg"});
  return view;
}

// An agent as an aggregator sees one.
class HandAgent : public transport::EventSink {
 public:
  HandAgent(const Clock* clock, View view, uint32_t node)
      : HandAgent(transport::NewFabricTransport({}, clock, nullptr), std::move(view), node) {}
  HandAgent(absl::StatusOr<std::unique_ptr<transport::Transport>> made, View view, uint32_t node)
      : view_(std::move(view)), node_(node), arena_(2 * kMiB), results_(4 * kMiB) {
    REQUIRE(made.ok());
    transport = *std::move(made);
    arena_region_ = *transport->Register(arena_);
    results_region_ = *transport->Register(results_);
  }
  ~HandAgent() override {
    if (connected) transport->Close(connection);
  }

  void Connect(const std::string& address) {
    connection = *transport->Connect(address);
    connected = true;
  }
  template <typename Entry>
  void Say(FrameType type, const std::vector<Entry>& entries) {
    wire::FrameWriter writer(type, view_.job, view_.epoch);
    for (const Entry& entry : entries) {
      if (writer.Add(entry)) continue;
      transport->PostFrame(connection, writer.Take());
      REQUIRE(writer.Add(entry));
    }
    transport->PostFrame(connection, writer.Take());
  }
  void SayHello() {
    const ViewMember& self = view_.members[node_];
    Say(FrameType::kHello, std::vector{wire::Hello{.member = self.id,
                                                   .rank_count = self.rank_count,
                                                   .view_digest = PlacementDigest(view_),
                                                   .job_name = "job",
                                                   .node_name = self.name}});
  }
  void SayReport() { Say(FrameType::kReport, std::vector<wire::Report>()); }
  // Results of even rounds land at `offset` of the first half of results_, odd ones of the second.
  wire::Declare DeclareOf(const std::string& name, uint64_t count, Op op, uint64_t offset = 0) {
    return {.key = KeyOf(name),
            .name = name,
            .collective = Collective::Of(DType::kF32, op, count),
            .by_rank = node_,
            .result = {results_region_.Ref(offset), results_region_.Ref(2 * kMiB + offset)}};
  }
  void Push(const std::string& name, uint64_t round, const std::vector<float>& values,
            wire::Mode mode = wire::Mode::kSum) {
    wire::Contribute entry = {.key = KeyOf(name),
                              .round = Round{round},
                              .rank_count = view_.members[node_].rank_count,
                              .mode = mode};
    const size_t bytes = values.size() * sizeof(float);
    entry.length_bytes = static_cast<uint32_t>(bytes);
    if (bytes <= wire::kInlineBytesMax) {
      entry.form = wire::Form::kInline;
      entry.bytes = std::as_bytes(std::span(values));
    } else {
      std::memcpy(arena_.data(), values.data(), bytes);
      transport->PostWrite(connection, arena_region_.Slice(0, bytes), slots.at(KeyOf(name)), 1);
    }
    Say(FrameType::kContribute, std::vector{entry});
  }
  std::vector<float> Written(uint64_t round, size_t count, uint64_t offset = 0) const {
    std::vector<float> values(count);
    std::memcpy(values.data(), results_.data() + (round & 1) * 2 * kMiB + offset,
                count * sizeof(float));
    return values;
  }
  template <typename Entry>
  size_t Count() const {
    size_t count = 0;
    for (const wire::Frame& frame : frames) {
      const auto* entries = std::get_if<std::vector<Entry>>(&frame.entries);
      if (entries != nullptr) count += entries->size();
    }
    return count;
  }
  template <typename Entry>
  Entry Last() const {
    for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
      const auto* entries = std::get_if<std::vector<Entry>>(&frame->entries);
      if (entries != nullptr && !entries->empty()) return entries->back();
    }
    FAIL("no such entry");
    return {};
  }

  void OnAccepted(ConnectionId) override {}
  void OnConnected(ConnectionId) override {}
  void OnDisconnected(ConnectionId, const std::string&) override { connected = false; }
  void OnFrame(ConnectionId, std::span<const std::byte> bytes) override {
    kept.emplace_back(bytes.begin(), bytes.end());  // Entries point into them.
    const auto parsed = wire::ParseFrame(kept.back());
    REQUIRE(std::holds_alternative<wire::Frame>(parsed));
    frames.push_back(std::get<wire::Frame>(parsed));
    credit_bytes += frames.back().header.credit_bytes;
    if (const auto* declared = std::get_if<std::vector<wire::Declared>>(&frames.back().entries)) {
      for (const wire::Declared& entry : *declared) slots[entry.key] = entry.slot;
    }
  }
  void OnWriteDone(ConnectionId, uint64_t) override {}

  std::unique_ptr<transport::Transport> transport;
  ConnectionId connection;
  bool connected = false;
  std::deque<std::vector<std::byte>> kept;
  std::vector<wire::Frame> frames;
  std::map<TensorKey, wire::RemoteRef> slots;
  uint64_t credit_bytes = 0;

 private:
  View view_;
  uint32_t node_;
  std::vector<std::byte> arena_;
  std::vector<std::byte> results_;
  transport::Region arena_region_;
  transport::Region results_region_;
};

struct Pool {
  explicit Pool(DataPlaneOptions options = {.memory_bytes_max = 64 * kMiB}) {
    auto made = transport::NewFabricTransport({}, &clock, nullptr);
    REQUIRE(made.ok());
    transport = *std::move(made);
    address = *transport->Listen({});
    options.name = "agg";
    options.incarnation = kSelf;
    data_plane = std::make_unique<DataPlane>(options, transport.get(), &clock);
  }

  HandAgent& AddAgent(const View& view, uint32_t node) {
    agents.push_back(std::make_unique<HandAgent>(&clock, view, node));
    agents.back()->Connect(address);
    return *agents.back();
  }
  // Everybody polls, and sleeps on the descriptors when there is nothing, until `done`.
  void Until(const std::function<bool()>& done) {
    const int64_t deadline_ns = clock.NowNs() + 60'000'000'000;
    while (!done()) {
      REQUIRE(clock.NowNs() < deadline_ns);
      data_plane->Tick();
      int work = data_plane->Poll();
      for (const auto& agent : agents) work += agent->transport->Poll(*agent, 64);
      if (work > 0) continue;
      bool sleep = data_plane->PrepareToSleep();
      std::vector<pollfd> descriptors = {{transport->WaitDescriptor(), POLLIN, 0}};
      for (const auto& agent : agents) {
        sleep &= agent->transport->PrepareToSleep();
        descriptors.push_back({agent->transport->WaitDescriptor(), POLLIN, 0});
      }
      if (sleep) poll(descriptors.data(), descriptors.size(), 20);
    }
  }
  // Agents of one job, welcomed, with their declarations answered.
  void Start(const std::vector<HandAgent*>& members, const std::vector<std::string>& names,
             uint64_t count, Op op = Op::kSum) {
    for (HandAgent* agent : members) {
      agent->SayHello();
      agent->SayReport();
      std::vector<wire::Declare> declares;
      for (const std::string& name : names) declares.push_back(agent->DeclareOf(name, count, op));
      agent->Say(FrameType::kDeclare, declares);
    }
    Until([&] {
      for (HandAgent* agent : members) {
        if (agent->Count<wire::Declared>() < names.size()) return false;
      }
      return true;
    });
  }

  SkippingClock clock;
  std::unique_ptr<transport::Transport> transport;
  std::string address;
  std::unique_ptr<DataPlane> data_plane;
  std::vector<std::unique_ptr<HandAgent>> agents;
};

TEST_CASE("DataPlane: long slices are written, summed and written back", "[aggregator]") {
  Pool pool;
  const View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& first = pool.AddAgent(view, 0);
  HandAgent& second = pool.AddAgent(view, 1);
  constexpr size_t kCount = 15'001;  // One slice.
  pool.Start({&first, &second}, {"w"}, kCount, Op::kAverage);
  for (uint64_t round = 1; round <= 3; ++round) {
    const auto scale = static_cast<float>(round);
    std::vector<float> a(kCount), b(kCount), expected(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      a[i] = scale * static_cast<float>(i % 1000);
      b[i] = scale;
      expected[i] = (a[i] + b[i]) / 3.0f;  // One rank there, two here.
    }
    first.Push("w", round, a);
    second.Push("w", round, b);
    pool.Until([&] {
      return first.Count<wire::Result>() == round && second.Count<wire::Result>() == round;
    });
    CHECK(first.Last<wire::Result>().form == wire::Form::kWritten);
    CHECK(first.Last<wire::Result>().rank_count == 3);
    CHECK(first.Written(round, kCount) == expected);
    CHECK(second.Written(round, kCount) == expected);
  }
  CHECK(first.credit_bytes == 3 * kCount * sizeof(float));
  CHECK(pool.data_plane->totals().received_bytes > 6 * kCount * sizeof(float));
  CHECK(pool.data_plane->totals().sent_bytes > 6 * kCount * sizeof(float));
}

TEST_CASE("DataPlane: many small slices travel in few frames", "[aggregator]") {
  Pool pool;
  const View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& first = pool.AddAgent(view, 0);
  HandAgent& second = pool.AddAgent(view, 1);
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i) names.push_back("bias." + std::to_string(i));
  pool.Start({&first, &second}, names, 2);
  CHECK(first.frames.size() < 30);
  first.frames.clear();
  std::vector<float> values(2 * names.size());
  std::vector<wire::Contribute> entries;
  for (size_t i = 0; i < names.size(); ++i) {
    values[2 * i] = static_cast<float>(i);
    values[2 * i + 1] = -1;
    entries.push_back({.key = KeyOf(names[i]),
                       .round = Round{1},
                       .rank_count = 1,
                       .length_bytes = 2 * sizeof(float),
                       .form = wire::Form::kInline,
                       .bytes = std::as_bytes(std::span(values).subspan(2 * i, 2))});
  }
  first.Say(FrameType::kContribute, entries);
  second.Say(FrameType::kContribute, entries);
  pool.Until([&] { return first.Count<wire::Result>() == names.size(); });
  CHECK(first.frames.size() < 30);
  uint64_t right = 0;
  for (const wire::Frame& frame : first.frames) {
    const auto* results = std::get_if<std::vector<wire::Result>>(&frame.entries);
    if (results == nullptr) continue;
    for (const wire::Result& result : *results) {
      float sum[2];
      REQUIRE(result.bytes.size() == sizeof sum);
      std::memcpy(sum, result.bytes.data(), sizeof sum);
      const auto index = static_cast<size_t>(sum[0] / 2);
      if (sum[1] == -2 && result.key == KeyOf(names[index])) ++right;
    }
  }
  CHECK(right == names.size());
}

TEST_CASE("DataPlane: jobs with tensors of the same names do not touch each other",
          "[aggregator]") {
  Pool pool;
  const View views[] = {MakeView(1, 2), MakeView(2, 2)};
  for (const View& view : views) pool.data_plane->OnJobView("job", view);
  HandAgent* agents[2][2];
  constexpr size_t kCount = 5'000;
  for (int job = 0; job < 2; ++job) {
    for (uint32_t node = 0; node < 2; ++node) agents[job][node] = &pool.AddAgent(views[job], node);
    pool.Start({agents[job][0], agents[job][1]}, {"w"}, kCount);
  }
  for (int job = 0; job < 2; ++job) {
    for (HandAgent* agent : agents[job]) {
      agent->Push("w", 1, std::vector<float>(kCount, job == 0 ? 1.0f : 10.0f));
    }
  }
  pool.Until([&] {
    return agents[0][0]->Count<wire::Result>() == 1 && agents[1][0]->Count<wire::Result>() == 1;
  });
  CHECK(agents[0][0]->Written(1, kCount) == std::vector<float>(kCount, 2.0f));
  CHECK(agents[1][0]->Written(1, kCount) == std::vector<float>(kCount, 20.0f));
}

TEST_CASE("DataPlane: a broadcast brings the root's bytes", "[aggregator]") {
  Pool pool;
  const View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& root = pool.AddAgent(view, 0);
  HandAgent& other = pool.AddAgent(view, 1);
  pool.Start({&root, &other}, {"w"}, 4, Op::kCopy);
  other.Say(FrameType::kContribute, std::vector{wire::Contribute{.key = KeyOf("w"),
                                                                 .round = Round{1},
                                                                 .mode = wire::Mode::kCopy,
                                                                 .form = wire::Form::kEmpty}});
  root.Push("w", 1, {1, 2, 3, 4}, wire::Mode::kCopy);
  pool.Until([&] { return other.Count<wire::Result>() == 1; });
  const std::vector<float> expected = {1, 2, 3, 4};
  const wire::Result result = other.Last<wire::Result>();
  REQUIRE(result.bytes.size() == 16);
  CHECK(std::memcmp(result.bytes.data(), expected.data(), 16) == 0);
}

TEST_CASE("DataPlane: a Hello may come before the aggregator has heard of the job",
          "[aggregator]") {
  Pool pool;
  const View view = MakeView(1, 1);
  HandAgent& agent = pool.AddAgent(view, 0);
  agent.SayHello();
  pool.Until([&] { return pool.data_plane->totals().received_bytes > 0; });
  CHECK(agent.frames.empty());
  SECTION("it is welcomed when the view has come") {
    pool.data_plane->OnJobView("job", view);
    pool.Until([&] { return agent.Count<wire::Welcome>() == 1; });
    CHECK(agent.Last<wire::Welcome>().status == wire::WelcomeStatus::kOk);
  }
  SECTION("it is refused in the end, then closed") {
    pool.clock.skipped_ns += 6'000'000'000;
    pool.Until([&] { return agent.Count<wire::Welcome>() == 1; });
    CHECK(agent.Last<wire::Welcome>().status == wire::WelcomeStatus::kUnknownJob);
    pool.clock.skipped_ns += 6'000'000'000;
    pool.Until([&] { return !agent.connected; });
  }
}

TEST_CASE("DataPlane: what is no frame ends the connection, another version is told so",
          "[aggregator]") {
  Pool pool;
  const View view = MakeView(1, 1);
  pool.data_plane->OnJobView("job", view);
  HandAgent& agent = pool.AddAgent(view, 0);
  SECTION("random bytes") {
    agent.transport->PostFrame(agent.connection, std::vector<std::byte>(100, std::byte{7}));
    pool.Until([&] { return !agent.connected; });
  }
  SECTION("another major version") {
    std::vector<std::byte> frame =
        wire::FrameWriter(FrameType::kGoodbye, JobId{1}, Epoch{1}).Take();
    frame[4] = std::byte{9};
    frame[5] = std::byte{4};
    agent.transport->PostFrame(agent.connection, frame);
    pool.Until([&] { return agent.Count<wire::Welcome>() == 1; });
    CHECK(agent.Last<wire::Welcome>().status == wire::WelcomeStatus::kVersion);
    CHECK(agent.Last<wire::Welcome>().text.find("9.4") != std::string::npos);
  }
  SECTION("half a frame behind a Hello") {
    agent.SayHello();
    std::vector<std::byte> frame = wire::FrameWriter(FrameType::kFence, JobId{1}, Epoch{1}).Take();
    frame.resize(20);
    agent.transport->PostFrame(agent.connection, frame);
    pool.Until([&] { return !agent.connected; });
    CHECK(pool.data_plane->jobs()[0]->sessions().empty());
  }
  CHECK(pool.data_plane->totals().unreadable_frames == 1);
}

TEST_CASE("DataPlane: a Hello of another member than the connection's key ends it",
          "[aggregator]") {
  MonotonicClock clock;
  const transport::TcpOptions keyed = {.security = transport::DataSecurity::kKeyed};
  auto made = transport::NewTcpTransport(keyed, &clock, nullptr);
  REQUIRE(made.ok());
  const std::string address = *(*made)->Listen({});
  DataPlane plane({.name = "agg", .incarnation = kSelf}, made->get(), &clock);
  const View view = MakeView(1, 2);
  plane.OnJobView("job", view);
  const transport::PeerIdentity own = {
      .job = view.job, .epoch = view.epoch, .node = NodeRank{0}, .incarnation = Incarnation{100}};
  const auto says_hello = [&](const transport::PeerIdentity& key_of, uint32_t node) {
    HandAgent agent(transport::NewTcpTransport(keyed, &clock, nullptr), view, node);
    agent.Connect(transport::AddressForMember(address, key_of));
    agent.SayHello();
    const int64_t end_ns = clock.NowNs() + 60'000'000'000;
    while (agent.connected && agent.frames.empty() && clock.NowNs() < end_ns) {
      plane.Poll();
      agent.transport->Poll(agent, 64);
    }
    return agent.connected && !agent.frames.empty();
  };
  CHECK(says_hello(own, 0));
  CHECK(plane.totals().impostors == 0);
  CHECK_FALSE(says_hello(own, 1));
  transport::PeerIdentity other = own;
  other.epoch = Epoch{2};
  CHECK_FALSE(says_hello(other, 0));
  other = own;
  other.job = JobId{2};
  CHECK_FALSE(says_hello(other, 0));
  CHECK(plane.totals().impostors == 3);
}

TEST_CASE("DataPlane: a connection that says nothing is closed in time", "[aggregator]") {
  Pool pool;
  HandAgent& agent = pool.AddAgent(MakeView(1, 1), 0);
  pool.Until([&] { return pool.data_plane->totals().connections == 1; });
  pool.clock.skipped_ns += 11'000'000'000;
  pool.Until([&] { return !agent.connected; });
}

TEST_CASE("DataPlane: a little credit waits for a result or a tick, much does not",
          "[aggregator]") {
  Pool pool;
  const View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& first = pool.AddAgent(view, 0);
  HandAgent& second = pool.AddAgent(view, 1);
  constexpr size_t kCount = 5'000;
  constexpr size_t kCountOfMuch = 15'000;  // Each of three: one slice, more than is kept.
  pool.Start({&first, &second}, {"w"}, kCount);
  std::vector<wire::Declare> declares;
  for (const char* name : {"much 0", "much 1", "much 2"}) {
    declares.push_back(first.DeclareOf(name, kCountOfMuch, Op::kSum));
  }
  first.Say(FrameType::kDeclare, declares);
  pool.Until([&] { return first.Count<wire::Declared>() == 4; });
  const auto received_bytes = [&] {
    return pool.data_plane->jobs()[0]->counters().contribution_bytes;
  };
  first.Push("w", 1, std::vector<float>(kCount, 1));
  pool.Until([&] { return received_bytes() > 0; });
  CHECK(first.credit_bytes == 0);
  pool.data_plane->Tick();
  pool.Until([&] { return first.credit_bytes == kCount * sizeof(float); });

  second.Push("w", 1, std::vector<float>(kCount, 2));
  pool.Until([&] { return second.Count<wire::Result>() == 1; });
  CHECK(second.credit_bytes == kCount * sizeof(float));

  for (const wire::Declare& declare : declares) {
    first.Push(declare.name, 1, std::vector<float>(kCountOfMuch, 1));
  }
  pool.Until([&] { return first.credit_bytes == (kCount + 3 * kCountOfMuch) * sizeof(float); });
}

TEST_CASE("DataPlane: an agent that lost its connection goes on over a new one", "[aggregator]") {
  Pool pool;
  const View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& first = pool.AddAgent(view, 0);
  HandAgent& second = pool.AddAgent(view, 1);
  constexpr size_t kCount = 5'000;
  pool.Start({&first, &second}, {"w"}, kCount);
  first.Push("w", 1, std::vector<float>(kCount, 1));
  pool.Until([&] { return pool.data_plane->jobs()[0]->counters().contribution_bytes > 0; });
  first.transport->Close(first.connection);
  pool.Until([&] { return pool.data_plane->jobs()[0]->sessions().size() == 1; });
  second.Push("w", 1, std::vector<float>(kCount, 2));
  first.Connect(pool.address);
  first.SayHello();
  first.Say(FrameType::kDeclare, std::vector{first.DeclareOf("w", kCount, Op::kSum)});
  first.SayReport();
  pool.Until([&] { return first.Count<wire::Declared>() == 2; });
  first.Push("w", 1, std::vector<float>(kCount, 1));
  pool.Until([&] { return first.Count<wire::Result>() == 1; });
  CHECK(first.Written(1, kCount) == std::vector<float>(kCount, 3));
}

TEST_CASE("DataPlane: a job that is over is told to its members and forgotten", "[aggregator]") {
  Pool pool;
  const View view = MakeView(1, 1);
  pool.data_plane->OnJobView("job", view);
  HandAgent& agent = pool.AddAgent(view, 0);
  pool.Start({&agent}, {"w"}, 5'000);
  CHECK(pool.data_plane->budget().used_bytes() > 0);
  SECTION("by the scheduler") { pool.data_plane->OnJobClosed(JobId{1}, "all members left"); }
  SECTION("because the aggregator is another now") {
    pool.data_plane->Restart(Incarnation{901}, "all members left");
  }
  pool.Until([&] { return agent.Count<wire::Failed>() == 1; });
  CHECK(agent.Last<wire::Failed>().text == "all members left");
  pool.clock.skipped_ns += 6'000'000'000;
  pool.Until([&] { return !agent.connected; });
  CHECK(pool.data_plane->jobs().empty());
  CHECK(pool.data_plane->budget().used_bytes() == 0);
  CHECK(pool.data_plane->totals().ended.hellos == 1);
}

// What members have said in a view is forgotten with the job, and they do not say it twice in one.
TEST_CASE("DataPlane: a job that was over begins again with a newer view alone", "[aggregator]") {
  Pool pool;
  View view = MakeView(1, 1);
  pool.data_plane->OnJobView("job", view);
  pool.data_plane->OnJobClosed(view.job, "all members left");
  SECTION("while it is still telling its members") {}
  SECTION("when it has told them") {
    pool.data_plane->Tick();
    REQUIRE(pool.data_plane->jobs().empty());
  }
  pool.data_plane->OnJobView("job", view);
  HandAgent& late = pool.AddAgent(view, 0);
  late.SayHello();
  pool.Until([&] { return pool.data_plane->totals().received_bytes > 0; });
  pool.data_plane->Tick();
  CHECK(pool.data_plane->jobs().empty());
  pool.clock.skipped_ns += 6'000'000'000;
  pool.Until([&] { return late.Count<wire::Welcome>() == 1; });
  CHECK(late.Last<wire::Welcome>().status == wire::WelcomeStatus::kUnknownJob);
  CHECK(
      late.Last<wire::Welcome>().text ==
      "job 1 was over at aggregator 'agg' in epoch 1: has the scheduler been started with an older "
      "store? Start the job again");

  view = MakeView(1, 1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& again = pool.AddAgent(view, 0);
  again.SayHello();
  pool.Until([&] { return again.Count<wire::Welcome>() == 1; });
  CHECK(again.Last<wire::Welcome>().status == wire::WelcomeStatus::kOk);
}

TEST_CASE("DataPlane: sums of jobs that wait are made by weight", "[aggregator]") {
  constexpr int kTensors = 30;
  // One sum each time that the network is looked at.
  Pool pool({.memory_bytes_max = 64 * kMiB, .sum_bytes_per_poll = 1});
  std::vector<std::string> names;
  for (int i = 0; i < kTensors; ++i) names.push_back("t" + std::to_string(i));
  const std::vector<float> values(256, 1.0f);
  std::vector<HandAgent*> last;
  for (const uint64_t id : {1, 2}) {
    const View view = MakeView(id, 2);
    const JobQuota quota = id == 2 ? JobQuota{.weight = 4, .tenant_weight = 4} : JobQuota{};
    pool.data_plane->OnJobView("job" + std::to_string(id), view, quota);
    HandAgent& first = pool.AddAgent(view, 0);
    HandAgent& second = pool.AddAgent(view, 1);
    pool.Start({&first, &second}, names, values.size());
    for (const std::string& name : names) first.Push(name, 1, values);
    last.push_back(&second);
  }
  const auto job = [&](size_t i) { return pool.data_plane->jobs()[i]; };
  pool.Until([&] {
    return job(0)->counters().contributions == kTensors &&
           job(1)->counters().contributions == kTensors;
  });
  // All their sums can be made at once now.
  for (HandAgent* agent : last) {
    std::vector<wire::Contribute> entries;
    for (const std::string& name : names) {
      entries.push_back({.key = KeyOf(name),
                         .round = Round{1},
                         .rank_count = 2,
                         .length_bytes = static_cast<uint32_t>(values.size() * sizeof(float)),
                         .form = wire::Form::kInline,
                         .bytes = std::as_bytes(std::span(values))});
    }
    agent->Say(FrameType::kContribute, entries);
  }
  // Two results of each.
  pool.Until([&] { return job(1)->counters().results == 2 * kTensors; });
  // What the other is given until then is a quarter, and what was summed before both frames came.
  CHECK(job(0)->counters().results <= 30);
  pool.Until([&] { return job(0)->counters().results == 2 * kTensors; });
  // Each of 60 contributions, 30 sums of two and 60 results.
  for (const uint64_t id : {1, 2}) {
    CHECK(pool.data_plane->ServedBytes(JobId{id}) > 180 * values.size() * sizeof(float));
  }
}

TEST_CASE("DataPlane: an address has no more connections than it may", "[aggregator]") {
  Pool pool({.memory_bytes_max = 64 * kMiB, .peer_connections_max = 2});
  const View view = MakeView(1, 3);
  pool.data_plane->OnJobView("job", view);
  HandAgent& silent = pool.AddAgent(view, 0);
  pool.Until([&] { return pool.data_plane->totals().connections == 1; });
  HandAgent& first = pool.AddAgent(view, 0);
  HandAgent& second = pool.AddAgent(view, 1);
  first.SayHello();
  second.SayHello();
  pool.Until([&] { return first.Count<wire::Welcome>() + second.Count<wire::Welcome>() == 2; });
  // Who has said nothing went first.
  pool.Until([&] { return !silent.connected; });
  CHECK(first.connected);
  CHECK(second.connected);
  HandAgent& third = pool.AddAgent(view, 2);
  third.SayHello();
  pool.Until([&] { return third.Count<wire::Welcome>() == 1; });
  const wire::Welcome refusal = third.Last<wire::Welcome>();
  CHECK(refusal.status == wire::WelcomeStatus::kUnknownJob);
  CHECK(refusal.text ==
        "127.0.0.1 has the peer_connections_max=2 connections that one address may have to "
        "aggregator 'agg': raise that option there, if so many agents run on one host");
  CHECK(pool.data_plane->totals().connections_over_limit == 2);
  CHECK(first.connected);
  // When one goes there is room.
  first.transport->Close(first.connection);
  first.connected = false;
  pool.clock.skipped_ns += 10'000'000'000;
  pool.Until([&] { return !third.connected; });
  HandAgent& again = pool.AddAgent(view, 2);
  again.SayHello();
  pool.Until([&] { return again.Count<wire::Welcome>() == 1; });
  CHECK(again.Last<wire::Welcome>().status == wire::WelcomeStatus::kOk);
}

TEST_CASE("DataPlane: of connections that say nothing, the oldest go", "[aggregator]") {
  Pool pool({.memory_bytes_max = 64 * kMiB, .unproven_connections_max = 2});
  const View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& member = pool.AddAgent(view, 0);
  member.SayHello();
  pool.Until([&] { return member.Count<wire::Welcome>() == 1; });
  std::vector<HandAgent*> silent;
  for (uint64_t i = 0; i < 3; ++i) {
    silent.push_back(&pool.AddAgent(view, 1));
    pool.Until([&] { return pool.data_plane->totals().connections == i + 2; });
  }
  pool.Until([&] { return !silent[0]->connected; });
  CHECK(silent[1]->connected);
  CHECK(silent[2]->connected);
  CHECK(member.connected);
}

TEST_CASE("DataPlane: jobs of one tenant share its limit", "[aggregator]") {
  Pool pool;
  const JobQuota quota = {.tenant = "t", .tenant_limit = {.memory_bytes_max = 4000}};
  std::vector<HandAgent*> agents;
  for (const uint64_t id : {1, 2}) {
    const View view = MakeView(id, 1);
    pool.data_plane->OnJobView("job", view, quota);
    agents.push_back(&pool.AddAgent(view, 0));
    pool.Start({agents.back()}, {"w"}, 300);  // 2 x 1216 bytes.
  }
  CHECK(agents[0]->Last<wire::Declared>().status == wire::DeclaredStatus::kOk);
  CHECK(agents[1]->Last<wire::Declared>().status == wire::DeclaredStatus::kOverBudget);
  // The rules change, and one job is over.
  pool.data_plane->OnJobClosed(JobId{1}, "over");
  pool.clock.skipped_ns += 10'000'000'000;
  pool.Until([&] { return pool.data_plane->jobs().size() == 1; });
  agents[1]->Say(FrameType::kDeclare, std::vector{agents[1]->DeclareOf("v", 300, Op::kSum)});
  pool.Until([&] { return agents[1]->Count<wire::Declared>() == 2; });
  CHECK(agents[1]->Last<wire::Declared>().status == wire::DeclaredStatus::kOk);
}

}  // namespace
}  // namespace talweg
