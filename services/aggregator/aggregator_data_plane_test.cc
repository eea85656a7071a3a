// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/aggregator_data_plane.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/transport/tcp/tcp_transport.h"
#include "services/aggregator/aggregator_data_plane_fixture.h"

namespace talweg::aggregator {
namespace {

constexpr char kJobWasOver[] =
    "job 1 was over at aggregator 'agg' in epoch 1: has the scheduler been started with an older "
    "store? Start the job again";

TEST_CASE("AggregatorDataPlane: long slices are written, summed and written back", "[aggregator]") {
  Pool pool;
  const view::View view = MakeView(1, 2);
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
      expected[i] = (a[i] + b[i]) / 3.0f;  // The first node has one rank, and the second has two.
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

TEST_CASE("AggregatorDataPlane: with a window, results wait for it and leave by priority",
          "[aggregator]") {
  constexpr size_t kCount = 15'001;
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  for (const bool by_priority : {true, false}) {
    DataPlaneOptions options = {.memory_bytes_max = 64 * kMiB};
    if (by_priority) options.results_window_bytes = 1;
    Pool pool(options);
    const view::View view = MakeView(1, 1);
    pool.data_plane->OnJobView("job", view);
    HandAgent& agent = pool.AddAgent(view, 0);
    pool.Start({&agent}, names, kCount);
    const std::vector<float> values(kCount, 3.0f);
    // All are summed in one pass. The first result is under way when the others are made.
    agent.PushTogether({{"a", 0}, {"b", -1}, {"c", 5}, {"d", 5}}, 1, values);
    pool.Until([&] { return agent.Count<wire::Result>() == names.size(); });
    std::vector<TensorKey> expected;
    for (const char* name :
         by_priority ? std::array{"a", "c", "d", "b"} : std::array{"a", "b", "c", "d"}) {
      expected.push_back(KeyOf(name));
    }
    CHECK(agent.ResultOrder() == expected);
    CHECK(agent.Written(1, kCount) == values);
    CHECK(pool.data_plane->totals().results_queued == (by_priority ? 3 : 0));
  }
}

TEST_CASE(
    "AggregatorDataPlane: a member that asks for results again and again but reads none is closed",
    "[aggregator]") {
  constexpr size_t kCount = 15'001;
  Pool pool({.memory_bytes_max = kMiB, .results_window_bytes = 64 * kKiB});
  const view::View view = MakeView(1, 1);
  pool.data_plane->OnJobView("job", view);
  HandAgent& agent = pool.AddAgent(view, 0);
  pool.Start({&agent}, {"w"}, kCount);
  agent.PushTogether({{"w", 0}}, 1, std::vector<float>(kCount, 3.0f));
  pool.Until([&] { return agent.Count<wire::Result>() == 1; });
  const wire::Contribute again = {.key = KeyOf("w"),
                                  .round = Round{1},
                                  .rank_count = 1,
                                  .length_bytes = kCount * sizeof(float),
                                  .travel_bytes = kCount * sizeof(float)};
  // 172 MiB of results: twice what may wait, plus what the kernel takes.
  constexpr uint64_t kAsked = 3000;
  agent.Say(FrameType::kContribute, std::vector<wire::Contribute>(kAsked, again));
  const aggregation::AggregatorCore& job = *pool.data_plane->jobs()[0];
  while (!job.sessions().empty()) {
    // It is not closed for silence after it has had all results.
    REQUIRE(job.counters().results <= kAsked);
    pool.data_plane->Poll();
  }
  CHECK(pool.data_plane->totals().results_queued > 1000);
}

TEST_CASE("AggregatorDataPlane: many small slices travel in few frames", "[aggregator]") {
  Pool pool;
  const view::View view = MakeView(1, 2);
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
                       .travel_bytes = 2 * sizeof(float),
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

TEST_CASE("AggregatorDataPlane: jobs with tensors of the same names do not touch each other",
          "[aggregator]") {
  Pool pool;
  const view::View views[] = {MakeView(1, 2), MakeView(2, 2)};
  for (const view::View& view : views) pool.data_plane->OnJobView("job", view);
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

TEST_CASE("AggregatorDataPlane: a broadcast brings the root's bytes", "[aggregator]") {
  Pool pool;
  const view::View view = MakeView(1, 2);
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

TEST_CASE("AggregatorDataPlane: a Hello may come before the aggregator has heard of the job",
          "[aggregator]") {
  Pool pool;
  const view::View view = MakeView(1, 1);
  HandAgent& agent = pool.AddAgent(view, 0);
  agent.SayHello();
  pool.Until([&] { return pool.data_plane->totals().received_bytes > 0; });
  CHECK(agent.frames.empty());
  SECTION("It is welcomed when the view has come") {
    pool.data_plane->OnJobView("job", view);
    pool.Until([&] { return agent.Count<wire::Welcome>() == 1; });
    CHECK(agent.Last<wire::Welcome>().status == wire::WelcomeStatus::kOk);
  }
  SECTION("It is refused in the end, then closed") {
    pool.clock.skipped_ns += 6'000'000'000;
    pool.Until([&] { return agent.Count<wire::Welcome>() == 1; });
    CHECK(agent.Last<wire::Welcome>().status == wire::WelcomeStatus::kUnknownJob);
    pool.clock.skipped_ns += 6'000'000'000;
    pool.Until([&] { return !agent.connected; });
  }
}

TEST_CASE(
    "AggregatorDataPlane: bytes that are no frame end the connection, and another version hears so",
    "[aggregator]") {
  Pool pool;
  const view::View view = MakeView(1, 1);
  pool.data_plane->OnJobView("job", view);
  HandAgent& agent = pool.AddAgent(view, 0);
  SECTION("The bytes are random") {
    agent.transport->PostFrame(agent.connection, std::vector<std::byte>(100, std::byte{7}));
    pool.Until([&] { return !agent.connected; });
  }
  SECTION("The frame has another major version") {
    std::vector<std::byte> frame =
        wire::FrameWriter(FrameType::kGoodbye, JobId{1}, Epoch{1}).Take();
    frame[4] = std::byte{9};
    frame[5] = std::byte{4};
    agent.transport->PostFrame(agent.connection, frame);
    pool.Until([&] { return agent.Count<wire::Welcome>() == 1; });
    CHECK(agent.Last<wire::Welcome>().status == wire::WelcomeStatus::kVersion);
    CHECK(agent.Last<wire::Welcome>().text.find("9.4") != std::string::npos);
  }
  SECTION("Half a frame follows a Hello") {
    agent.SayHello();
    std::vector<std::byte> frame = wire::FrameWriter(FrameType::kFence, JobId{1}, Epoch{1}).Take();
    frame.resize(20);
    agent.transport->PostFrame(agent.connection, frame);
    pool.Until([&] { return !agent.connected; });
    CHECK(pool.data_plane->jobs()[0]->sessions().empty());
  }
  CHECK(pool.data_plane->totals().unreadable_frames == 1);
}

TEST_CASE(
    "AggregatorDataPlane: a Hello that names another member than the connection's key ends it",
    "[aggregator]") {
  runtime::MonotonicClock clock;
  const transport::TcpOptions keyed = {.security = transport::DataSecurity::kKeyed};
  auto made = transport::NewTcpTransport(keyed, &clock, nullptr);
  REQUIRE(made.ok());
  const std::string address = *(*made)->Listen({});
  AggregatorDataPlane plane({.name = "agg", .incarnation = kSelf}, made->get(), &clock);
  const view::View view = MakeView(1, 2);
  plane.OnJobView("job", view);
  const transport::PeerIdentity own = {
      .job = view.job, .epoch = view.epoch, .node = NodeRank{0}, .incarnation = Incarnation{100}};
  const auto says_hello = [&](const transport::PeerIdentity& key_of, uint32_t node) {
    HandAgent agent(transport::NewTcpTransport(keyed, &clock, nullptr), view, node);
    agent.ConnectTo(transport::AddressForMember(address, key_of));
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

TEST_CASE("AggregatorDataPlane: a connection that says nothing is closed in time", "[aggregator]") {
  Pool pool;
  HandAgent& agent = pool.AddAgent(MakeView(1, 1), 0);
  pool.Until([&] { return pool.data_plane->totals().connections == 1; });
  pool.clock.skipped_ns += 11'000'000'000;
  pool.Until([&] { return !agent.connected; });
}

TEST_CASE("AggregatorDataPlane: a little credit waits for a result or a tick, and much does not",
          "[aggregator]") {
  Pool pool;
  const view::View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& first = pool.AddAgent(view, 0);
  HandAgent& second = pool.AddAgent(view, 1);
  constexpr size_t kCount = 5'000;
  // Each of three contributions is one slice, which is more than is kept.
  constexpr size_t kCountOfMuch = 15'000;
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

TEST_CASE("AggregatorDataPlane: an agent that lost its connection goes on over a new one",
          "[aggregator]") {
  Pool pool;
  const view::View view = MakeView(1, 2);
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

TEST_CASE("AggregatorDataPlane: a job that is over is reported to its members and forgotten",
          "[aggregator]") {
  Pool pool;
  const view::View view = MakeView(1, 1);
  pool.data_plane->OnJobView("job", view);
  HandAgent& agent = pool.AddAgent(view, 0);
  pool.Start({&agent}, {"w"}, 5'000);
  CHECK(pool.data_plane->budget().used_bytes() > 0);
  SECTION("The scheduler ends it") { pool.data_plane->OnJobClosed(JobId{1}, "all members left"); }
  SECTION("The aggregator becomes another incarnation") {
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

// The messages of members in a view are forgotten with the job, and members do not send them twice
// in one view.
TEST_CASE("AggregatorDataPlane: a job that was over begins again only with a newer view",
          "[aggregator]") {
  Pool pool({.memory_bytes_max = 64 * kMiB}, OverTcp);
  view::View view = MakeView(1, 1);
  pool.data_plane->OnJobView("job", view);
  pool.data_plane->OnJobClosed(view.job, "all members left");
  SECTION("It is still telling its members") {}
  SECTION("It has told them") {
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
  CHECK(late.Last<wire::Welcome>().text == kJobWasOver);

  view = MakeView(1, 1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& again = pool.AddAgent(view, 0);
  again.SayHello();
  pool.Until([&] { return again.Count<wire::Welcome>() == 1; });
  CHECK(again.Last<wire::Welcome>().status == wire::WelcomeStatus::kOk);
}

TEST_CASE("AggregatorDataPlane: over libfabric, nobody outside the job is let in", "[aggregator]") {
  Pool pool;
  view::View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& first = pool.AddAgent(view, 0);
  HandAgent& second = pool.AddAgent(view, 1);
  pool.Until([&] { return pool.data_plane->totals().connections == 2; });
  const auto is_refused = [&](HandAgent& agent, const std::string& text) {
    agent.Connect(pool.address);
    pool.Until([&] { return !agent.connected; });
    INFO(agent.end);
    return agent.end.ends_with("it refused: " + text);
  };
  SECTION("The member has been lost") {
    first.SayHello();
    second.SayHello();
    pool.Until([&] { return first.Count<wire::Welcome>() + second.Count<wire::Welcome>() == 2; });
    view.epoch = Epoch{2};
    view.members.pop_back();
    pool.data_plane->OnJobView("job", view);
    pool.Until([&] { return !second.connected; });
    CHECK(is_refused(second,
                     "node 1 is not in epoch 2 of job 'job': it has to join again as a new "
                     "incarnation"));
    // It makes keys of later epochs, too.
    for (const uint64_t epoch : {uint64_t{3}, uint64_t{1} << 45}) {
      second.Follow(MakeView(1, 2, epoch));
      CHECK(is_refused(second,
                       "node 1 is not in epoch 2 of job 'job' any more: it has to join again as a "
                       "new incarnation"));
    }
    CHECK(first.connected);
  }
  SECTION("The member's job is over") {
    pool.data_plane->OnJobClosed(view.job, "all members left");
    CHECK(is_refused(second, kJobWasOver));
    pool.data_plane->Tick();
    REQUIRE(pool.data_plane->jobs().empty());
    CHECK(is_refused(second, kJobWasOver));
    second.Follow(MakeView(1, 2, 3));
    CHECK(is_refused(second, kJobWasOver));
    // An older store has brought the job back.
    pool.data_plane->OnJobView("job", MakeView(1, 1, 2));
    CHECK_FALSE(is_refused(second, kJobWasOver));
  }
  SECTION("The epoch is one that no scheduler can have given") {
    second.Follow(MakeView(1, 2, uint64_t{1} << 60));
    CHECK(is_refused(second,
                     "epoch 1152921504606846976 of job 'job' cannot be right: no scheduler can "
                     "have given one above 86400000000001 yet"));
    second.Follow(MakeView(7, 2, uint64_t{1} << 60));
    CHECK(is_refused(second,
                     "epoch 1152921504606846976 of job 7 cannot be right: no scheduler can have "
                     "given it yet"));
  }
  CHECK(pool.data_plane->totals().connections == 2);
}

TEST_CASE("AggregatorDataPlane: a member of a view that has not come here waits for it",
          "[aggregator]") {
  const TransportMaker over = GENERATE(&OverLibfabric, &OverTcp);
  Pool pool({.memory_bytes_max = 64 * kMiB}, over);
  pool.data_plane->OnJobView("job", MakeView(1, 1));
  HandAgent& joiner = pool.AddAgent(MakeView(1, 2, 3), 1);
  joiner.SayHello();
  pool.Until([&] { return pool.data_plane->JobOf(ConnectionId{1}) != nullptr; });
  SECTION("The view comes") {
    pool.data_plane->OnJobView("job", MakeView(1, 2, 3));
    pool.Until([&] { return joiner.Count<wire::Welcome>() == 1; });
    CHECK(joiner.Last<wire::Welcome>().status == wire::WelcomeStatus::kOk);
  }
  SECTION("The view does not come") {
    pool.clock.skipped_ns += 6'000'000'000;
    pool.Until([&] { return joiner.Count<wire::Welcome>() == 1; });
    CHECK(joiner.Last<wire::Welcome>().status == wire::WelcomeStatus::kNotInView);
    pool.clock.skipped_ns += 6'000'000'000;
    pool.Until([&] { return !joiner.connected; });
  }
}

TEST_CASE("AggregatorDataPlane: over libfabric, a Hello of another member than the token's ends it",
          "[aggregator]") {
  Pool pool;
  const view::View view = MakeView(1, 2);
  pool.data_plane->OnJobView("job", view);
  HandAgent& agent = pool.AddAgent(view, 0);
  view::View other = view;
  std::swap(other.members[0], other.members[1]);
  agent.SayHelloOf(other);
  pool.Until([&] { return !agent.connected; });
  CHECK(pool.data_plane->totals().impostors == 1);
}

// Two nodes of one rank that declare "w", of 1000 numbers that travel as runs.
struct EncodedPool : Pool {
  EncodedPool() {
    data_plane->OnJobView("job", view);
    for (const uint32_t node : {0, 1}) {
      HandAgent& agent = AddAgent(view, node);
      agent.SayHello();
      agent.SayReport();
      wire::Declare declare = agent.DeclareOf("w", kCount, Op::kSum);
      declare.collective.encoding = Encoding::kRuns;
      agent.Say(FrameType::kDeclare, std::vector{declare});
    }
    Until([&] {
      return agents[0]->Count<wire::Declared>() == 1 && agents[1]->Count<wire::Declared>() == 1;
    });
  }
  void Push(uint32_t node, uint64_t round, std::span<const std::byte> encoded) {
    agents[node]->Say(
        FrameType::kContribute,
        std::vector{wire::Contribute{.key = KeyOf("w"),
                                     .round = Round{round},
                                     .rank_count = node + 1,  // As MakeView has it.
                                     .length_bytes = kCount * sizeof(float),
                                     .travel_bytes = static_cast<uint32_t>(encoded.size()),
                                     .form = wire::Form::kInline,
                                     .bytes = encoded}});
  }
  // Waits until both have so many results.
  void Results(size_t count) {
    Until([&] {
      return agents[0]->Count<wire::Result>() == count && agents[1]->Count<wire::Result>() == count;
    });
  }

  static constexpr uint32_t kCount = 1000;
  view::View view = MakeView(1, 2);
};

TEST_CASE("AggregatorDataPlane: encoded contributions are decoded, summed and encoded",
          "[aggregator]") {
  EncodedPool pool;
  const auto encoded = [&](float value) {
    const std::vector<float> plain(pool.kCount, value);
    std::vector<std::byte> out(TravelBytesMax(Encoding::kRuns, pool.kCount * sizeof(float)));
    out.resize(encoding::Codecs().Encode(Encoding::kRuns, 0, std::as_bytes(std::span(plain)), out));
    return out;
  };
  pool.Push(0, 1, encoded(3));
  pool.Push(1, 1, encoded(4));
  pool.Results(1);
  for (const auto& agent : pool.agents) {
    const wire::Result result = agent->Last<wire::Result>();
    CHECK(result.length_bytes == pool.kCount * sizeof(float));
    CHECK(result.travel_bytes == 8);
    const std::vector<std::byte> expected = encoded(7);
    CHECK(std::equal(result.bytes.begin(), result.bytes.end(), expected.begin(), expected.end()));
  }
}

TEST_CASE("AggregatorDataPlane: bytes that are no encoding end the round for both members",
          "[aggregator]") {
  EncodedPool pool;
  const std::vector<uint32_t> good = {0x80000000 + pool.kCount, 0};
  const std::vector<uint32_t> bad = {0x80000000 + pool.kCount + 1, 0};
  pool.Push(0, 1, std::as_bytes(std::span(good)));
  pool.Push(1, 1, std::as_bytes(std::span(bad)));
  pool.Results(1);
  for (const auto& agent : pool.agents) {
    const wire::Result result = agent->Last<wire::Result>();
    REQUIRE(result.form == wire::Form::kDisagreement);
    const std::string text(reinterpret_cast<const char*>(result.bytes.data()), result.bytes.size());
    CHECK_THAT(text,
               Catch::Contains("node 1") && Catch::Contains("no runs encoding of 4000 bytes"));
  }
  for (const uint32_t node : {0, 1}) pool.Push(node, 2, std::as_bytes(std::span(good)));
  pool.Results(2);
  CHECK(pool.agents[0]->Last<wire::Result>().form == wire::Form::kInline);
}

}  // namespace
}  // namespace talweg::aggregator
