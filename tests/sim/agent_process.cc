// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/agent_process.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>
#include <utility>
#include <variant>

#include "libs/base/fingerprint.h"
#include "libs/base/random.h"
#include "tests/sim/joiner_checks.h"

namespace talweg::sim {
namespace {

agent::AgentDriverOptions OptionsOf(const AgentProcess::Config& config, const std::string& name) {
  return {.job_name = config.job_name,
          .self = {NodeRank{config.node}, config.incarnation},
          .node_name = name,
          .rank_count = config.rank_count,
          .credit_bytes_max = pipeline::AgentCoreConfig{}.credit_bytes_max,
          .reduce_bytes_max = 16384,
          .unreachable_ns = config.profile->unreachable_ns,
          // Some agents give their ranks no time, and some more than they need.
          .drain_ns = static_cast<int64_t>(config.incarnation.value() % 3) * kSecond,
          .membership_changes = true,
          // The job's minimum of members is its maximum.
          .one_view = config.profile->loss_policy == membership::LossPolicy::kFailJob &&
                      config.profile->min_members == config.profile->rank_counts.size(),
          .scheduler = "the scheduler",
          .events_per_poll = 4,
          .reduce_bytes_per_poll = 1};  // One slice.
}

}  // namespace

void CellCombiner::Combine(const pipeline::TensorSpec& /*spec*/, bool /*is_final*/,
                           uint32_t /*rank_count*/, std::span<const std::byte* const> inputs,
                           std::span<std::byte> output) const {
  for (uint64_t i = 0; i < CellCount(output.size()); ++i) {
    uint64_t sum = 0;
    for (const std::byte* const input : inputs) {
      uint64_t cell = 0;
      std::memcpy(&cell, input + i * kCellBytes, sizeof cell);
      sum = sim::Combine(sum, cell);
    }
    StoreCell(output, i, sum);
  }
}

AgentProcess::AgentProcess(Timeline* timeline, Trace* trace, Network* network,
                           SchedulerProcess* scheduler, std::map<JobId, Ledger>* ledgers,
                           HostIndex host, const Config& config)
    : timeline_(timeline),
      trace_(trace),
      network_(network),
      scheduler_(scheduler),
      ledgers_(ledgers),
      host_(host),
      config_(config),
      name_(config.job_name + "/agent" + std::to_string(config.node) + "." +
            std::to_string(config.incarnation.value() % 1000)),
      clock_(timeline),
      transport_(network, host, (config.incarnation.value() << 16) + 1, this),
      registrar_(&transport_),
      rank_server_(config.rank_count, this),
      driver_(
          [&] {
            agent::AgentDriverOptions options = OptionsOf(config, name_);
            options.watch = [this](const pipeline::Effect& effect) { Watch(effect); };
            options.on_end = [this] {
              ended_ = true;
              driver_.Leave().IgnoreError();
            };
            return options;
          }(),
          {.clock = &clock_,
           .ranks = &rank_server_,
           .registrar = &registrar_,
           .combiner = &combiner_,
           .codec = &codec_,
           .memory_source = config.profile->memory_is_late ? this : nullptr}),
      data_plane_({.host_id = config.host_id}, &transport_, &driver_.memory(), &driver_.timeline(),
                  &clock_, &driver_),
      ranks_(config.rank_count),
      hasty_(Fingerprint64(config.incarnation.value(), 78)) {
  transport_.SetClaims([this] { return NextToken(); });
  for (RankProcess& rank : ranks_) rank.tensors.resize(config.profile->tensors.size());
  if (config.profile->standbys) {
    // A few agents do not know standbys. Most of the others ask to be one.
    const uint64_t draw = Fingerprint64(config.incarnation.value(), 77) % 16;
    knows_standbys_ = draw > 0;
    is_ready_ = draw < 4;
  }
  driver_.SetLink(std::make_unique<AgentLink>(
      timeline, trace, network, scheduler, &data_plane_, &transport_,
      AgentLink::Config{.job_name = config.job_name,
                        .name = name_,
                        .host_id = config.host_id,
                        .rank_count = config.rank_count,
                        .host = host,
                        .knows_standbys = knows_standbys_,
                        .profile = config.profile,
                        .on_event = [this](const rpc::MemberEvent& event) { OnMemberEvent(event); },
                        .before_send = [this](pipeline::Send& send) { WatchSend(send); },
                        .on_left =
                            [this](bool told) {
                              left_ = true;
                              if (!told)
                                trace_->Reached(
                                    "an agent ends before the scheduler answers its goodbye");
                              timeline_->After(0, [this] { config_.on_ended(this); });
                            }}));
}

void AgentProcess::Later(int64_t delay_ns, std::function<void()> event) {
  timeline_->After(delay_ns, [this, life = network_->host(host_).life(), event = std::move(event)] {
    network_->host(host_).Deliver(life, event);
  });
}

void AgentProcess::Start() {
  // Ranks may start later than their agent.
  Random random(config_.incarnation.value());
  const int64_t delay_ns = random.OneIn(2) ? 0 : random.Below(400) * kMillisecond;
  const auto say_hello = [this] {
    for (uint32_t rank = 0; rank < config_.rank_count; ++rank) SayHello(LocalRank{rank});
  };
  Run([this] { driver_.Join(); });
  if (delay_ns == 0) return say_hello();
  Later(delay_ns, say_hello);
}

void AgentProcess::SayHello(LocalRank rank) {
  rank_server_.Say(rank, [this, rank](shm::RankEventSink& sink, shm::RankConnectionId connection) {
    sink.OnRankHello(connection, {.local_rank = rank,
                                  .pid = static_cast<pid_t>(100 + rank.value()),
                                  .client_name = "trainer",
                                  .knows_standbys = !is_ready_});
  });
}

void AgentProcess::Run(const std::function<void()>& act) {
  trace_->SetSpeaker(&name_);
  act();
  CheckAfterwards();
  PollLater(kPassNs);
}

void AgentProcess::PollLater(uint64_t most_ns) {
  if (ended_ || std::exchange(poll_due_, true)) return;
  Later(static_cast<int64_t>(timeline_->random().Below(most_ns)), [this] { Poll(); });
}

void AgentProcess::Poll() {
  if (ended_) return;
  trace_->SetSpeaker(&name_);
  rank_server_.PollSockets(driver_.desk());
  driver_.Poll();
  CheckAfterwards();
  poll_due_ = false;
  int64_t deadline_ns = 0;
  if (!driver_.PrepareToSleep(&deadline_ns)) return PollLater(kReduceNs);
  WakeAt(deadline_ns);
}

void AgentProcess::WakeAt(int64_t deadline_ns) {
  const int64_t now_ns = timeline_->now_ns();
  const int64_t next_ns =
      std::min(std::max(deadline_ns, now_ns + 10 * kMillisecond), now_ns + kSecond);
  if (wake_ns_ > now_ns && wake_ns_ <= next_ns) return;
  wake_ns_ = next_ns;
  Later(next_ns - now_ns, [this, next_ns] {
    if (wake_ns_ != next_ns || ended_) return;
    CheckTold();
    PollLater(1);
  });
}

std::optional<transport::TokenClaim> AgentProcess::NextToken() {
  if (!config_.profile->members_prove) return std::nullopt;
  const view::View& view = *core().views().newest();
  return transport::TokenClaim{.identity = {.job = view.job,
                                            .epoch = view.epoch,
                                            .node = core().config().self.node,
                                            .incarnation = core().config().self.incarnation},
                               .count = ++tokens_made_};
}

bool AgentProcess::ConnectedAtBothEnds() const {
  return connected_since_ns_ &&
         std::all_of(core().owners().begin(), core().owners().end(), [this](const auto& owner) {
           const auto name = data_plane_.TransportNameOf(owner.second.connection);
           return name && network_->BothEndsOpen(host_, *name);
         });
}

void AgentProcess::Watch(const pipeline::Effect& effect) {
  std::visit(
      [this](const auto& each) {
        using Each = std::decay_t<decltype(each)>;
        if constexpr (std::is_same_v<Each, pipeline::Close>) {
          trace_->Add(timeline_->now_ns(), name_, "closes: " + each.reason);
        } else if constexpr (std::is_same_v<Each, pipeline::FailTensor>) {
          OnTensorFailed(each);
        } else if constexpr (std::is_same_v<Each, pipeline::FailRank>) {
          if (!ranks_[each.local_rank.value()].confused) {
            throw Violation{name_ + ": a rank that keeps the rules is refused: " + each.text};
          }
          trace_->Reached("a rank that breaks the rules is disconnected");
        } else if constexpr (std::is_same_v<Each, pipeline::FailJob>) {
          WatchFailure(each.text);
        } else if constexpr (std::is_same_v<Each, pipeline::ReduceSlice>) {
          WatchReduce(each);
          if (each.is_final && core().views().present()->members.size() > 1) {
            trace_->Reached("a slice that only one node gives and gets");
          }
        } else if constexpr (std::is_same_v<Each, pipeline::CopyOwn>) {
          trace_->Reached("what a node gives is copied there");
        } else if constexpr (std::is_same_v<Each, pipeline::SliceArrived>) {
          WatchArrived(each);
        } else if constexpr (std::is_same_v<Each, pipeline::AllocateTensor>) {
          WatchAllocate(each);
        } else if constexpr (std::is_same_v<Each, pipeline::LogWaiting>) {
          trace_->Add(timeline_->now_ns(), name_, "waits");
        }
      },
      effect);
}

void AgentProcess::WatchArrived(const pipeline::SliceArrived& arrived) {
  const pipeline::SliceBytes& slice = arrived.result;
  Allocated& tensor = allocated_.at(slice.tensor);
  const uint32_t part = tensor.spec.collective.part_at(slice.offset_bytes);
  for (size_t place = 0; place < plans_.size(); ++place) {
    const bool is_it = tensor.spec.name == plans_[place]->name();
    if (is_it && !Gets(place, part)) {
      throw Violation{name_ + ": gets part " + std::to_string(part) + " of " + tensor.spec.name +
                      ", which no rank here gets"};
    }
  }
  if (tensor.arriving.round != slice.round) {
    tensor.arriving = {slice.round, 0, std::make_shared<Cells>(CellCount(tensor.spec.bytes()))};
  }
  // Copies the bytes at once: a check finds what changes later.
  const Cells cells = CellsIn(driver_.memory().Readable(slice));
  std::copy(cells.begin(), cells.end(),
            tensor.arriving.cells->begin() + static_cast<ptrdiff_t>(slice.offset_bytes / 64));
  tensor.arriving.bytes += slice.length_bytes;
}

void AgentProcess::WatchAllocate(const pipeline::AllocateTensor& allocate) {
  Allocated& tensor = allocated_[allocate.tensor];
  tensor.key = TensorKey{Fingerprint64(allocate.spec.name)};
  tensor.spec = allocate.spec;
  if (!config_.profile->agent_memory_is_short || !timeline_->random().OneIn(4)) return;
  trace_->Reached("no memory for a tensor at an agent");
  if (config_.profile->memory_is_late && timeline_->random().OneIn(2)) {
    refuses_memory_ = true;  // The driver asks next for this tensor's.
  } else {
    rank_server_.memory().RefuseNextResult();
  }
}

void AgentProcess::Ask(agent::OrderNumber number, agent::MemoryOrder order) {
  absl::Status status;
  if (std::exchange(refuses_memory_, false)) status = absl::ResourceExhaustedError("not enough");
  constexpr uint64_t kMostNs[] = {kPassNs, kPassNs, kMemoryNs / 10, kMemoryNs};
  const uint64_t most_ns = kMostNs[timeline_->random().Below(std::size(kMostNs))];
  const auto delay_ns = static_cast<int64_t>(timeline_->random().Below(most_ns));
  memory_ns_ = std::max(memory_ns_, timeline_->now_ns() + delay_ns);
  Later(memory_ns_ - timeline_->now_ns(), [this, number, order = std::move(order), status] {
    if (ended_) return;
    Run([&] { driver_.OnFilled(number, status.ok() ? order.Fill() : status); });
  });
}

void AgentProcess::OnTensorFailed(const pipeline::FailTensor& failed) {
  const auto says = [&](const char* words) { return failed.text.find(words) != std::string::npos; };
  if (failed.text.empty()) throw Violation{name_ + ": a tensor failed without a reason"};
  if (ledger_ != nullptr) ledger_->OnTensorFailed();
  if (const std::optional<size_t> side = SideOf(failed.tensor)) {
    if (failed.status != pipeline::Status::kAborted &&
        failed.status != pipeline::Status::kOverBudget &&
        !ledger_->NamedByOlderNumbers(sides_[*side].name)) {
      throw Violation{name_ + ": a side tensor fails: " + failed.text};
    }
    trace_->Reached("a side tensor ends with one of its ranks");
    return EndSide(*side);
  }
  const bool is_mismatch = failed.status == pipeline::Status::kMismatch;
  // The text has one side when nobody may declare the tensor, and when a report is false.
  const bool has_one_side = says(" of rank ") || trace_->HasReached(kFalseReport);
  if (is_mismatch && !has_one_side && !(says(" declared ") && says(" declares "))) {
    throw Violation{name_ + ": a disagreement that does not name both sides: " + failed.text};
  }
  if (failed.status == pipeline::Status::kAborted) {
    trace_->Reached("a tensor fails, as its root is gone or reports were false");
  }
  if (says("there is no rank")) trace_->Reached("a broadcast from a rank that does not exist");
  const TensorKey key = allocated_.at(failed.tensor).key;
  if (says(kLostRound))
    trace_->Reached("a round is lost, as some members hold what others were to get");
  // A tensor fails by false reports although nobody is gone.
  const bool is_dead = !trace_->HasReached(kFalseReport) || says(kIsGone);
  if (failed.status == pipeline::Status::kAborted && is_dead) {
    for (size_t place = 0; place < plans_.size(); ++place) {
      if (plans_[place]->name() != allocated_.at(failed.tensor).spec.name) continue;
      ledger_->OnDead(key, {.last = core().FindTensor(key)->open_round(),
                            .member = core().config().self,
                            .epoch = core().views().present()->epoch,
                            .needed = NeededBy(place)});
    }
  }
  if (failed.status == pipeline::Status::kAborted && HearsFromItsCall(failed.tensor)) return;
  const bool goes_on = config_.profile->has_groups && failed.status == pipeline::Status::kAborted &&
                       timeline_->random().OneIn(2);
  if (goes_on) {
    trace_->Reached("a trainer goes on without a tensor that is dead");
    GoOnWithout(failed.tensor);
  }
  for (uint32_t rank = 0; rank < ranks_.size() && !goes_on; ++rank) {
    FailRankWith(LocalRank{rank}, "tensor " + std::to_string(key.value()) + failed.text,
                 is_mismatch);
  }
  // A rank that has not heard of the failure yet has pushed the next round.
  timeline_->After(network_->Delay(), [this, key, life = network_->host(host_).life()] {
    network_->host(host_).Deliver(life, [this, key] {
      const pipeline::AgentTensor& tensor = *core().FindTensor(key);
      if (core().views().has_failed() || !tensor.announced()) return;
      trace_->Reached("a push of a tensor that has failed");
      Say(LocalRank{0}, {.tensor = tensor.index, .round = tensor.open_round()});
    });
  });
}

void AgentProcess::WatchFailure(const std::string& text) {
  if (text.empty()) throw Violation{name_ + ": the job failed here without a reason"};
  trace_->Add(timeline_->now_ns(), name_, "job failed: " + text);
  // What a daemon says about another that breaks the protocol.
  static constexpr std::pair<const char*, const char*> kBlames[] = {
      {" decided to ", "the job fails: a decision contradicts what is known here"},
      {"refused a contribution", "the job fails: a contribution that a round needs was refused"},
      {" encoding of ", "the job fails: a result is no encoding"},
      {"ranks into slice", "the job fails: two slices of sums of different ranks"},
      {"cannot be used", "the job fails: a view that cannot be used"},
      {"has another view", "the job fails: a Welcome names another view"}};
  for (const auto& [words, point] : kBlames) {
    if (text.find(words) == std::string::npos) continue;
    if (!trace_->HasReached(kForged)) throw Violation{name_ + ": " + text};
    trace_->Reached(point);
  }
  CheckGivenUp(text);
}

// Returns a frame's entries as text, for the trace.
std::string AgentProcess::Details(const pipeline::Send& send) const {
  std::string text;
  const auto add = [&](TensorKey key, const std::string& what) {
    text += (text.empty() ? ": " : ", ") + core().FindTensor(key)->spec.name + what;
  };
  if (const auto* contributions = std::get_if<std::vector<wire::Contribute>>(&send.entries)) {
    for (const wire::Contribute& entry : *contributions) {
      add(entry.key, " round " + std::to_string(entry.round.value()) + " slice " +
                         std::to_string(entry.slice.value()) +
                         (entry.form == wire::Form::kEmpty ? " (empty)" : ""));
    }
  } else if (const auto* declares = std::get_if<std::vector<wire::Declare>>(&send.entries)) {
    for (const wire::Declare& entry : *declares) add(entry.key, "");
  } else if (const auto* reports = std::get_if<std::vector<wire::Report>>(&send.entries)) {
    for (const wire::Report& entry : *reports) {
      add(entry.key, " holds " + std::to_string(entry.held.value()) + ", contributed to " +
                         std::to_string(entry.contributed.value()));
    }
  } else if (const auto* failed = std::get_if<std::vector<wire::Failed>>(&send.entries)) {
    for (const wire::Failed& entry : *failed) add(entry.key, ": " + entry.text);
  }
  return text;
}

void AgentProcess::WatchSend(pipeline::Send& send) {
  if (trace_->on()) {
    trace_->Add(timeline_->now_ns(), name_,
                std::string("sends ") + wire::FrameTypeName(send.type) + " in epoch " +
                    std::to_string(send.epoch.value()) + Details(send));
  }
  if (auto* reports = std::get_if<std::vector<wire::Report>>(&send.entries)) {
    if (std::exchange(lies_, false)) {
      trace_->Reached(kFalseReport);
      reports->front().contributed = Round{reports->front().held.value() + 7};
    }
  } else if (const auto* entries = std::get_if<std::vector<wire::Contribute>>(&send.entries)) {
    for (const wire::Contribute& entry : *entries) CheckTravels(entry);
  }
}

void AgentProcess::OnMemberEvent(const rpc::MemberEvent& event) {
  if (ended_) return;
  if (const auto* joined = std::get_if<rpc::Joined>(&event)) {
    job_ = joined->job;
    ledger_ = &(*ledgers_)[job_];
  } else if (const auto* view = std::get_if<rpc::ViewPublished>(&event)) {
    return OnView(view->view);
  } else if (std::holds_alternative<rpc::JobFailed>(event) ||
             std::holds_alternative<rpc::LeaseLost>(event) ||
             std::holds_alternative<rpc::JoinRefused>(event)) {
    out_ = true;
  } else if (std::holds_alternative<rpc::Reachable>(event) ||
             std::holds_alternative<rpc::Unreachable>(event)) {
    NoteAnswer(std::holds_alternative<rpc::Reachable>(event));
  }
  Run([&] { driver_.OnMemberEvent(event); });
}

void AgentProcess::OnView(const view::View& view) {
  ledger_->OnView(view);
  trace_->Add(timeline_->now_ns(), name_, "view of epoch " + std::to_string(view.epoch.value()));
  const pipeline::Phase before = core().views().phase();
  const view::View* const held = core().views().newest();
  const bool newer = held == nullptr || held->epoch < view.epoch;
  if (newer && before == pipeline::Phase::kFencing) {
    trace_->Reached("a newer view while an agent fences");
  }
  if (newer && before == pipeline::Phase::kReporting) {
    trace_->Reached("a newer view while an agent waits for decisions");
  }
  // Rule 8: a member that is told of joiners has kept its promises to them.
  const bool has_joiner = held != nullptr && HasJoiner(*held, view) && !IsStandbyIn(*held);
  if (newer && has_joiner && view.IndexOf(core().config().self) && !trace_->HasReached(kForged)) {
    CheckNothingOpen({&core()}, view);
    CheckAtBoundary(view);
  }
  Run([&] { driver_.OnMemberEvent(rpc::ViewPublished{view}); });
  if (core().views().has_failed()) {
    if (before != pipeline::Phase::kFailed) trace_->Reached("an agent is out of the next view");
    return;
  }
  if (!told_view_ && !IsStandbyIn(view)) {
    told_view_ = view;
    if (core().views().numbers()->epoch != view.epoch) {
      trace_->Reached("a standby comes into the steps");
      // Its ranks begin when they have the view's numbers.
      Ask(LocalRank{0}, shm::BoundaryQuestion::kFollow, 0, view.epoch);
    } else {
      follows_ = true;
    }
  }
  StartRanks();
  MeetStandbys();
}

std::string AgentProcess::Unsettled() const {
  static constexpr const char* kStates[] = {"starting", "declaring", "training",
                                            "done",     "failed",    "dead"};
  std::string text =
      name_ + " (" + pipeline::PhaseName(core().views().phase()) + ", epoch " +
      std::to_string(core().views().newest() ? core().views().newest()->epoch.value() : 0) + "):";
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    text +=
        " rank " + std::to_string(rank) + " is " + kStates[static_cast<int>(ranks_[rank].state)];
    for (const RankTensor& tensor : ranks_[rank].tensors) {
      text +=
          " " + std::to_string(tensor.taken.value()) + "/" + std::to_string(tensor.pushed.value());
    }
    text += ";";
  }
  return text;
}

}  // namespace talweg::sim
