// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_SCHEDULER_CORE_FIXTURE_H_
#define TALWEG_LIBS_MEMBERSHIP_SCHEDULER_CORE_FIXTURE_H_

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/membership/quotas.h"
#include "libs/membership/scheduler_core.h"

namespace talweg::membership {

inline constexpr int64_t kSecond = 1'000'000'000;

// A scheduler around the core: a store in memory, and the messages on every stream. It checks that
// nobody hears of a view that is not stored, and that epochs only grow.
class Fixture {
 public:
  explicit Fixture(Config config = {}) : config_(config) { Start(); }

  void Start() {
    streams_of_.clear();
    aggregator_streams_.clear();
    out_.clear();
    Config config = config_;
    config.start_unix_ns = start_unix_ns;
    core = std::make_unique<SchedulerCore>(config, stored, now_ns, out_);
    Drain();
  }

  // Starts on an older store. The scheduler tells the view that it knows, which members ignore.
  void Restore(const Snapshot& backup) {
    stored = backup;
    epochs_.clear();
    Start();
  }

  static JoinRequest Request(const std::string& job, uint32_t node, uint64_t incarnation,
                             JobSpec spec) {
    return {.job_name = job,
            .spec = spec,
            .member = {.id = {NodeRank{node}, Incarnation{incarnation}},
                       .rank_count = 2,
                       .name = "host-" + std::to_string(node)},
            .secret = SecretOf(Incarnation{incarnation})};
  }
  // Each process has its own secret.
  static SecretHash SecretOf(Incarnation incarnation) {
    SecretHash secret;
    secret.bytes.fill(static_cast<uint8_t>(incarnation.value() % 251 + 1));
    return secret;
  }
  SecretHash Shown(Incarnation incarnation) const {
    return shows_secrets ? SecretOf(incarnation) : SecretHash{};
  }
  PoolCaller Own(uint64_t incarnation) const {
    return {Incarnation{incarnation}, Shown(Incarnation{incarnation})};
  }

  JoinAnswer Join(const JoinRequest& request) {
    const JoinAnswer answer = core->OnJoin(request, now_ns, out_);
    Drain();
    return answer;
  }
  Answer Attach(JobId job, view::MemberIdentity id, Epoch held = Epoch{0},
                const RanksWord& ranks = {.attached = true}) {
    const StreamId stream{++stream_count_};
    const Answer answer =
        core->OnMemberAttached(stream, {job, id, held, Shown(id.incarnation)}, ranks, now_ns, out_);
    if (answer.ok()) streams_of_[id] = stream;
    Drain();
    return answer;
  }
  // Joins and opens the stream.
  JobId Enter(const std::string& job, uint32_t node, uint64_t incarnation, JobSpec spec,
              std::optional<bool> ranks_ready = {}) {
    const RanksWord ranks = {.attached = true, .ready = ranks_ready};
    const JoinAnswer answer = Join(Request(job, node, incarnation, spec));
    REQUIRE(answer.answer == Answer{});
    REQUIRE(Attach(answer.job, {NodeRank{node}, Incarnation{incarnation}}, Epoch{0}, ranks).ok());
    return answer.job;
  }
  Answer Renew(JobId job, view::MemberIdentity id, Epoch held = Epoch{0},
               const RanksWord& ranks = {}) {
    const Answer answer =
        core->OnRenew({job, id, held, Shown(id.incarnation)}, ranks, now_ns, out_);
    Drain();
    return answer;
  }
  Answer Leave(JobId job, view::MemberIdentity id, LeaveReason reason = LeaveReason::kFinished,
               const std::string& text = "") {
    const Answer answer =
        core->OnLeave({job, id, Epoch{0}, Shown(id.incarnation)}, reason, text, now_ns, out_);
    Drain();
    return answer;
  }
  Answer LowerBeginMembers(const std::string& job, uint32_t members, bool& has_begun) {
    const Answer answer = core->OnLowerBeginMembers(job, members, has_begun, now_ns, out_);
    Drain();
    return answer;
  }
  Answer ReportLost(JobId job, view::MemberIdentity id, Lost lost, const std::string& text) {
    const Answer answer =
        core->OnReportLost({job, id, Epoch{0}, Shown(id.incarnation)}, lost, text, now_ns, out_);
    Drain();
    return answer;
  }
  Answer Quiesced(JobId job, view::MemberIdentity id, QuiesceId quiesce, uint64_t step = 1) {
    const Answer answer =
        core->OnQuiesced({job, id, Epoch{0}, Shown(id.incarnation)}, quiesce, step, now_ns, out_);
    Drain();
    return answer;
  }
  // Every member that is asked answers, until none is asked any more.
  void QuiesceAll(JobId job) {
    while (core->jobs().at(job).quiesce) {
      const QuiesceState asked = *core->jobs().at(job).quiesce;
      for (const view::MemberIdentity& id : asked.waits_for) Quiesced(job, id, asked.id);
    }
  }
  void Break(view::MemberIdentity id) { BreakStream(streams_of_.at(id)); }
  void BreakStream(StreamId stream, const std::string& shut_out = "") {
    core->OnStreamBroken(stream, now_ns, out_, shut_out);
    Drain();
  }
  void ShutOut(view::MemberIdentity id, const std::string& why) {
    BreakStream(streams_of_.at(id), why);
  }

  static view::ViewAggregator Named(const std::string& name, uint64_t incarnation) {
    return {.incarnation = Incarnation{incarnation}, .name = name, .data_address = "fi:tcp://x:1"};
  }
  Answer Register(const view::ViewAggregator& aggregator) {
    const Answer answer = core->OnRegister(aggregator, Shown(aggregator.incarnation), now_ns, out_);
    Drain();
    return answer;
  }
  Answer AttachAggregator(uint64_t incarnation, const std::vector<HeldJob>& held = {},
                          bool knows_standbys = true) {
    const StreamId stream{++stream_count_};
    const Answer answer =
        core->OnAggregatorAttached(stream, Own(incarnation), held, now_ns, out_, knows_standbys);
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
        core->OnDeregister(Own(incarnation), leave, "SIGTERM", now_ns, out_);
    Drain();
    return answer;
  }

  // Lets time pass as a daemon does; the members in `renewing` renew.
  void Pass(int64_t ns, JobId job = JobId{0},
            const std::vector<view::MemberIdentity>& renewing = {}) {
    const int64_t end_ns = now_ns + ns;
    while (now_ns < end_ns) {
      now_ns = std::min(end_ns, now_ns + config_.TickNs());
      for (const view::MemberIdentity& id : renewing) Renew(job, id);
      for (const auto& [incarnation, stream] : aggregator_streams_) {
        if (!keep_aggregators) continue;
        core->OnRenewAggregator(Own(incarnation.value()), now_ns, out_);
      }
      Tick();
    }
  }
  void SetQuotas(const std::string& text) {
    core->OnQuotas(std::get<Quotas>(Quotas::Parse(text)), now_ns, out_);
    Drain();
  }
  void Tick() {
    core->OnTick(now_ns, out_);
    Drain();
  }

  template <typename Message>
  std::vector<Message> Told(view::MemberIdentity id) const {
    std::vector<Message> messages;
    const auto stream = streams_of_.find(id);
    if (stream == streams_of_.end()) return messages;
    const auto told = told_.find(stream->second);
    if (told == told_.end()) return messages;
    // A shared view counts as one.
    using Kind = std::conditional_t<std::is_same_v<Message, view::View>, SharedView, Message>;
    for (const MemberMessage& message : told->second) {
      const auto* match = std::get_if<Kind>(&message);
      if (match == nullptr) continue;
      if constexpr (std::is_same_v<Message, view::View>) {
        messages.push_back(**match);
      } else {
        messages.push_back(*match);
      }
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
  std::optional<Answer> Closed(view::MemberIdentity id) const {
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

  std::unique_ptr<SchedulerCore> core;
  Snapshot stored;
  int64_t start_unix_ns = 0;  // For the next Start().
  int64_t now_ns = 5 * kSecond;
  bool keep_aggregators = true;
  bool shows_secrets = true;  // False: callers do not show secrets.
  std::vector<std::string> notes;

 private:
  void CheckStored(const view::View& view) {
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
        // One Drain has at most one Persist; CheckStored sees that it comes before the views.
        if (!std::exchange(first, false)) CHECK(false);
        Apply(persist->write, stored);
      } else if (const auto* tell = std::get_if<TellMember>(&effect)) {
        if (const auto* view = std::get_if<SharedView>(&tell->message)) CheckStored(**view);
        told_[tell->stream].push_back(tell->message);
      } else if (const auto* tell = std::get_if<TellAggregator>(&effect)) {
        if (const auto* view = std::get_if<JobView>(&tell->message)) CheckStored(*view->view);
        aggregator_told_[tell->stream].push_back(tell->message);
      } else if (const auto* close = std::get_if<CloseStream>(&effect)) {
        closed_[close->stream] = close->why;
      } else if (const auto* note = std::get_if<Note>(&effect)) {
        notes.push_back(note->text);
      }
    }
    out_.clear();
  }

  const Config config_;
  uint64_t stream_count_ = 0;
  std::vector<Effect> out_;
  std::map<view::MemberIdentity, StreamId> streams_of_;
  std::map<Incarnation, StreamId> aggregator_streams_;
  std::map<StreamId, std::vector<MemberMessage>> told_;
  std::map<StreamId, std::vector<AggregatorMessage>> aggregator_told_;
  std::map<StreamId, Answer> closed_;
  std::map<JobId, Epoch> epochs_;
};

inline view::MemberIdentity Id(uint32_t node, uint64_t incarnation) {
  return {NodeRank{node}, Incarnation{incarnation}};
}

inline JobSpec Spec(uint32_t min, uint32_t max, LossPolicy policy = LossPolicy::kFailJob) {
  return {.min_members = min, .max_members = max, .loss_policy = policy};
}

inline bool Contains(const std::string& text, const std::string& part) {
  UNSCOPED_INFO("text: " << text);
  return text.find(part) != std::string::npos;
}

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_SCHEDULER_CORE_FIXTURE_H_
