// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/scale.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libs/aggregation/aggregator_core.h"
#include "libs/rpc/conversion.h"
#include "libs/store/store.h"
#include "libs/telemetry/log.h"
#include "libs/wire/frames.h"
#include "services/aggregator/outbox.h"
#include "services/scheduler/scheduler_driver.h"
#include "tests/sim/scale_members.h"
#include "tests/sim/scale_time.h"

namespace talweg::sim {
namespace {

namespace v1 = talweg::scheduler::v1;
using wire::FrameType;

constexpr int64_t kSecond = 1'000'000'000;

template <typename Response>
class CountedStream final : public scheduler::Stream<Response> {
 public:
  explicit CountedStream(std::function<void(Response)> on_message)
      : on_message_(std::move(on_message)) {}
  void Send(Response response) override { on_message_(std::move(response)); }
  void End(const absl::Status&) override {}
  void Cut(const std::string&) override {}

 private:
  const std::function<void(Response)> on_message_;
};

// A summing process: its core, and the frames that it makes.
struct Aggregator {
  Station station;
  aggregation::MemoryBudget budget{uint64_t{1} << 60};
  std::optional<aggregation::AggregatorCore> job;  // Present after the job's first view.
  std::map<ConnectionId, aggregator::Outbox> outboxes;
  // What the present event posts, in order.
  std::vector<std::pair<ConnectionId, std::shared_ptr<FrameInFlight>>> posted;
};

class ScaleWorld final : public Peers {
 public:
  explicit ScaleWorld(const ScaleOptions& options)
      : options_(options),
        collective_(Collective::Of(DType::kF32, Op::kSum,
                                   uint64_t{options.aggregators} * view::kStripeBytesMin / 4)),
        time_(options),
        scheduler_({.lease_ns = 100'000 * kSecond}, {}, store::MakeMemoryStore(), &time_,
                   [](const absl::Status&) {}) {}

  ScaleResult Measure() {
    ScaleResult result;
    const uint32_t last = options_.members - 1;
    if (!scheduler_.Open().ok()) result.problem = "the scheduler does not open";
    AddAggregators();
    for (uint32_t i = 0; i < options_.members; ++i) {
      members_.emplace_back();
      Join(i);
    }
    time_.Run();
    for (Seat& seat : members_) seat.participant->Push();
    time_.Run();
    Check(1, "the first round", result);

    for (uint32_t i = 0; i < last; ++i) members_[i].participant->Push();
    time_.Run();
    int64_t began_ns = Reset();
    Lose(last);
    time_.Run();
    result.loss = Costs(began_ns);
    Check(2, "the round after the loss", result);

    began_ns = Reset();
    Join(last);
    time_.Run();
    result.join = Costs(began_ns);
    Check(2, "the join", result);
    for (Seat& seat : members_) seat.participant->Push();
    time_.Run();
    Check(3, "the round after the join", result);
    return result;
  }

  void ToAggregator(uint32_t member, uint32_t aggregator,
                    std::shared_ptr<FrameInFlight> frame) override {
    Seat& seat = members_[member];
    const ConnectionId connection = ConnectionOf(member);
    time_.Send(seat.station, aggregators_[aggregator]->station, frame->size(), [=, this] {
      Run(aggregator,
          [&](aggregation::AggregatorCore& job, aggregation::AggregatorCore::Effects& out) {
            const wire::Frame parsed = frame->Parse();
            job.OnFrame(connection, parsed, time_.NowNs(), out);
          });
    });
  }

  void Quiesced(uint32_t member, uint64_t id, uint64_t step) override {
    v1::QuiescedRequest request;
    Identify(member, request);
    request.set_quiesce_id(id);
    request.set_step(step);
    Call<v1::QuiescedResponse>(member, request, &scheduler::SchedulerDriver::Quiesced);
  }

 private:
  // A node's place in the job, and the agent that holds it.
  struct Seat {
    Station station;
    uint64_t life = 0;
    std::unique_ptr<Participant> participant;
    membership::StreamId stream;
    uint64_t job = 0;
  };

  uint64_t IncarnationOf(uint32_t member) const {
    return 1000 + member + members_[member].life * 1'000'000;
  }
  ConnectionId ConnectionOf(uint32_t member) const { return ConnectionId{IncarnationOf(member)}; }
  static std::string Secret() { return std::string(32, 's'); }

  template <typename Request>
  void Identify(uint32_t member, Request& request) const {
    const Seat& seat = members_[member];
    request.set_job_id(seat.job);
    request.mutable_id()->set_node_rank(member);
    request.mutable_id()->set_incarnation(IncarnationOf(member));
    if (seat.participant) request.set_epoch(seat.participant->epoch().value());
    request.set_session_secret(Secret());
  }

  // Makes a call; `then` runs when its answer has come.
  template <typename Response, typename Request>
  void Call(
      uint32_t member, const Request& request,
      absl::Status (scheduler::SchedulerDriver::*method)(const Request&, Response*),
      std::function<void(const Response&)> then = [](const Response&) {}) {
    time_.Send(members_[member].station, scheduler_station_, request.ByteSizeLong(),
               [this, member, request, method, then] {
                 Response response;
                 {
                   const CpuTimer timer(&scheduler_station_.cost.cpu_s);
                   if (!(scheduler_.*method)(request, &response).ok()) ++refused_;
                 }
                 time_.Send(scheduler_station_, members_[member].station, response.ByteSizeLong(),
                            [then, response] { then(response); });
               });
  }

  void AddAggregators() {
    for (uint32_t i = 0; i < options_.aggregators; ++i) {
      const Incarnation self{10 + i};
      const std::string name = "aggregator-" + std::to_string(i);
      aggregators_.push_back(std::make_unique<Aggregator>());
      v1::RegisterAggregatorRequest request;
      *request.mutable_version() = rpc::ToProto(rpc::Version{});
      *request.mutable_aggregator() = rpc::ToProto(
          view::ViewAggregator{.incarnation = self,
                               .name = name,
                               .data_address = "fi:tcp://10.1.0.1:7000/s" + std::string(64, 'a'),
                               .host_id = name});
      request.set_session_secret(Secret());
      v1::RegisterAggregatorResponse response;
      if (!scheduler_.RegisterAggregator(request, &response).ok()) ++refused_;
      v1::WatchJobsRequest watch;
      *watch.mutable_version() = rpc::ToProto(rpc::Version{});
      watch.set_incarnation(self.value());
      watch.set_session_secret(Secret());
      watch.set_takes_changes(true);
      const membership::StreamId stream{++streams_};
      scheduler_.WatchJobs(stream,
                           std::make_shared<CountedStream<v1::WatchJobsResponse>>(
                               [this, i, stream](const v1::WatchJobsResponse& response) {
                                 OnJobMessage(i, stream, response);
                               }),
                           watch);
    }
  }

  // All processes are told the same view, and share one copy of it here.
  std::shared_ptr<const view::View> Known(uint64_t epoch,
                                          const std::function<absl::StatusOr<view::View>()>& told) {
    std::shared_ptr<const view::View>& known = views_[Epoch{epoch}];
    if (known == nullptr) known = std::make_shared<view::View>(*told());
    return known;
  }

  // A process has taken a message of its stream, so the scheduler sends the next one.
  void OnTaken(membership::StreamId stream) {
    const CpuTimer timer(&scheduler_station_.cost.cpu_s);
    scheduler_.OnStreamSent(stream);
  }

  void OnJobMessage(uint32_t aggregator, membership::StreamId stream,
                    const v1::WatchJobsResponse& response) {
    std::shared_ptr<const view::View> view;
    if (response.has_job_view()) {
      view = Known(response.job_view().view().epoch(),
                   [&] { return rpc::FromProto(response.job_view().view()); });
    } else if (response.has_job_view_change()) {
      const v1::WatchViewsResponse::ViewChange& change = response.job_view_change().change();
      view = Known(change.view().epoch(),
                   [&] { return rpc::Changed(*views_.at(Epoch{change.base_epoch()}), change); });
    }
    time_.Send(
        scheduler_station_, aggregators_[aggregator]->station, response.ByteSizeLong(),
        [this, aggregator, stream, view] {
          OnTaken(stream);
          if (view == nullptr) return;
          Aggregator& target = *aggregators_[aggregator];
          if (!target.job) {
            target.job.emplace(
                aggregation::AggregatorCoreConfig{.job = view->job,
                                                  .name = kScaleJobName,
                                                  .self = view->aggregators[aggregator].incarnation,
                                                  .self_name = view->aggregators[aggregator].name},
                &target.budget);
          }
          Run(aggregator,
              [&](aggregation::AggregatorCore& job, aggregation::AggregatorCore::Effects& out) {
                job.OnView(*view, time_.NowNs(), out);
              });
        });
  }

  void Join(uint32_t member) {
    Seat& seat = members_[member];
    ++seat.life;
    const std::string number = std::to_string(member);
    const view::ViewMember self = {.id = {NodeRank{member}, Incarnation{IncarnationOf(member)}},
                                   .rank_count = 1,
                                   .name = "host-" + number,
                                   .admin_address = "10.0.0.1:7000",
                                   .host_id = "host-id-" + number};
    if (member < options_.cores) {
      seat.participant = MakeCoreMember(member, self, options_, collective_, &time_, this);
    } else {
      seat.participant = MakeStandIn(member, self, options_, collective_, this);
    }
    v1::JoinRequest request;
    *request.mutable_version() = rpc::ToProto(rpc::Version{});
    request.set_job_name(kScaleJobName);
    request.mutable_spec()->set_min_members(1);
    request.mutable_spec()->set_max_members(options_.members);
    request.mutable_spec()->set_slice_bytes_max(kMiB);
    request.mutable_spec()->set_loss_policy(v1::LOSS_POLICY_CONTINUE);
    request.mutable_spec()->mutable_gather()->set_seconds(10'000);
    *request.mutable_id() = rpc::ToProto(self.id);
    request.set_rank_count(1);
    request.set_name(self.name);
    request.set_admin_address(self.admin_address);
    request.set_host_id(self.host_id);
    request.set_session_secret(Secret());
    Call<v1::JoinResponse>(member, request, &scheduler::SchedulerDriver::Join,
                           [this, member](const v1::JoinResponse& response) {
                             members_[member].job = response.job_id();
                             Watch(member);
                           });
  }

  void Watch(uint32_t member) {
    v1::WatchViewsRequest request;
    *request.mutable_version() = rpc::ToProto(rpc::Version{});
    Identify(member, request);
    request.set_ranks_attached(true);
    request.set_takes_changes(true);
    request.set_takes_aggregator_changes(true);
    const membership::StreamId stream{++streams_};
    members_[member].stream = stream;
    time_.Send(members_[member].station, scheduler_station_, request.ByteSizeLong(),
               [this, member, stream, request] {
                 const CpuTimer timer(&scheduler_station_.cost.cpu_s);
                 scheduler_.WatchViews(
                     stream,
                     std::make_shared<CountedStream<v1::WatchViewsResponse>>(
                         [this, member, stream](const v1::WatchViewsResponse& response) {
                           OnMemberMessage(member, stream, response);
                         }),
                     request);
               });
  }

  void OnMemberMessage(uint32_t member, membership::StreamId stream,
                       const v1::WatchViewsResponse& response) {
    std::function<void()> deliver = [] {};
    Participant* const participant = members_[member].participant.get();
    if (response.has_view() || response.has_view_change()) {
      const uint64_t epoch =
          response.has_view() ? response.view().epoch() : response.view_change().view().epoch();
      deliver = [participant, view = views_.at(Epoch{epoch})] { participant->OnView(view); };
    } else if (response.has_quiesce()) {
      deliver = [participant, id = response.quiesce().quiesce_id(),
                 step = response.quiesce().step()] { participant->OnQuiesce(id, step); };
    }
    time_.Send(scheduler_station_, members_[member].station, response.ByteSizeLong(),
               [this, stream, deliver = std::move(deliver)] {
                 OnTaken(stream);
                 deliver();
               });
  }

  // Ends a member's process. Both sides of its connections see that at once.
  void Lose(uint32_t member) {
    const ConnectionId connection = ConnectionOf(member);
    for (uint32_t i = 0; i < aggregators_.size(); ++i) {
      Run(i, [&](aggregation::AggregatorCore& job, aggregation::AggregatorCore::Effects& out) {
        job.OnDisconnect(connection, out);
      });
    }
    const CpuTimer timer(&scheduler_station_.cost.cpu_s);
    scheduler_.OnStreamBroken(members_[member].stream, "");
  }

  template <typename Event>
  void Run(uint32_t index, const Event& event) {
    Aggregator& aggregator = *aggregators_[index];
    {
      const CpuTimer timer(&aggregator.station.cost.cpu_s);
      aggregation::AggregatorCore::Effects effects;
      event(*aggregator.job, effects);
      Perform(aggregator, std::move(effects));
    }
    for (auto& [connection, frame] : std::exchange(aggregator.posted, {})) {
      const uint64_t incarnation = connection.value();
      const uint32_t member = static_cast<uint32_t>((incarnation - 1000) % 1'000'000);
      if (incarnation != IncarnationOf(member)) continue;
      time_.Send(aggregator.station, members_[member].station, frame->size(),
                 [this, index, member, incarnation, frame = frame] {
                   if (incarnation != IncarnationOf(member)) return;
                   members_[member].participant->OnFrame(index, frame->Parse());
                 });
    }
  }

  static aggregator::Outbox& OutboxOf(Aggregator& aggregator, ConnectionId connection) {
    const auto found = aggregator.outboxes.find(connection);
    if (found != aggregator.outboxes.end()) return found->second;
    const aggregator::Outbox::PostFrame post = [&aggregator,
                                                connection](std::vector<std::byte> bytes) {
      aggregator.posted.emplace_back(connection, std::make_shared<FrameInFlight>(std::move(bytes)));
    };
    return aggregator.outboxes.try_emplace(connection, aggregator.job->config().job, post)
        .first->second;
  }

  // Memory is allocated and sums are done at once.
  static void Perform(Aggregator& aggregator, aggregation::AggregatorCore::Effects effects) {
    aggregation::AggregatorCore& job = *aggregator.job;
    std::set<ConnectionId> touched;
    while (!effects.empty()) {
      aggregation::AggregatorCore::Effects more;
      for (const aggregation::Effect& effect : effects) {
        if (const auto* send = std::get_if<aggregation::Send>(&effect)) {
          touched.insert(send->connection);
          Add(OutboxOf(aggregator, send->connection), *send);
        } else if (const auto* credit = std::get_if<aggregation::ReturnCredit>(&effect)) {
          touched.insert(credit->connection);
          OutboxOf(aggregator, credit->connection).AddCredit(credit->bytes);
        } else if (const auto* result = std::get_if<aggregation::SendResult>(&effect)) {
          touched.insert(result->connection);
          OutboxOf(aggregator, result->connection)
              .Add(FrameType::kResult, result->epoch, result->entry);
          if (result->write != aggregation::WriteId{0}) job.OnWriteDone(result->write, more);
        } else if (const auto* allocate = std::get_if<aggregation::AllocateMemory>(&effect)) {
          job.OnAllocated(allocate->id, {allocate->id.value(), 0x1000}, more);
        } else if (const auto* sum = std::get_if<aggregation::Sum>(&effect)) {
          job.OnSummed(sum->id, sum->length_bytes, more);
        } else if (const auto* copy = std::get_if<aggregation::CopyResult>(&effect)) {
          job.OnSummed(copy->id, copy->travel_bytes, more);
        } else if (const auto* close = std::get_if<aggregation::CloseConnection>(&effect)) {
          touched.erase(close->connection);
          aggregator.outboxes.erase(close->connection);
        }
      }
      effects = std::move(more);
    }
    for (const ConnectionId connection : touched) {
      OutboxOf(aggregator, connection).Flush(job.view().epoch, wire::kKeptCreditBytes);
    }
  }

  static void Add(aggregator::Outbox& outbox, const aggregation::Send& send) {
    std::visit(
        [&](const auto& entry) {
          using Entry = std::decay_t<decltype(entry)>;
          if constexpr (std::is_same_v<Entry, wire::FenceAck>) {
            outbox.AddFenceAck(send.epoch);
          } else if constexpr (std::is_same_v<Entry, wire::Welcome>) {
            outbox.AddWelcome(send.epoch, entry);
          } else {
            outbox.Add(TypeOf<Entry>(), send.epoch, entry);
          }
        },
        send.entry);
  }

  template <typename Entry>
  static constexpr FrameType TypeOf() {
    if constexpr (std::is_same_v<Entry, wire::Declared>) return FrameType::kDeclared;
    if constexpr (std::is_same_v<Entry, wire::Decision>) return FrameType::kDecision;
    if constexpr (std::is_same_v<Entry, wire::Refused>) return FrameType::kRefused;
    if constexpr (std::is_same_v<Entry, wire::Failed>) return FrameType::kFailed;
    return FrameType::kWaiting;
  }

  int64_t Reset() {
    scheduler_station_.cost = {};
    for (const auto& aggregator : aggregators_) aggregator->station.cost = {};
    return time_.NowNs();
  }

  ScaleEvent Costs(int64_t began_ns) const {
    ScaleEvent event = {.scheduler = scheduler_station_.cost, .took_ns = time_.NowNs() - began_ns};
    for (const auto& aggregator : aggregators_) {
      event.aggregators.push_back(aggregator->station.cost);
    }
    return event;
  }

  void Check(uint64_t held, const std::string& what, ScaleResult& result) const {
    for (uint32_t i = 0; i < members_.size() && result.problem.empty(); ++i) {
      // The second check leaves out the member that has died.
      const bool is_lost = held == 2 && what != "the join" && i + 1 == members_.size();
      if (!is_lost && members_[i].participant->held() != held) {
        const std::optional<uint64_t> has = members_[i].participant->held();
        result.problem = what + ": member " + std::to_string(i) + " holds " +
                         (has ? std::to_string(*has) : "none") + " of " + std::to_string(held) +
                         " rounds";
      }
    }
    if (refused_ > 0 && result.problem.empty()) result.problem = what + ": a call was refused";
  }

  const ScaleOptions options_;
  const Collective collective_;
  VirtualTime time_;
  Station scheduler_station_;
  scheduler::SchedulerDriver scheduler_;
  std::vector<std::unique_ptr<Aggregator>> aggregators_;
  std::deque<Seat> members_;
  std::map<Epoch, std::shared_ptr<const view::View>> views_;
  uint64_t streams_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace

ScaleResult MeasureScale(const ScaleOptions& options) {
  // Drops the scheduler's log lines about who joins.
  telemetry::SetLogSink([](telemetry::LogLevel, const std::string&) {});
  return ScaleWorld(options).Measure();
}

}  // namespace talweg::sim
