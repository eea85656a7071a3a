// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <future>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/descriptor.h"
#include "libs/base/test_directory.h"
#include "libs/rpc/admin_client.h"
#include "libs/rpc/admin_service.h"
#include "libs/rpc/call_gate.h"
#include "libs/rpc/conversion.h"
#include "libs/rpc/secret.h"
#include "libs/rpc/server.h"

namespace talweg::rpc {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

bool Contains(const std::string& text, const std::string& part) {
  UNSCOPED_INFO("text: " << text);
  return text.find(part) != std::string::npos;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

view::View SomeView() {
  return {.job = JobId{~uint64_t{0}},
          .epoch = Epoch{uint64_t{1} << 63},
          .slice_bytes_max = 4096,
          .dealing = {.rule = DealingRule::kWeighted, .constant = ~uint32_t{0}},
          .members = {{.id = {NodeRank{0}, Incarnation{~uint64_t{0}}},
                       .rank_count = 3,
                       .name = "höst",
                       .admin_address = "[::1]:1"},
                      {.id = {NodeRank{~uint32_t{0}}, Incarnation{1}}, .rank_count = 1}},
          .aggregators = {{.incarnation = Incarnation{5},
                           .name = "a",
                           .weight = 7,
                           .data_address = "fi:tcp://x:1",
                           .host_id = "h",
                           .admin_address = "x:2"}}};
}

TEST_CASE("Conversion: a view is read back unchanged", "[rpc]") {
  const view::View view = SomeView();
  const absl::StatusOr<view::View> back = FromProto(ToProto(view));
  INFO(back.status().ToString());
  REQUIRE(back.ok());
  CHECK(*back == view);
}

TEST_CASE("Conversion: a view that is invalid, or was computed by other rules, is refused",
          "[rpc]") {
  scheduler::v1::View message = ToProto(SomeView());
  message.mutable_members(0)->set_rank_count(4);
  CHECK(Contains(Message(FromProto(message).status()), "another digest"));
  message = ToProto(SomeView());
  message.mutable_members()->SwapElements(0, 1);
  CHECK(Contains(Message(FromProto(message).status()), "ascending"));
  CHECK_FALSE(FromProto(scheduler::v1::View()).ok());
}

// Returns what the change from `base` to `view` makes of `base`. `whole`: the change carries all
// aggregators, for a receiver that takes no changes of them.
absl::StatusOr<view::View> After(const view::View& base, const view::View& view, bool whole) {
  scheduler::v1::WatchViewsResponse::ViewChange change = ChangeOf(base, view);
  if (whole) {
    change.clear_aggregators();
    for (const view::ViewAggregator& aggregator : view.aggregators) {
      *change.mutable_view()->add_aggregators() = ToProto(aggregator);
    }
  }
  return Changed(base, change);
}

view::ViewAggregator Summing(uint64_t incarnation, const std::string& name, uint32_t weight) {
  return {.incarnation = Incarnation{incarnation},
          .name = name,
          .weight = weight,
          .data_address = "fi:tcp://" + name};
}

TEST_CASE("Conversion: a view is rebuilt from what it changes of the one before", "[rpc]") {
  view::View base = SomeView();
  base.members.insert(base.members.begin() + 1,
                      {.id = {NodeRank{7}, Incarnation{70}}, .rank_count = 2, .name = "seven"});
  base.aggregators = {Summing(1, "a", 4), Summing(2, "b", 4), Summing(3, "c", 6)};
  view::View view = base;
  view.epoch = Epoch{base.epoch.value() + 1};
  view.steps = 12;

  SECTION("The members stay") {}
  SECTION("A member is lost") { view.members.erase(view.members.begin() + 1); }
  SECTION("A member enters between others") {
    view.members.insert(view.members.begin() + 1,
                        {.id = {NodeRank{3}, Incarnation{30}}, .rank_count = 1});
  }
  SECTION("A member has come back as another incarnation") {
    view.members[1].id.incarnation = Incarnation{71};
    view.members[1].name = "another";
  }
  SECTION("A member reports another name") { view.members[1].name = "8"; }
  SECTION("A standby becomes a full member") {
    base.members[1].standby = true;
    view.members[1].standby = false;
  }
  SECTION("All members are new") {
    view.members = {{.id = {NodeRank{1}, Incarnation{1}}, .rank_count = 1}};
    view.aggregators.clear();
  }
  SECTION("An aggregator is lost") { view.aggregators.erase(view.aggregators.begin()); }
  SECTION("An aggregator enters between others") {
    view.aggregators.insert(view.aggregators.begin() + 1, Summing(9, "aa", 4));
  }
  SECTION("An aggregator has come back as another incarnation") {
    view.aggregators[1].incarnation = Incarnation{20};
  }
  SECTION("An aggregator has another address") {
    view.aggregators[1].data_address = "fi:tcp://elsewhere";
  }
  SECTION("Two aggregators are lost, and all others have other weights") {
    base.aggregators.push_back(Summing(4, "d", 6));
    view.aggregators = {Summing(2, "b", 6), Summing(4, "d", 4)};
  }
  SECTION("Two aggregators with one weight now have different ones") {
    view.aggregators[0].weight = 7;
    view.aggregators[1].weight = 8;
  }
  SECTION("The second of two aggregators with one weight now has another one") {
    view.aggregators[1].weight = 8;
  }
  for (const bool whole : {false, true}) {
    const absl::StatusOr<view::View> back = After(base, view, whole);
    INFO(back.status().ToString());
    REQUIRE(back.ok());
    CHECK(*back == view);
  }
}

TEST_CASE("Conversion: a change does not name members that stay", "[rpc]") {
  view::View base = SomeView();
  base.aggregators = {Summing(1, "a", 4), Summing(2, "b", 4), Summing(3, "c", 4)};
  view::View view = base;
  view.members.pop_back();
  view.aggregators = {Summing(1, "a", 3), Summing(3, "c", 3)};
  const scheduler::v1::WatchViewsResponse::ViewChange change = ChangeOf(base, view);
  CHECK(change.view().aggregators_size() == 0);
  CHECK(change.aggregators().entered_size() == 0);
  REQUIRE(change.aggregators().left_size() == 1);
  CHECK(change.aggregators().left(0) == 2);
  REQUIRE(change.aggregators().reweighed_size() == 1);
  CHECK(change.aggregators().reweighed(0).from() == 4);
  CHECK(change.aggregators().reweighed(0).to() == 3);
  CHECK(change.view().members_size() == 0);
  CHECK(change.entered_size() == 0);
  REQUIRE(change.left_node_ranks_size() == 1);
  CHECK(change.left_node_ranks(0) == ~uint32_t{0});
}

TEST_CASE("Conversion: a change of another view is refused", "[rpc]") {
  const view::View base = SomeView();
  view::View view = base;
  view.members.pop_back();
  view.aggregators.clear();
  const scheduler::v1::WatchViewsResponse::ViewChange change = ChangeOf(base, view);
  view::View other = base;
  other.epoch = Epoch{3};
  CHECK(Contains(Message(Changed(other, change).status()), "that of epoch 3"));
  other = base;
  other.job = JobId{2};
  CHECK(Contains(Message(Changed(other, change).status()), "of job 2 came before it"));
  other = base;
  other.members[0].rank_count = 9;
  CHECK(Contains(Message(Changed(other, change).status()), "another digest"));
  // This node is in the view already.
  scheduler::v1::WatchViewsResponse::ViewChange twice = change;
  *twice.add_entered() = ToProto(base.members[0]);
  CHECK(Contains(Message(Changed(base, twice).status()), "ascending"));
}

TEST_CASE("Conversion: a spec is read back, and is refused without a policy", "[rpc]") {
  for (const auto policy : {membership::LossPolicy::kFailJob, membership::LossPolicy::kContinue}) {
    const membership::JobSpec spec{.min_members = 2,
                                   .max_members = 9,
                                   .begin_members = 3,
                                   .slice_bytes_max = 8192,
                                   .dealing = {.rule = DealingRule::kSdbm},
                                   .loss_policy = policy,
                                   .join_timeout_ns = 1'500'000'000,
                                   .gather_ns = 2'500'000'000};
    const auto back = FromProto(ToProto(spec));
    REQUIRE(back.ok());
    CHECK(*back == spec);
  }
  scheduler::v1::JobSpec message = ToProto(membership::JobSpec{});
  message.clear_dealing();  // A release that knows only one way of dealing leaves it out.
  CHECK(FromProto(message)->dealing == Dealing{});
  for (const int none : {-1, 7, 256 + 1}) {
    message.mutable_dealing()->set_rule(static_cast<scheduler::v1::DealingRule>(none));
    CHECK_FALSE(IsValid(FromProto(message)->dealing));
  }
  message.clear_dealing();
  message.clear_join_timeout();
  message.clear_gather();
  CHECK(FromProto(message)->join_timeout_ns == 600 * kSecond);
  CHECK(FromProto(message)->gather_ns == 30 * kSecond);
  CHECK(FromProto(message)->BeginMembers() == message.max_members());
  message.set_loss_policy(scheduler::v1::LOSS_POLICY_UNSPECIFIED);
  CHECK(Contains(Message(FromProto(message).status()), "loss_policy is 0"));
  message.set_loss_policy(static_cast<scheduler::v1::LossPolicy>(77));
  CHECK(Contains(Message(FromProto(message).status()), "loss_policy is 77"));
}

TEST_CASE("Conversion: durations that are too long are cut to the longest", "[rpc]") {
  for (const int64_t ns : {int64_t{0}, int64_t{1}, -kSecond - 5, kSecond * 3 / 2}) {
    CHECK(NsFromDuration(DurationFromNs(ns)) == ns);
  }
  google::protobuf::Duration duration;
  duration.set_seconds(std::numeric_limits<int64_t>::max());
  CHECK(NsFromDuration(duration) == std::numeric_limits<int64_t>::max());
  duration.set_seconds(std::numeric_limits<int64_t>::min());
  CHECK(NsFromDuration(duration) == -std::numeric_limits<int64_t>::max());
}

TEST_CASE("Conversion: text that is not UTF-8 is refused", "[rpc]") {
  for (const char* good : {"", "abc", "\xc3\xbc", "\xe6\xbc\xa2", "\xf0\x9f\x98\x80"}) {
    CHECK(IsUtf8(good));
    CHECK(CleanUtf8(good) == good);
  }
  // Cut short, a lone continuation, a form that is too long, a surrogate, past the last code point.
  for (const char* bad : {"\xc3", "\x80", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xff", "\xe6\xbc"}) {
    CHECK_FALSE(IsUtf8(bad));
    CHECK(IsUtf8(CleanUtf8(bad)));
  }
  CHECK(CleanUtf8("a\xff"
                  "b") ==
        "a\xef\xbf\xbd"
        "b");
}

TEST_CASE("Conversion: nothing that AdminService shows lets anybody in", "[rpc]") {
  view::View view{.job = JobId{1}, .epoch = Epoch{2}, .slice_bytes_max = 65536};
  view.members.push_back({.id = {NodeRank{3}, Incarnation{77}}, .rank_count = 2, .name = "n"});
  view.aggregators.push_back({.incarnation = Incarnation{78},
                              .name = "a0",
                              .data_address = "fi:tcp://10.0.0.3:7001/0123456789abcdef,local:@x"});
  const scheduler::v1::View shown = ToShown(view);
  CHECK(shown.epoch() == 2);
  CHECK(shown.digest() == 0);
  CHECK(shown.members(0).id().node_rank() == 3);
  CHECK(shown.members(0).id().incarnation() == 0);
  CHECK(shown.members(0).name() == "n");
  CHECK(shown.aggregators(0).incarnation() == 0);
  CHECK(shown.aggregators(0).data_address() == "fi:tcp://10.0.0.3:7001,local");
}

TEST_CASE("Secret: each one is drawn anew, and hashed with SHA-256", "[rpc]") {
  CHECK(NewSecret().size() == kSecretBytes);
  CHECK(NewSecret() != NewSecret());
  // The example of FIPS 180-2.
  const membership::SecretHash hash = HashOf("abc");
  CHECK(hash.bytes[0] == 0xba);
  CHECK(hash.bytes[1] == 0x78);
  CHECK(hash.bytes[31] == 0xad);
  membership::SecretHash other = hash;
  CHECK(membership::SameSecret(hash, other));
  other.bytes[31] ^= 1;
  CHECK_FALSE(membership::SameSecret(hash, other));
}

TEST_CASE("Version: the major number must be the same, and the minor may differ", "[rpc]") {
  CHECK(VersionProblem({1, 0, "a"}, {1, 9, "b"}, "x") == "");
  const std::string problem = VersionProblem({1, 0, "0.1.0"}, {2, 5, ""}, "the agent of node 3");
  CHECK(Contains(problem, "the agent of node 3 speaks version 2.5 (build unknown)"));
  CHECK(Contains(problem, "this process 1.0 (build 0.1.0)"));
}

// A daemon that answers when the test tells it to.
struct Held {
  void Keep(Done<agent::v1::GetStatusResponse> done) {
    const std::lock_guard lock(mutex);
    waiting.push_back(std::move(done));
  }
  std::mutex mutex;
  std::vector<Done<agent::v1::GetStatusResponse>> waiting;
};

TEST_CASE("Admin service: answers and errors come back with their words", "[rpc]") {
  AgentAdminHandlers handlers;
  handlers.get_status = [](const agent::v1::GetStatusRequest& request,
                           const Done<agent::v1::GetStatusResponse>& done) {
    if (request.open_rounds_max() == 13) return done(absl::NotFoundError("no such thing"));
    agent::v1::GetStatusResponse response;
    response.set_job_name("mnist");
    response.set_open_round_count(request.open_rounds_max());
    done(response);
  };
  int pieces = 0;
  handlers.get_trace = [&pieces](TraceRange range, const Done<TracePiece>& done) {
    TracePiece piece;
    if (++pieces == 1) range = {.next = 3, .end = 10'003, .missed = 3};
    for (int i = 0; i < 999 && !range.IsRead(); ++i)
      piece.events.add_events()->set_round(range.next++);
    piece.events.set_dropped(range.missed);
    piece.rest = range;
    done(piece);
  };
  const auto service = MakeAgentAdminService(std::move(handlers));
  const auto server = Server::Start({}, {service->service()});
  REQUIRE(server.ok());
  AgentAdminClient client((*server)->address(), 30 * kSecond);
  agent::v1::GetStatusRequest request;
  request.set_open_rounds_max(5);
  const auto status = client.GetStatus(request);
  REQUIRE(status.ok());
  CHECK(status->job_name() == "mnist");
  CHECK(status->open_round_count() == 5);
  request.set_open_rounds_max(13);
  CHECK(client.GetStatus(request).status() == absl::NotFoundError("no such thing"));
  const auto trace = client.GetTrace();
  REQUIRE(trace.ok());
  CHECK(trace->dropped() == 3);
  REQUIRE(trace->events_size() == 10'000);
  CHECK(trace->events(0).round() == 3);
  CHECK(trace->events(9'999).round() == 10'002);
  CHECK(pieces == 11);
  CHECK(client.SetTrace({}).code() == absl::StatusCode::kUnimplemented);
  // Another daemon serves at this address.
  SchedulerAdminClient other((*server)->address(), 30 * kSecond);
  CHECK(Contains(Message(other.ListJobs().status()), "is it another daemon"));
}

TEST_CASE("Admin service: an owner that does not answer costs its caller no more than the deadline",
          "[rpc]") {
  Held held;
  AgentAdminHandlers handlers;
  handlers.get_status = [&held](const agent::v1::GetStatusRequest&,
                                Done<agent::v1::GetStatusResponse> done) {
    held.Keep(std::move(done));
  };
  auto service = MakeAgentAdminService(std::move(handlers));
  auto server = Server::Start({}, {service->service()});
  REQUIRE(server.ok());
  AgentAdminClient client((*server)->address(), kSecond / 10);
  const absl::Status status = client.GetStatus({}).status();
  CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(Contains(Message(status), "agent at 127.0.0.1:"));
  server->reset();
  service.reset();
  // The answer comes too late, and does no harm.
  const std::lock_guard lock(held.mutex);
  REQUIRE(held.waiting.size() == 1);
  held.waiting[0](agent::v1::GetStatusResponse());
}

TEST_CASE("Admin service: only so many timelines are read at a time", "[rpc]") {
  std::mutex mutex;
  std::condition_variable asked;
  std::vector<Done<TracePiece>> waiting;
  AgentAdminHandlers handlers;
  handlers.get_trace = [&](const TraceRange&, Done<TracePiece> done) {
    const std::lock_guard lock(mutex);
    waiting.push_back(std::move(done));
    asked.notify_all();
  };
  const auto service = MakeAgentAdminService(std::move(handlers));
  const auto server = Server::Start({}, {service->service()});
  REQUIRE(server.ok());
  const auto read = [&] {
    return AgentAdminClient((*server)->address(), 60 * kSecond).GetTrace().status();
  };
  auto one = std::async(std::launch::async, read);
  auto other = std::async(std::launch::async, read);
  {
    std::unique_lock lock(mutex);
    asked.wait(lock, [&] { return waiting.size() == 2; });
  }
  const absl::Status third = read();
  CHECK(third.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Contains(Message(third), "2 timelines of this agent are being read"));
  const TracePiece last{.rest = {.end = 0}};
  for (const auto& done : waiting) done(last);
  CHECK(one.get().ok());
  CHECK(other.get().ok());
  // The server notices the end of a call a little after its client.
  auto after = std::async(std::launch::async, [&] {
    absl::Status status = read();
    while (status.code() == absl::StatusCode::kResourceExhausted) status = read();
    return status;
  });
  std::unique_lock lock(mutex);
  asked.wait(lock, [&] { return waiting.size() == 3; });
  waiting[2](last);
  CHECK(after.get().ok());
}

TEST_CASE("Server: a peer that calls too often is refused, on each port and by every service",
          "[rpc]") {
  const auto gate = std::make_shared<CallGate>(CallLimitOptions{.per_second_max = 3});
  AgentAdminHandlers handlers;
  handlers.get_status = [](const agent::v1::GetStatusRequest&,
                           const Done<agent::v1::GetStatusResponse>& done) {
    done(agent::v1::GetStatusResponse());
  };
  const auto service = MakeAgentAdminService(std::move(handlers), gate);
  {
    const auto server = Server::Start({.gate = gate}, {service->service()});
    REQUIRE(server.ok());
    AgentAdminClient client((*server)->address(), 30 * kSecond);
    absl::Status status;
    for (int i = 0; i < 1000 && status.ok(); ++i) status = client.GetStatus({}).status();
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    const std::string self = "user " + std::to_string(geteuid());
    CHECK(Contains(Message(status), self + " has made the peer_calls_per_second_max=3 calls"));
    status = absl::OkStatus();
    for (int i = 0; i < 1000 && status.ok(); ++i) {
      status = CheckHealth((*server)->address(), "", 30 * kSecond);
    }
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    CHECK(gate->refused_count() >= 2);
  }
  const TestDirectory directory;
  const auto server = Server::Start({.unix_path = directory.Path("daemon.sock"), .gate = gate},
                                    {service->service()});
  REQUIRE(server.ok());
  AgentAdminClient client((*server)->address(), 30 * kSecond);
  for (int i = 0; i < 100; ++i) CHECK(client.GetStatus({}).ok());
}

TEST_CASE("Admin service: a question counts until it is answered, even if its caller has gone",
          "[rpc]") {
  Held held;
  AgentAdminHandlers handlers;
  handlers.get_status = [&held](const agent::v1::GetStatusRequest&,
                                Done<agent::v1::GetStatusResponse> done) {
    held.Keep(std::move(done));
  };
  const auto gate = std::make_shared<CallGate>(CallLimitOptions{.questions_open_max = 1});
  const auto service = MakeAgentAdminService(std::move(handlers), gate);
  const auto server = Server::Start({.gate = gate}, {service->service()});
  REQUIRE(server.ok());
  const auto ask = [&](int64_t timeout_ns) {
    return AgentAdminClient((*server)->address(), timeout_ns).GetStatus({}).status();
  };
  REQUIRE(ask(kSecond / 10).code() == absl::StatusCode::kDeadlineExceeded);
  const std::string self = "user " + std::to_string(geteuid());
  const absl::Status second = ask(30 * kSecond);
  CHECK(second.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Contains(Message(second), self + " has 1 question open (AdminService)"));
  {
    const std::lock_guard lock(held.mutex);
    REQUIRE(held.waiting.size() == 1);
    agent::v1::GetStatusResponse long_answer;
    long_answer.set_job_name(std::string(1000 * CallLimits::kAnswerBytesOfCall, 'x'));
    held.waiting[0](long_answer);
    held.waiting.clear();
  }
  const absl::Status third = ask(30 * kSecond);
  CHECK(third.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Contains(Message(third), "long answers counted as several"));
}

TEST_CASE("Admin client: an error says that nobody is there, or that there is no address",
          "[rpc]") {
  std::string address;
  {
    const auto server = Server::Start({}, {});
    REQUIRE(server.ok());
    address = (*server)->address();
  }
  AggregatorAdminClient gone(address, 30 * kSecond);
  const absl::Status status = gone.GetStatus({}).status();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK(Contains(Message(status), "aggregator at " + address + " does not answer"));
  CHECK(Contains(Message(AgentAdminClient("nonsense", kSecond).GetStatus({}).status()),
                 "the agent's address 'nonsense' is not host:port"));
  CHECK(CheckHealth("nonsense", "", kSecond).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("Server: only its user may open its Unix socket", "[rpc]") {
  const TestDirectory directory;
  const ServerOptions options{.unix_path = directory.Path("daemon.sock")};
  AgentAdminHandlers handlers;
  handlers.get_status = [](const agent::v1::GetStatusRequest&,
                           const Done<agent::v1::GetStatusResponse>& done) {
    agent::v1::GetStatusResponse response;
    response.set_job_name("mnist");
    done(response);
  };
  const auto service = MakeAgentAdminService(std::move(handlers));
  umask(0);
  auto server = Server::Start(options, {service->service()});
  INFO(server.status().ToString());
  REQUIRE(server.ok());
  CHECK((*server)->address() == "unix:" + options.unix_path);
  CHECK((*server)->port() == 0);
  CHECK((*server)->warning().empty());
  CHECK(umask(0) == 0);
  struct stat status;
  REQUIRE(stat(options.unix_path.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
  CHECK(AgentAdminClient((*server)->address(), 30 * kSecond).GetStatus({})->job_name() == "mnist");
  CHECK(CheckHealth((*server)->address(), "", 30 * kSecond).ok());
  // A second server does not push the first one aside.
  const auto second = Server::Start(options, {});
  CHECK(second.status().code() == absl::StatusCode::kAlreadyExists);
  CHECK(Contains(Message(second.status()), options.unix_path));
  CHECK(AgentAdminClient((*server)->address(), 30 * kSecond).GetStatus({}).ok());
  server->reset();
  CHECK(stat(options.unix_path.c_str(), &status) != 0);
}

TEST_CASE("Server: what lies at a Unix socket's path is replaced, or refused", "[rpc]") {
  const TestDirectory directory;
  ServerOptions options{.unix_path = directory.Path("daemon.sock")};
  SECTION("The socket of a killed process is replaced") {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    options.unix_path.copy(address.sun_path, sizeof address.sun_path - 1);
    const Descriptor dead(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    CHECK(Server::Start(options, {}).ok());
  }
  SECTION("A file stays") {
    std::ofstream(options.unix_path) << "text";
    CHECK_FALSE(Server::Start(options, {}).ok());
    CHECK(std::ifstream(options.unix_path).peek() == 't');
  }
  SECTION("There is no directory") {
    options.unix_path = directory.Path("none/daemon.sock");
    const absl::Status status = Server::Start(options, {}).status();
    CHECK(Contains(Message(status), options.unix_path));
  }
  SECTION("The path is too long") {
    options.unix_path = "/tmp/" + std::string(110, 'x');
    CHECK_FALSE(Server::Start(options, {}).ok());
  }
}

TEST_CASE("Server: the error names a full table of descriptors, not a port that is taken",
          "[rpc]") {
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  // This is enough to try whether the port is free, and too few for gRPC.
  const Descriptor lowest(dup(0));
  const rlimit few{static_cast<rlim_t>(lowest.get()) + 3, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const auto server = Server::Start({.bind_host = "127.0.0.1"}, {});
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE_FALSE(server.ok());
  CHECK(server.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(Contains(Message(server.status()), "ulimit -n"));
}

}  // namespace
}  // namespace talweg::rpc
