// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/aggregator_data_plane.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "libs/base/bytes.h"
#include "libs/base/counted.h"
#include "libs/telemetry/log.h"
#include "libs/view/numbers.h"

namespace talweg::aggregator {
namespace {

constexpr uint64_t kPendingBytesSlack = 64 * kMiB;

}  // namespace

AggregatorDataPlane::AggregatorDataPlane(DataPlaneOptions options, transport::Transport* transport,
                                         const runtime::Clock* clock,
                                         const DataPlaneMachine& machine)
    : options_(std::move(options)),
      transport_(transport),
      clock_(clock),
      machine_(machine),
      budget_(options_.memory_bytes_max),
      ended_(options_.name),
      lane_(machine_.link == nullptr ? &own_link_ : machine_.link, machine_.wake),
      sums_(machine_.summer, machine_.codec),
      lobby_(&options_, transport_, clock_, &ended_, &totals_),
      connections_(transport_, clock_, &totals_),
      performer_(&connections_, &turns_) {
  transport_->SetAdmission(
      [this](const transport::PeerIdentity& peer) { return WhyRefused(peer); });
}

AggregatorDataPlane::~AggregatorDataPlane() {
  transport_->SetAdmission({});
  // Close the connections before the memory that peers may write to is freed.
  std::vector<ConnectionId> ids = lobby_.ids();
  for (const ConnectionId id : connections_.ids()) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const ConnectionId id : ids) transport_->Close(id);
}

void AggregatorDataPlane::OnJobView(const std::string& job_name, const view::View& view,
                                    const view::JobQuota& quota, const view::Gone& gone) {
  // Members would go on as if their declarations in that view were still known here.
  if (const auto over = ended_.EpochOf(view.job); over && view.epoch <= *over) {
    telemetry::Log(telemetry::LogLevel::kWarning, "job '", job_name, "' (", view.job,
                   ") was over here in epoch ", *over,
                   ", and the scheduler's view of it is not newer (epoch ", view.epoch,
                   "): its members are refused");
    return;
  }
  std::unique_ptr<ServedJob>& slot = jobs_[view.job];
  if (slot != nullptr && slot->core.closed()) {
    LetLeave(std::move(slot));  // The job begins again, with nothing that waits.
  }
  if (slot == nullptr) {
    aggregation::AggregatorCoreConfig config = {.job = view.job,
                                                .name = job_name,
                                                .self = options_.incarnation,
                                                .self_name = options_.name,
                                                .departed = ended_.DepartedFrom(view.job),
                                                .credit_bytes = options_.credit_bytes,
                                                .refusals_max = options_.refusals_max,
                                                .ahead_hold_ns = options_.unknown_job_hold_ns,
                                                .unix_ahead_ns = options_.unix_ahead_ns};
    slot = std::make_unique<ServedJob>(std::move(config), &budget_, transport_, machine_.memory,
                                       options_.slots, &lane_);
    slot->memory.SetOnAllocated(
        [this, job = slot.get()](const aggregation::AllocateMemory& asked,
                                 const absl::StatusOr<wire::RemoteRef>& ref) {
          performer_.OnAllocated(*job, asked, ref);
        });
    telemetry::Log(telemetry::LogLevel::kInfo, "serving job '", job_name, "' (", view.job, ")");
  }
  ServedJob& job = *slot;
  telemetry::Log(telemetry::LogLevel::kInfo, "job '", job_name, "': epoch ", view.epoch, " with ",
                 Counted(view.members.size(), "member"), " and ",
                 Counted(view.aggregators.size(), "aggregator"));
  SetQuota(job, quota);
  job.core.OnView(view, clock_->NowNs(), job.effects, gone);
  performer_.Perform(job);
  job.memory.ForgetPoolsBut(view);

  for (const Lobby::Arrival& arrival : lobby_.TakeHeld(view.job)) {
    const auto parsed = wire::ParseFrame(arrival.bytes);
    OnHello(arrival.id, std::get<wire::Frame>(parsed), arrival.bytes);
  }
  Flush();
}

void AggregatorDataPlane::OnJobQuota(JobId id, const view::JobQuota& quota) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  SetQuota(*found->second, quota);
}

void AggregatorDataPlane::SetQuota(ServedJob& job, const view::JobQuota& quota) {
  std::shared_ptr<aggregation::PlaceBudget> tenant;
  if (!quota.tenant.empty()) {
    std::shared_ptr<aggregation::PlaceBudget>& known = tenants_[quota.tenant];
    if (known == nullptr) known = std::make_shared<aggregation::PlaceBudget>();
    known->set_limit(quota.tenant_limit);
    tenant = known;
  }
  job.core.SetQuota(quota, std::move(tenant));
  turns_.Set(job.id(), quota);
  lane_.link().SetQuota(job.id(), quota);
}

void AggregatorDataPlane::OnJobClosed(JobId id, const std::string& text) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  CloseJob(*found->second, text);
  Flush();
}

void AggregatorDataPlane::Restart(Incarnation incarnation, const std::string& text) {
  options_.incarnation = incarnation;
  for (auto& [id, job] : jobs_) {
    CloseJob(*job, text);
    LetLeave(std::move(job));
  }
  jobs_.clear();
  Flush();
}

void AggregatorDataPlane::LetLeave(std::unique_ptr<ServedJob> job) {
  turns_.Remove(job->id());
  job->credit.Leave();
  leaving_.push_back(std::move(job));
}

void AggregatorDataPlane::CloseJob(ServedJob& job, const std::string& text) {
  if (job.core.closed()) return;
  telemetry::Log(telemetry::LogLevel::kInfo, "job '", job.core.config().name, "' is over: ", text);
  aggregation::Departed departed = job.core.departed();
  departed.Add(job.core.view().members);
  ended_.Add(job.id(), job.core.view().epoch, std::move(departed));
  job.core.OnClosed(text, clock_->NowNs(), job.effects);
  performer_.Perform(job);
}

int AggregatorDataPlane::Poll() {
  int work = transport_->Poll(*this, options_.events_per_poll);
  work += SumSome();
  SettleLink(false);
  Flush();
  return work;
}

bool AggregatorDataPlane::PrepareToSleep() {
  return turns_.pending() == 0 && !connections_.has_unflushed() && transport_->PrepareToSleep();
}

void AggregatorDataPlane::Tick() {
  const int64_t now_ns = clock_->NowNs();
  for (auto& [id, job] : jobs_) {
    job->core.OnTick(now_ns, job->effects);
    performer_.Perform(*job);
  }
  for (auto& job : leaving_) {
    job->core.OnTick(now_ns, job->effects);
    performer_.Perform(*job);
  }
  lobby_.OnTick(now_ns);
  SettleLink(true);
  connections_.FlushKept();
  Flush();
  ForgetFinishedJobs();
}

int AggregatorDataPlane::SumSome() {
  if (turns_.pending() == 0) return 0;
  int done = 0;
  uint64_t read_bytes = 0;
  while (read_bytes < options_.sum_bytes_per_poll) {
    const std::optional<JobId> next = turns_.Next();
    if (!next) break;
    ServedJob& job = *jobs_.at(*next);
    const PendingSum sum = turns_.Begin(*next, job.sums);
    read_bytes += ReadBytes(sum);
    const bool is_stale = sum.id.epoch != job.core.view().epoch;
    const SumOutcome outcome = is_stale ? SumOutcome{} : sums_.Make(sum);
    if (outcome.undecodable) {
      job.core.OnUndecodable(sum.id, *outcome.undecodable, job.effects);
    } else {
      job.core.OnSummed(sum.id, static_cast<uint32_t>(outcome.travel_bytes), job.effects);
    }
    performer_.Perform(job);
    turns_.End(*next, job.sums);
    ++done;
  }
  for (auto& job : leaving_) turns_.Drop(job->sums);  // Their results are not wanted any more.
  return done;
}

void AggregatorDataPlane::SettleLink(bool look_again) {
  const bool may_have_room = lane_.TakeWoken() || look_again;
  std::vector<HeldCredit*> credits;
  std::vector<SharedLink::Turn*> turns;
  for (auto& [id, job] : jobs_) {
    if (!job->credit.HasNews(may_have_room)) continue;
    credits.push_back(&job->credit);
    turns.push_back(job->credit.turn());
  }
  if (turns.empty()) return;
  lane_.link().Settle(turns, clock_->NowNs());
  for (HeldCredit* const credit : credits) {
    credit->GiveBack([this](ConnectionId id, uint64_t bytes) {
      connections_.Find(id)->connection.GiveCredit(bytes);
    });
  }
}

void AggregatorDataPlane::Flush() {
  for (const ConnectionId id : connections_.TakeUnflushed()) {
    JobConnections::Entry* const found = connections_.Find(id);
    if (found == nullptr) continue;
    found->connection.Flush(found->job->core.view().epoch, options_.credit_bytes);
    CloseIfDeaf(id);
  }
}

void AggregatorDataPlane::CloseIfDeaf(ConnectionId id) {
  JobConnections::Entry* const found = connections_.Find(id);
  if (found == nullptr) return;
  ServedJob& job = *found->job;
  const uint64_t frames_max = options_.waiting_frames_bytes_max + job.core.place().used_bytes();
  std::string reason = "it does not read what it is sent";
  if (found->connection.HasMoreFramesThan(frames_max)) {
    reason +=
        ": more than " + FormatBytes(frames_max) + " of frames wait for it, which is the most";
  } else if (found->connection.pending_bytes() <= options_.memory_bytes_max + kPendingBytesSlack) {
    return;
  }
  connections_.Close(id, reason);
  job.core.OnDisconnect(id, job.effects);
  performer_.Perform(job);
}

void AggregatorDataPlane::ForgetFinishedJobs() {
  const auto is_finished = [this](ServedJob& job) {
    if (!job.core.finished()) return false;
    turns_.Drop(job.sums);
    aggregation::AddCounters(job.core.counters(), totals_.ended);
    return true;
  };
  std::erase_if(jobs_, [&](const auto& entry) {
    if (!is_finished(*entry.second)) return false;
    turns_.Remove(entry.first);
    return true;
  });
  std::erase_if(leaving_, [&](const auto& job) { return is_finished(*job); });
  std::erase_if(tenants_, [](const auto& entry) { return entry.second.use_count() == 1; });
}

std::string AggregatorDataPlane::WhyRefused(const transport::PeerIdentity& peer) const {
  const auto job = jobs_.find(peer.job);
  if (job != jobs_.end() && !job->second->core.closed()) {
    const aggregation::AggregatorCore& core = job->second->core;
    const view::MemberIdentity member{peer.node, peer.incarnation};
    // The key may be for a view that has not come here yet. The Hello will wait for that view.
    if (peer.epoch > core.view().epoch) {
      return core.WhyNotAhead(member, peer.epoch, clock_->NowNs());
    }
    if (core.view().IndexOf(member)) return "";
    return "node " + std::to_string(peer.node.value()) + " is not in epoch " +
           std::to_string(core.view().epoch.value()) + " of job '" + core.config().name +
           "': it has to join again as a new incarnation";
  }
  // Members of a job that an older store brings back come in when its newer view is here.
  if (ended_.EpochOf(peer.job) || ended_.IsForgotten(peer.job)) return ended_.WhyUnknown(peer.job);
  const int64_t unix_ns =
      options_.unix_ahead_ns == 0 ? 0 : clock_->NowNs() + options_.unix_ahead_ns;
  if (peer.epoch.value() <= view::BelievedTo(0, unix_ns)) return "";
  return "epoch " + std::to_string(peer.epoch.value()) + " of job " +
         std::to_string(peer.job.value()) + " cannot be right: no scheduler can have given it yet";
}

void AggregatorDataPlane::OnAccepted(ConnectionId id) {
  ++totals_.connections;
  const DataPeer peer = DataPeer::Of(*transport_, id);
  lobby_.OnAccepted(id, peer, connections_.CountOf(peer));
}

void AggregatorDataPlane::OnConnected(ConnectionId) {}  // Aggregators do not connect.

void AggregatorDataPlane::OnDisconnected(ConnectionId id, const std::string& reason) {
  if (!lobby_.Has(id) && connections_.Find(id) == nullptr) return;
  telemetry::Log(telemetry::LogLevel::kInfo, "connection ", id, " is over: ", reason);
  lobby_.Forget(id);
  ServedJob* const job = connections_.Remove(id);
  if (job == nullptr) return;
  job->core.OnDisconnect(id, job->effects);
  performer_.Perform(*job);
}

void AggregatorDataPlane::OnFrame(ConnectionId id, std::span<const std::byte> bytes) {
  if (JobConnections::Entry* const entry = connections_.Find(id)) {
    return OnJobFrame(id, *entry, bytes);
  }
  const std::optional<wire::Frame> hello = lobby_.OnFrame(id, bytes);
  if (hello) OnHello(id, *hello, bytes);
}

void AggregatorDataPlane::OnHello(ConnectionId id, const wire::Frame& hello,
                                  std::span<const std::byte> bytes) {
  const wire::Hello& said = std::get<std::vector<wire::Hello>>(hello.entries).front();
  const auto found = jobs_.find(hello.header.job);
  if (found == jobs_.end() || found->second->core.closed()) {
    lobby_.Hold(id, hello.header.job, said.member, bytes);
    return;
  }
  ServedJob& job = *found->second;
  telemetry::Log(telemetry::LogLevel::kInfo, "connection ", id, ": node ", said.member.node, " (",
                 said.node_name, ") of job '", job.core.config().name, "', epoch ",
                 hello.header.epoch);
  Lobby::Guest guest = lobby_.Leave(id);
  connections_.Add(&job, {.id = id,
                          .job = job.id(),
                          .peer = std::move(guest.peer),
                          .received_bytes = guest.received_bytes,
                          .results_window_bytes = options_.results_window_bytes});
  job.core.OnFrame(id, hello, clock_->NowNs(), job.effects);
  performer_.Perform(job);
}

void AggregatorDataPlane::OnJobFrame(ConnectionId id, JobConnections::Entry& entry,
                                     std::span<const std::byte> bytes) {
  ServedJob& job = *entry.job;
  JobConnection& connection = entry.connection;
  connection.OnReceived(bytes.size());
  const auto parsed = wire::ParseFrame(bytes);
  if (const auto* error = std::get_if<wire::ParseError>(&parsed)) {
    ++totals_.unreadable_frames;
    telemetry::Log(telemetry::LogLevel::kWarning, "connection ", id,
                   " sent bytes that are not a frame: ", error->text);
    job.core.OnUnreadable(id, error->text, job.effects);
    performer_.Perform(job);
    return;
  }
  const wire::Frame& frame = std::get<wire::Frame>(parsed);
  telemetry::Log(telemetry::LogLevel::kDebug, "received ", wire::FrameTypeName(frame.header.type),
                 " of ", Counted(bytes.size(), "byte"), ", with ", frame.header.entry_count,
                 " entries, from connection ", id);
  const auto* contributions = std::get_if<std::vector<wire::Contribute>>(&frame.entries);
  const uint64_t before_bytes = job.core.counters().contribution_bytes;
  job.core.OnFrame(id, frame, clock_->NowNs(), job.effects);
  // Inline bytes are counted twice here: in the frame, too. StoreInline takes them off again.
  const uint64_t taken_bytes = job.core.counters().contribution_bytes - before_bytes;
  connection.OnReceived(taken_bytes);
  turns_.Charge(job.id(), bytes.size() + taken_bytes);
  connection.OnFrameTaken(bytes.size() + taken_bytes);
  if (contributions != nullptr) {
    connection.SetMoreWaits((frame.header.flags & wire::kFlagMore) != 0);
  }
  performer_.PerformFrame(job, connection, contributions);
  CloseIfDeaf(id);  // One frame may be answered with many times its bytes.
}

void AggregatorDataPlane::OnWriteDone(ConnectionId id, uint64_t context) {
  JobConnections::Entry* const entry = connections_.Find(id);
  if (entry == nullptr || !entry->connection.OnWritten(context)) return;
  ServedJob* const job = entry->job;
  job->core.OnWriteDone(aggregation::WriteId{context}, job->effects);
  performer_.Perform(*job);
}

std::vector<const aggregation::AggregatorCore*> AggregatorDataPlane::jobs() const {
  std::vector<const aggregation::AggregatorCore*> jobs;
  for (const auto& [id, job] : jobs_) jobs.push_back(&job->core);
  return jobs;
}

std::vector<const aggregation::AggregatorCore*> AggregatorDataPlane::leaving_jobs() const {
  std::vector<const aggregation::AggregatorCore*> jobs;
  for (const auto& job : leaving_) jobs.push_back(&job->core);
  return jobs;
}

const aggregation::AggregatorCore* AggregatorDataPlane::JobOf(ConnectionId id) const {
  const JobConnections::Entry* const found = connections_.Find(id);
  return found == nullptr ? nullptr : &found->job->core;
}

uint64_t AggregatorDataPlane::HeldBytes(JobId id) const {
  const auto job = jobs_.find(id);
  return job == jobs_.end() ? 0 : job->second->memory.held_bytes();
}

ConnectionTraffic AggregatorDataPlane::TrafficOf(ConnectionId id) const {
  const JobConnections::Entry* const found = connections_.Find(id);
  if (found != nullptr) return found->connection.traffic();
  return {.received_bytes = lobby_.ReceivedBytes(id)};
}

}  // namespace talweg::aggregator
