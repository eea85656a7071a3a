// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/membership.h"

#include <algorithm>
#include <map>
#include <memory>

#include <catch2/catch.hpp>

#include "libs/base/random.h"

namespace talweg::membership {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// A scheduler around the core: a store in memory, and what every stream was told. Checks on the way
// that nobody hears of a view that is not stored, and that epochs only grow.
class Fixture {
 public:
  explicit Fixture(Config config = {}) : config_(config) { Start(); }

  void Start() {
    streams_of_.clear();
    aggregator_streams_.clear();
    out_.clear();
    core = std::make_unique<Membership>(config_, stored, now_ns, out_);
    Drain();
  }

  static JoinRequest Request(const std::string& job, uint32_t node, uint64_t incarnation,
                             JobSpec spec) {
    return {.job_name = job,
            .spec = spec,
            .member = {.id = {NodeRank{node}, Incarnation{incarnation}},
                       .rank_count = 2,
                       .name = "host-" + std::to_string(node)}};
  }

  JoinAnswer Join(const JoinRequest& request) {
    const JoinAnswer answer = core->OnJoin(request, now_ns, out_);
    Drain();
    return answer;
  }
  Answer Attach(JobId job, MemberIdentity id, Epoch held = Epoch{0}) {
    const StreamId stream{++stream_count_};
    const Answer answer = core->OnMemberAttached(stream, job, id, held, now_ns, out_);
    if (answer.ok()) streams_of_[id] = stream;
    Drain();
    return answer;
  }
  // Joins and opens the stream.
  JobId Enter(const std::string& job, uint32_t node, uint64_t incarnation, JobSpec spec) {
    const JoinAnswer answer = Join(Request(job, node, incarnation, spec));
    REQUIRE(answer.answer == Answer{});
    REQUIRE(Attach(answer.job, {NodeRank{node}, Incarnation{incarnation}}).ok());
    return answer.job;
  }
  Answer Renew(JobId job, MemberIdentity id, Epoch held = Epoch{0}) {
    const Answer answer = core->OnRenew(job, id, held, now_ns, out_);
    Drain();
    return answer;
  }
  Answer Leave(JobId job, MemberIdentity id, LeaveReason reason = LeaveReason::kFinished,
               const std::string& text = "") {
    const Answer answer = core->OnLeave(job, id, Epoch{0}, reason, text, now_ns, out_);
    Drain();
    return answer;
  }
  Answer ReportLost(JobId job, MemberIdentity id, Lost lost, const std::string& text) {
    const Answer answer = core->OnReportLost(job, id, Epoch{0}, lost, text, now_ns, out_);
    Drain();
    return answer;
  }
  Answer Quiesced(JobId job, MemberIdentity id, QuiesceId quiesce) {
    const Answer answer = core->OnQuiesced(job, id, Epoch{0}, quiesce, now_ns, out_);
    Drain();
    return answer;
  }
  void Break(MemberIdentity id) { BreakStream(streams_of_.at(id)); }
  void BreakStream(StreamId stream) {
    core->OnStreamBroken(stream, now_ns, out_);
    Drain();
  }

  static ViewAggregator Named(const std::string& name, uint64_t incarnation) {
    return {.incarnation = Incarnation{incarnation}, .name = name, .data_address = "fi:tcp://x:1"};
  }
  Answer Register(const ViewAggregator& aggregator) {
    const Answer answer = core->OnRegister(aggregator, now_ns, out_);
    Drain();
    return answer;
  }
  Answer AttachAggregator(uint64_t incarnation, const std::vector<HeldJob>& held = {}) {
    const StreamId stream{++stream_count_};
    const Answer answer =
        core->OnAggregatorAttached(stream, Incarnation{incarnation}, held, now_ns, out_);
    if (answer.ok()) aggregator_streams_[Incarnation{incarnation}] = stream;
    Drain();
    return answer;
  }
  void AddAggregator(const std::string& name, uint64_t incarnation) {
    REQUIRE(Register(Named(name, incarnation)).ok());
    REQUIRE(AttachAggregator(incarnation).ok());
  }
  void BreakAggregator(uint64_t incarnation) {
    BreakStream(aggregator_streams_.at(Incarnation{incarnation}));
  }
  DeregisterAnswer Deregister(uint64_t incarnation, bool leave) {
    const DeregisterAnswer answer =
        core->OnDeregister(Incarnation{incarnation}, leave, "SIGTERM", now_ns, out_);
    Drain();
    return answer;
  }

  // Lets time pass as a daemon does, with everybody in `renewing` renewing.
  void Pass(int64_t ns, JobId job = JobId{0}, const std::vector<MemberIdentity>& renewing = {}) {
    const int64_t end_ns = now_ns + ns;
    while (now_ns < end_ns) {
      now_ns = std::min(end_ns, now_ns + config_.TickNs());
      for (const MemberIdentity& id : renewing) Renew(job, id);
      for (const auto& [incarnation, stream] : aggregator_streams_) {
        if (!keep_aggregators) continue;
        core->OnRenewAggregator(incarnation, now_ns, out_);
      }
      Tick();
    }
  }
  void Tick() {
    core->OnTick(now_ns, out_);
    Drain();
  }

  template <typename Message>
  std::vector<Message> Told(MemberIdentity id) const {
    std::vector<Message> messages;
    const auto stream = streams_of_.find(id);
    if (stream == streams_of_.end()) return messages;
    const auto told = told_.find(stream->second);
    if (told == told_.end()) return messages;
    for (const MemberMessage& message : told->second) {
      if (const auto* match = std::get_if<Message>(&message)) messages.push_back(*match);
    }
    return messages;
  }
  template <typename Message>
  std::vector<Message> AggregatorTold(uint64_t incarnation) const {
    std::vector<Message> messages;
    const auto told = aggregator_told_.find(aggregator_streams_.at(Incarnation{incarnation}));
    if (told == aggregator_told_.end()) return messages;
    for (const AggregatorMessage& message : told->second) {
      if (const auto* match = std::get_if<Message>(&message)) messages.push_back(*match);
    }
    return messages;
  }
  std::optional<Answer> Closed(MemberIdentity id) const {
    const auto closed = closed_.find(streams_of_.at(id));
    if (closed == closed_.end()) return std::nullopt;
    return closed->second;
  }
  std::optional<Answer> AggregatorClosed(uint64_t incarnation) const {
    const auto closed = closed_.find(aggregator_streams_.at(Incarnation{incarnation}));
    if (closed == closed_.end()) return std::nullopt;
    return closed->second;
  }
  Epoch EpochOf(JobId job) const {
    const auto& view = core->jobs().at(job).view;
    return view ? view->epoch : Epoch{0};
  }
  JobState StateOf(JobId job) const { return core->jobs().at(job).state; }

  std::unique_ptr<Membership> core;
  Snapshot stored;
  int64_t now_ns = 5 * kSecond;
  bool keep_aggregators = true;

 private:
  void CheckStored(const View& view) {
    const auto record = std::find_if(stored.jobs.begin(), stored.jobs.end(),
                                     [&](const JobRecord& job) { return job.id == view.job; });
    REQUIRE(record != stored.jobs.end());
    REQUIRE(record->view.has_value());
    CHECK(*record->view == view);
    CHECK(view.Problem() == "");
    Epoch& highest = epochs_[view.job];
    CHECK(view.epoch >= highest);
    highest = view.epoch;
  }

  void Drain() {
    bool first = true;
    for (const Effect& effect : out_) {
      if (const auto* persist = std::get_if<Persist>(&effect)) {
        // Pass() gathers the effects of several events; then each event's comes first.
        if (!std::exchange(first, false)) CHECK(false);
        Apply(persist->write, stored);
      } else if (const auto* tell = std::get_if<TellMember>(&effect)) {
        if (const auto* view = std::get_if<View>(&tell->message)) CheckStored(*view);
        told_[tell->stream].push_back(tell->message);
      } else if (const auto* tell = std::get_if<TellAggregator>(&effect)) {
        if (const auto* view = std::get_if<JobView>(&tell->message)) CheckStored(view->view);
        aggregator_told_[tell->stream].push_back(tell->message);
      } else if (const auto* close = std::get_if<CloseStream>(&effect)) {
        closed_[close->stream] = close->why;
      }
    }
    out_.clear();
  }

  const Config config_;
  uint64_t stream_count_ = 0;
  std::vector<Effect> out_;
  std::map<MemberIdentity, StreamId> streams_of_;
  std::map<Incarnation, StreamId> aggregator_streams_;
  std::map<StreamId, std::vector<MemberMessage>> told_;
  std::map<StreamId, std::vector<AggregatorMessage>> aggregator_told_;
  std::map<StreamId, Answer> closed_;
  std::map<JobId, Epoch> epochs_;
};

MemberIdentity Id(uint32_t node, uint64_t incarnation) {
  return {NodeRank{node}, Incarnation{incarnation}};
}

JobSpec Spec(uint32_t min, uint32_t max, LossPolicy policy = LossPolicy::kFailJob) {
  return {.min_members = min, .max_members = max, .loss_policy = policy};
}

bool Contains(const std::string& text, const std::string& part) {
  UNSCOPED_INFO("text: " << text);
  return text.find(part) != std::string::npos;
}

TEST_CASE("Membership: a job runs when min_members have joined and opened their streams",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 1, 11, Spec(2, 2));
  CHECK(f.StateOf(job) == JobState::kForming);
  CHECK(f.core->StateText(f.core->jobs().at(job)) == "waits for 1 more member of 2; has node 1");
  const JoinAnswer second = f.Join(Fixture::Request("mnist", 0, 10, Spec(2, 2)));
  CHECK(second.job == job);
  CHECK(f.EpochOf(job) == Epoch{0});  // Its stream is not open: it may have died.
  REQUIRE(f.Attach(job, Id(0, 10)).ok());
  CHECK(f.EpochOf(job) == Epoch{1});
  const std::vector<View> views = f.Told<View>(Id(1, 11));
  REQUIRE(views.size() == 1);
  CHECK(views[0].members[0].id == Id(0, 10));
  CHECK(views[0].members[1].id == Id(1, 11));
  CHECK(views[0].aggregators.size() == 1);
  CHECK(f.Told<View>(Id(0, 10)) == views);
  REQUIRE(f.AggregatorTold<JobView>(100).size() == 1);
  CHECK(f.AggregatorTold<JobView>(100)[0] == JobView{"mnist", views[0]});
}

TEST_CASE("Membership: a repeated Join gives the same answer", "[membership]") {
  Fixture f;
  const JoinRequest request = Fixture::Request("mnist", 0, 10, Spec(2, 2));
  const JoinAnswer first = f.Join(request);
  const Snapshot stored = f.stored;
  const JoinAnswer again = f.Join(request);
  CHECK(again.answer.ok());
  CHECK(again.job == first.job);
  CHECK(f.stored == stored);
}

TEST_CASE("Membership: several members without an aggregator wait for one; one runs alone",
          "[membership]") {
  Fixture f;
  const JobId alone = f.Enter("alone", 0, 1, Spec(1, 1));
  CHECK(f.StateOf(alone) == JobState::kRunning);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  CHECK(f.StateOf(job) == JobState::kForming);
  CHECK(Contains(f.core->StateText(f.core->jobs().at(job)), "waits for an aggregator"));
  REQUIRE(f.Register(Fixture::Named("a0", 100)).ok());
  CHECK(f.StateOf(job) == JobState::kForming);
  REQUIRE(f.AttachAggregator(100).ok());
  CHECK(f.StateOf(job) == JobState::kRunning);
}

TEST_CASE("Membership: a spec that differs is refused naming both values", "[membership]") {
  Fixture f;
  f.Enter("mnist", 0, 10, Spec(2, 2));
  const JoinAnswer answer = f.Join(Fixture::Request("mnist", 1, 11, Spec(2, 3)));
  CHECK(answer.answer.code == Code::kRefused);
  CHECK(Contains(answer.answer.text, "max_members is 2 in the job and 3 in the request"));
}

TEST_CASE("Membership: what can never be right is named", "[membership]") {
  Fixture f;
  const JoinRequest good = Fixture::Request("mnist", 0, 10, Spec(1, 1));
  const auto problem = [&](auto change) {
    JoinRequest request = good;
    change(request);
    const JoinAnswer answer = f.Join(request);
    CHECK(answer.answer.code == Code::kInvalid);
    return answer.answer.text;
  };
  CHECK(Contains(problem([](JoinRequest& r) { r.job_name = ""; }), "job_name"));
  CHECK(Contains(problem([](JoinRequest& r) { r.job_name = std::string(2000, 'x'); }), "2000"));
  CHECK(Contains(problem([](JoinRequest& r) { r.job_name = std::string("a\0b", 3); }), "NUL"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.min_members = 0; }), "min_members is 0"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.max_members = 0; }), "max_members 0"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.slice_bytes_max = 100; }), "100"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.loss_policy = LossPolicy{7}; }), "7"));
  CHECK(Contains(problem([](JoinRequest& r) { r.spec.join_timeout_ns = 0; }), "join_timeout"));
  CHECK(Contains(problem([](JoinRequest& r) { r.member.rank_count = 0; }), "rank_count is 0"));
  CHECK(Contains(problem([](JoinRequest& r) { r.member.id.incarnation = {}; }), "incarnation"));
  CHECK(f.core->jobs().empty());
  CHECK(f.Register({.incarnation = Incarnation{1}, .data_address = "x"}).code == Code::kInvalid);
  CHECK(f.Renew(f.Enter("mnist", 0, 10, Spec(1, 1)), Id(0, 10), Epoch{~uint64_t{0}}).code ==
        Code::kInvalid);
}

TEST_CASE("Membership: a node rank is held by one live incarnation", "[membership]") {
  Fixture f;
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  const JoinAnswer other = f.Join(Fixture::Request("mnist", 0, 99, Spec(2, 2)));
  CHECK(other.answer.code == Code::kHeld);
  CHECK(Contains(other.answer.text, "host-0, incarnation a"));
  CHECK(f.StateOf(job) == JobState::kForming);

  // One that never opened its stream makes room: it may have died.
  REQUIRE(f.Join(Fixture::Request("mnist", 1, 11, Spec(2, 2))).answer.ok());
  REQUIRE(f.Join(Fixture::Request("mnist", 1, 12, Spec(2, 2))).answer.ok());
  CHECK(f.Attach(job, Id(1, 11)).code == Code::kRefused);
  CHECK(Contains(f.Attach(job, Id(1, 11)).text, "replaced by incarnation c"));
}

TEST_CASE("Membership: a job has at most max_members", "[membership]") {
  Fixture f;
  f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  const JoinAnswer third = f.Join(Fixture::Request("mnist", 2, 12, Spec(2, 2)));
  CHECK(third.answer.code == Code::kFull);
  CHECK(Contains(third.answer.text, "all its 2 members (nodes 0, 1)"));
}

TEST_CASE("Membership: a broken stream fails the job at once and says who died", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  f.Break(Id(1, 11));
  CHECK(f.StateOf(job) == JobState::kFailed);
  const std::string text =
      "job 'mnist' has failed: agent of node 1 (host-1, incarnation b) closed its connection";
  REQUIRE(f.Told<JobFailed>(Id(0, 10)).size() == 1);
  CHECK(f.Told<JobFailed>(Id(0, 10))[0].text == text);
  REQUIRE(f.AggregatorTold<JobClosed>(100).size() == 1);
  CHECK(f.AggregatorTold<JobClosed>(100)[0] == JobClosed{job, text});

  // A member that missed it is told when it comes back; the dead one is not let in again.
  REQUIRE(f.Attach(job, Id(0, 10), Epoch{1}).ok());
  CHECK(f.Told<JobFailed>(Id(0, 10)).size() == 1);
  CHECK(f.Renew(job, Id(1, 11)).code == Code::kRefused);
  const JoinAnswer back = f.Join(Fixture::Request("mnist", 1, 11, Spec(2, 2)));
  CHECK(back.answer.code == Code::kRefused);
  CHECK(Contains(back.answer.text, "new incarnation"));

  // The name is free for another job with another id.
  CHECK(f.Enter("mnist", 0, 20, Spec(2, 2)) != job);
}

TEST_CASE("Membership: silence costs the lease", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  f.Pass(9 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kRunning);
  f.Pass(2 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(Contains(f.Told<JobFailed>(Id(0, 10)).at(0).text,
                 "node 1 (host-1, incarnation b) was silent for 10 s"));
}

TEST_CASE("Membership: a dead rank fails the job, and its own agent is told as well",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  REQUIRE(f.ReportLost(job, Id(1, 11), LostRank{Rank{3}}, "killed by signal 9").ok());
  for (const MemberIdentity id : {Id(0, 10), Id(1, 11)}) {
    REQUIRE(f.Told<JobFailed>(id).size() == 1);
    CHECK(Contains(f.Told<JobFailed>(id)[0].text,
                   "agent of node 1 (host-1, incarnation b) reports that rank 3 has died: killed "
                   "by signal 9"));
  }
  CHECK(f.ReportLost(job, Id(1, 11), LostRank{Rank{3}}, "killed by signal 9").ok());
  CHECK(f.Told<JobFailed>(Id(0, 10)).size() == 1);
}

TEST_CASE("Membership: a peer out of reach is noted and decides nothing", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 1));
  REQUIRE(f.ReportLost(job, Id(0, 10), LostAggregator{Incarnation{100}}, "refused").ok());
  CHECK(f.StateOf(job) == JobState::kRunning);
  REQUIRE(f.core->jobs().at(job).complaints.size() == 1);
  CHECK(f.core->jobs().at(job).complaints[0].about == "aggregator a0 (incarnation 64)");
}

TEST_CASE("Membership: an agent that is stopped is a loss, one that has finished is none",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  REQUIRE(f.Leave(job, Id(1, 11)).ok());
  CHECK(f.Leave(job, Id(1, 11)).ok());
  CHECK(f.StateOf(job) == JobState::kRunning);
  REQUIRE(f.Told<MemberLeft>(Id(0, 10)).size() == 1);
  CHECK(f.Told<MemberLeft>(Id(0, 10))[0].id == Id(1, 11));
  CHECK(f.EpochOf(job) == Epoch{1});
  REQUIRE(f.Leave(job, Id(0, 10)).ok());
  CHECK(f.StateOf(job) == JobState::kFinished);
  CHECK(f.AggregatorTold<JobClosed>(100).size() == 1);

  const JobId second = f.Enter("mnist", 0, 20, Spec(2, 2));
  f.Enter("mnist", 1, 21, Spec(2, 2));
  REQUIRE(f.Leave(second, Id(1, 21), LeaveReason::kStopped, "SIGTERM").ok());
  CHECK(f.StateOf(second) == JobState::kFailed);
  CHECK(Contains(f.Told<JobFailed>(Id(0, 20)).at(0).text, "was stopped: SIGTERM"));
}

TEST_CASE("Membership: kContinue goes on without the lost while min_members remain",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(2, 3, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  CHECK(f.EpochOf(job) == Epoch{1});
  f.Enter("mnist", 2, 12, spec);
  for (const MemberIdentity id : {Id(0, 10), Id(1, 11)}) {
    f.Quiesced(job, id, f.Told<Quiesce>(id).at(0).id);
  }
  CHECK(f.EpochOf(job) == Epoch{2});
  f.Break(Id(1, 11));
  CHECK(f.EpochOf(job) == Epoch{3});
  CHECK(f.Told<View>(Id(0, 10)).back().members.size() == 2);
  f.Break(Id(2, 12));
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(
      Contains(f.Told<JobFailed>(Id(0, 10)).at(0).text, "1 member left, the job needs at least 2"));
}

TEST_CASE("Membership: a joiner enters when every member has come to the end of its step",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(2, 4, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  f.Enter("mnist", 3, 13, spec);
  REQUIRE(f.Told<Quiesce>(Id(0, 10)).size() == 1);
  const Quiesce quiesce = f.Told<Quiesce>(Id(0, 10))[0];
  CHECK(quiesce.joining == std::vector<NodeRank>{NodeRank{3}});
  CHECK(f.Told<View>(Id(3, 13)).empty());
  f.Quiesced(job, Id(0, 10), quiesce.id);
  f.Quiesced(job, Id(0, 10), quiesce.id);
  f.Quiesced(job, Id(3, 13), quiesce.id);  // Not asked.
  CHECK(Contains(f.core->StateText(f.core->jobs().at(job)), "waits for node 1"));
  CHECK(f.EpochOf(job) == Epoch{1});

  SECTION("all answer") {
    f.Quiesced(job, Id(1, 11), QuiesceId{quiesce.id.value() + 1});
    CHECK(f.EpochOf(job) == Epoch{1});
    f.Quiesced(job, Id(1, 11), quiesce.id);
    CHECK(f.EpochOf(job) == Epoch{2});
    CHECK(f.Told<View>(Id(3, 13)).back().members.size() == 3);
    CHECK(f.Told<QuiesceCancelled>(Id(0, 10)).empty());
  }
  SECTION("a second joiner enters with the first") {
    f.Enter("mnist", 2, 12, spec);
    f.Quiesced(job, Id(1, 11), quiesce.id);
    CHECK(f.Told<View>(Id(0, 10)).back().members.size() == 4);
  }
  SECTION("the joiner dies: members let go on, no view") {
    f.Break(Id(3, 13));
    CHECK(f.Told<QuiesceCancelled>(Id(0, 10)).at(0).id == quiesce.id);
    CHECK(f.EpochOf(job) == Epoch{1});
    f.Quiesced(job, Id(1, 11), quiesce.id);  // Too late; ignored.
    CHECK(f.EpochOf(job) == Epoch{1});
  }
  SECTION("a member opens another stream: it is told what is under way") {
    REQUIRE(f.Attach(job, Id(1, 11), Epoch{1}).ok());
    CHECK(f.Told<Attached>(Id(1, 11)).at(0).quiesce == quiesce.id);
    CHECK(f.Told<Quiesce>(Id(1, 11)) == std::vector<Quiesce>{quiesce});
  }
}

TEST_CASE("Membership: a failure comes before a joiner, which is proposed again", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(2, 4, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  f.Enter("mnist", 2, 12, spec);
  for (const MemberIdentity id : {Id(0, 10), Id(1, 11)}) {
    f.Quiesced(job, id, f.Told<Quiesce>(id).at(0).id);
  }
  f.Enter("mnist", 3, 13, spec);
  const Quiesce first = f.Told<Quiesce>(Id(0, 10)).back();
  f.Quiesced(job, Id(0, 10), first.id);
  f.Break(Id(1, 11));
  const View without = f.Told<View>(Id(0, 10)).back();
  CHECK(without.epoch == Epoch{3});
  CHECK(without.members.size() == 2);
  const Quiesce second = f.Told<Quiesce>(Id(0, 10)).back();
  CHECK(second.id != first.id);
  f.Quiesced(job, Id(0, 10), second.id);
  CHECK(f.EpochOf(job) == Epoch{3});
  f.Quiesced(job, Id(2, 12), second.id);
  CHECK(f.Told<View>(Id(3, 13)).back().members.size() == 3);
}

TEST_CASE("Membership: after a restart a quiesce is proposed again, under another id",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 2));
  f.Enter("mnist", 1, 11, Spec(1, 2));
  const QuiesceId first = f.Told<Quiesce>(Id(0, 10)).at(0).id;
  f.Start();
  REQUIRE(f.AttachAggregator(100).ok());
  REQUIRE(f.Attach(job, Id(0, 10), Epoch{1}).ok());
  CHECK(f.Told<Attached>(Id(0, 10)).at(0).quiesce == QuiesceId{0});
  REQUIRE(f.Attach(job, Id(1, 11)).ok());
  REQUIRE(f.Told<Quiesce>(Id(0, 10)).size() == 1);
  const QuiesceId second = f.Told<Quiesce>(Id(0, 10))[0].id;
  CHECK(second != first);
  f.Quiesced(job, Id(0, 10), first);  // From before the restart.
  CHECK(f.EpochOf(job) == Epoch{1});
  f.Quiesced(job, Id(0, 10), second);
  CHECK(f.EpochOf(job) == Epoch{2});
}

TEST_CASE("Membership: the loss of a joiner or of a forming job's member fails nothing",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 3));
  f.Enter("mnist", 1, 11, Spec(2, 3));
  f.Enter("mnist", 2, 12, Spec(2, 3));
  f.Break(Id(2, 12));
  CHECK(f.StateOf(job) == JobState::kRunning);

  const JobId forming = f.Enter("other", 0, 30, Spec(3, 3));
  f.Enter("other", 1, 31, Spec(3, 3));
  f.Break(Id(0, 30));
  CHECK(f.StateOf(forming) == JobState::kForming);
  f.Enter("other", 0, 32, Spec(3, 3));
  f.Break(Id(0, 32));
  f.Break(Id(1, 31));
  CHECK(f.StateOf(forming) == JobState::kFailed);
}

TEST_CASE("Membership: a joiner to a job that ends is told", "[membership]") {
  Fixture f;
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 2));
  f.Enter("mnist", 1, 11, Spec(1, 2));
  CHECK(
      Contains(f.core->StateText(f.core->jobs().at(job)), "cannot enter: there is no aggregator"));
  f.Leave(job, Id(0, 10));
  CHECK(f.StateOf(job) == JobState::kFinished);
  CHECK(Contains(f.Told<JobFailed>(Id(1, 11)).at(0).text, "before node 1 could enter"));
}

TEST_CASE("Membership: a job that does not start in time fails and says what was missing",
          "[membership]") {
  Fixture f;
  JobSpec spec = Spec(3, 3);
  spec.join_timeout_ns = 60 * kSecond;
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Pass(59 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kForming);
  f.Pass(2 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(Contains(f.Told<JobFailed>(Id(0, 10)).at(0).text, "waits for 2 more members of 3"));
}

TEST_CASE("Membership: the loss of an aggregator", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  f.AddAggregator("a1", 101);
  const LossPolicy policy = GENERATE(LossPolicy::kFailJob, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2, policy));
  f.Enter("mnist", 1, 11, Spec(2, 2, policy));
  f.BreakAggregator(101);
  if (policy == LossPolicy::kFailJob) {
    CHECK(Contains(f.Told<JobFailed>(Id(0, 10)).at(0).text,
                   "aggregator a1 (incarnation 65) closed its connection"));
    return;
  }
  CHECK(f.EpochOf(job) == Epoch{2});
  CHECK(f.Told<View>(Id(0, 10)).back().aggregators.size() == 1);
  CHECK(f.Register(Fixture::Named("a1", 101)).code == Code::kRefused);
  f.BreakAggregator(100);
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(Contains(f.Told<JobFailed>(Id(0, 10)).at(0).text, "no aggregator is left"));
}

TEST_CASE("Membership: an aggregator's silence costs its lease", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 1));
  f.keep_aggregators = false;
  f.Pass(11 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kFailed);
  CHECK(Contains(f.core->jobs().at(job).text, "aggregator a0 (incarnation 64) was silent"));
  // Its connection may well live on; it is told.
  REQUIRE(f.AggregatorClosed(100).has_value());
  CHECK(f.AggregatorClosed(100)->code == Code::kRefused);
}

TEST_CASE("Membership: names in the pool are held by one live incarnation", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  CHECK(f.Register(Fixture::Named("a0", 100)).ok());
  CHECK(f.Register(Fixture::Named("a0", 200)).code == Code::kHeld);
  f.BreakAggregator(100);
  CHECK(f.Register(Fixture::Named("a0", 200)).ok());
}

TEST_CASE("Membership: an aggregator drains before it leaves", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  f.AddAggregator("a1", 101);
  const JobId fixed = f.Enter("fixed", 0, 10, Spec(1, 1));
  const JobId moving = f.Enter("moving", 0, 20, Spec(1, 1, LossPolicy::kContinue));
  CHECK(f.Deregister(101, false).job_count == 2);
  CHECK(f.EpochOf(fixed) == Epoch{1});
  CHECK(f.EpochOf(moving) == Epoch{2});
  CHECK(f.Deregister(101, false).job_count == 1);
  const JobId late = f.Enter("late", 0, 30, Spec(1, 1));
  CHECK(f.core->jobs().at(late).view->aggregators.size() == 1);
  CHECK(f.Deregister(101, true).job_count == 1);
  CHECK(f.Deregister(101, true).answer.ok());
  CHECK(f.StateOf(fixed) == JobState::kFailed);
  CHECK(Contains(f.core->jobs().at(fixed).text, "was stopped: SIGTERM"));
  CHECK(f.StateOf(moving) == JobState::kRunning);
}

TEST_CASE("Membership: a restart is unseen by a running job", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  const View view = *f.core->jobs().at(job).view;
  f.now_ns += 100 * kSecond;
  f.Start();
  CHECK(f.core->start_count() == 2);
  CHECK(f.Renew(job, Id(0, 10), Epoch{1}).ok());
  CHECK(f.Attach(job, Id(0, 10), Epoch{1}).ok());
  CHECK(f.Attach(job, Id(1, 11), Epoch{1}).ok());
  CHECK(f.AttachAggregator(100, {{job, Epoch{1}}}).ok());
  CHECK(f.Told<View>(Id(0, 10)) == std::vector<View>{view});
  f.Pass(8 * kSecond);
  CHECK(f.StateOf(job) == JobState::kRunning);
  // Nobody can slip into the place of a member that has not come back yet.
  f.Start();
  CHECK(f.Join(Fixture::Request("mnist", 1, 12, Spec(2, 2))).answer.code == Code::kHeld);
  // Whoever does not come back is lost.
  f.Pass(11 * kSecond, job, {Id(0, 10)});
  CHECK(f.StateOf(job) == JobState::kFailed);
}

TEST_CASE("Membership: a restart while a job forms", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Start();
  CHECK(f.AttachAggregator(100).ok());
  f.Enter("mnist", 1, 11, Spec(2, 2));
  CHECK(f.StateOf(job) == JobState::kForming);
  CHECK(f.Attach(job, Id(0, 10)).ok());
  CHECK(f.StateOf(job) == JobState::kRunning);
  CHECK(f.Enter("other", 0, 1, Spec(1, 1)) == job.Next());
}

TEST_CASE("Membership: a restart does not let the dead in again", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(1, 2, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  f.Enter("mnist", 1, 11, spec);
  f.Break(Id(1, 11));
  f.BreakAggregator(100);
  f.Start();
  CHECK(f.Attach(job, Id(1, 11)).code == Code::kRefused);
  CHECK(f.Join(Fixture::Request("mnist", 1, 11, spec)).answer.code == Code::kRefused);
  CHECK(f.Register(Fixture::Named("a0", 100)).code == Code::kRefused);
}

TEST_CASE("Membership: a store that is older than its members raises the epoch above theirs",
          "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobSpec spec = Spec(1, 3, LossPolicy::kContinue);
  const JobId job = f.Enter("mnist", 0, 10, spec);
  const Snapshot backup = f.stored;
  f.stored = backup;
  f.Start();
  CHECK(f.Attach(job, Id(0, 10), Epoch{7}).ok());
  CHECK(f.EpochOf(job) == Epoch{8});
  CHECK(f.Renew(job, Id(0, 10), Epoch{8}).ok());
  CHECK(f.EpochOf(job) == Epoch{8});
  // An aggregator's word counts as well, and so do ids of jobs that this store never gave.
  CHECK(f.AttachAggregator(100, {{job, Epoch{12}}, {JobId{40}, Epoch{3}}}).ok());
  CHECK(f.EpochOf(job) == Epoch{13});
  CHECK(f.AggregatorTold<JobClosed>(100).at(0).job == JobId{40});
  CHECK(f.Enter("other", 0, 1, Spec(1, 1)) == JobId{41});
  CHECK(f.Renew(JobId{50}, Id(0, 10)).code == Code::kUnknown);
}

TEST_CASE("Membership: a gap in time starts all leases afresh", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId job = f.Enter("mnist", 0, 10, Spec(2, 2));
  f.Enter("mnist", 1, 11, Spec(2, 2));
  f.now_ns += 3600 * kSecond;
  f.Tick();
  CHECK(f.StateOf(job) == JobState::kRunning);
  // Peers gave up on the paused scheduler and opened new streams; the end of the old may come
  // first.
  f.Break(Id(1, 11));
  CHECK(f.StateOf(job) == JobState::kRunning);
  CHECK(f.Attach(job, Id(1, 11), Epoch{1}).ok());
  f.Pass(9 * kSecond, job, {Id(0, 10), Id(1, 11)});
  CHECK(f.StateOf(job) == JobState::kRunning);
  f.Pass(2 * kSecond, job, {Id(0, 10), Id(1, 11)});
  f.Break(Id(1, 11));
  CHECK(f.StateOf(job) == JobState::kFailed);
}

TEST_CASE("Membership: a newer stream replaces the older, whose end is no loss", "[membership]") {
  Fixture f;
  const JobId job = f.Enter("mnist", 0, 10, Spec(1, 1));
  REQUIRE(f.Attach(job, Id(0, 10), Epoch{1}).ok());  // Stream 2.
  f.BreakStream(StreamId{1});
  f.BreakStream(StreamId{77});
  CHECK(f.StateOf(job) == JobState::kRunning);
}

TEST_CASE("Membership: jobs beside each other do not mix", "[membership]") {
  Fixture f;
  f.AddAggregator("a0", 100);
  const JobId first = f.Enter("first", 0, 10, Spec(1, 1));
  const JobId second = f.Enter("second", 0, 20, Spec(1, 1));
  CHECK(first != second);
  f.Break(Id(0, 10));
  CHECK(f.StateOf(first) == JobState::kFailed);
  CHECK(f.StateOf(second) == JobState::kRunning);
  CHECK(f.Told<JobFailed>(Id(0, 20)).empty());
}

TEST_CASE("Membership: jobs that are over are shown for a while, then forgotten", "[membership]") {
  Fixture f(Config{.history_jobs_max = 2});
  std::vector<JobId> jobs;
  for (uint64_t i = 0; i < 3; ++i) {
    jobs.push_back(f.Enter("job", 0, 10 + i, Spec(1, 1)));
    f.Leave(jobs.back(), Id(0, 10 + i));
    f.Pass(kSecond);
  }
  CHECK_FALSE(f.core->jobs().contains(jobs[0]));
  CHECK(f.core->jobs().contains(jobs[1]));
  CHECK(f.stored.jobs.size() == 2);
  f.Pass(601 * kSecond);
  CHECK(f.core->jobs().empty());
  CHECK(f.stored.jobs.empty());
  CHECK(f.stored.job_next == JobId{4});
  CHECK(f.Leave(jobs[0], Id(0, 10)).code == Code::kUnknown);
}

TEST_CASE("Membership: limits are refused with their figures", "[membership]") {
  Fixture f(Config{.jobs_max = 1, .aggregators_max = 1});
  f.Enter("first", 0, 10, Spec(1, 1));
  CHECK(f.Join(Fixture::Request("second", 0, 11, Spec(1, 1))).answer.code == Code::kFull);
  f.AddAggregator("a0", 100);
  CHECK(f.Register(Fixture::Named("a1", 101)).code == Code::kFull);
}

// Anything in any order: the fixture checks that views are stored before they are told, are valid,
// and that epochs never go back, over restarts as well.
TEST_CASE("Membership: random lives keep their promises", "[membership]") {
  uint64_t views = 0;
  uint64_t failures = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Fixture f;
    uint64_t incarnation = 1000;
    std::vector<std::pair<JobId, MemberIdentity>> members;
    std::vector<uint64_t> aggregators;
    const JobSpec spec = Spec(1 + static_cast<uint32_t>(random.Below(3)), 4,
                              random.OneIn(3) ? LossPolicy::kFailJob : LossPolicy::kContinue);
    for (int step = 0; step < 150; ++step) {
      const auto any = [&](auto& list) { return list[random.Below(list.size())]; };
      switch (random.Below(12)) {
        case 0:
        case 1: {
          const auto node = static_cast<uint32_t>(random.Below(5));
          const JoinAnswer answer =
              f.Join(Fixture::Request(random.OneIn(4) ? "b" : "a", node, ++incarnation, spec));
          if (answer.answer.ok()) members.emplace_back(answer.job, Id(node, incarnation));
          break;
        }
        case 2:
        case 3:
        case 4:
          if (!members.empty()) {
            const auto [job, id] = any(members);
            f.Attach(job, id, Epoch{random.OneIn(10) ? random.Below(20) : 0});
          }
          break;
        case 5: f.BreakStream(StreamId{1 + random.Below(60)}); break;
        case 6:
          if (!members.empty()) {
            const auto [job, id] = any(members);
            f.Leave(job, id, random.OneIn(2) ? LeaveReason::kFinished : LeaveReason::kStopped);
          }
          break;
        case 7: {
          const std::string name = "a" + std::to_string(random.Below(3));
          if (f.Register(Fixture::Named(name, ++incarnation)).ok()) {
            aggregators.push_back(incarnation);
          }
          break;
        }
        case 8:
          if (!aggregators.empty()) f.AttachAggregator(any(aggregators));
          break;
        case 9:
          for (const auto& [id, job] : f.core->jobs()) {
            if (!job.quiesce) continue;
            const auto waits_for = job.quiesce->waits_for;
            const JobId job_id = id;
            const QuiesceId quiesce = job.quiesce->id;
            for (const MemberIdentity& member : waits_for) f.Quiesced(job_id, member, quiesce);
            break;
          }
          break;
        case 10: f.Pass(static_cast<int64_t>(random.Below(4)) * kSecond); break;
        case 11:
          if (random.OneIn(3)) f.Start();
          if (!aggregators.empty() && random.OneIn(4)) {
            f.Deregister(any(aggregators), random.OneIn(2));
          }
          break;
      }
      for (const auto& [id, job] : f.core->jobs()) {
        CHECK(job.Over() + (job.state == JobState::kForming) + job.view.has_value() >= 1);
        if (job.state == JobState::kFailed) ++failures;
        if (job.state != JobState::kRunning) continue;
        CHECK(job.epoch_floor == job.view->epoch);
        views = std::max(views, job.view->epoch.value());
      }
    }
  }
  CHECK(views > 5);
  CHECK(failures > 100);
}

}  // namespace
}  // namespace talweg::membership
