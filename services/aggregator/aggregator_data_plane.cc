// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/aggregator_data_plane.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "libs/base/check.h"
#include "libs/telemetry/log.h"

// Connections, views and time. What the cores ask for is done in aggregator_data_plane_effects.cc.
namespace talweg::aggregator {
namespace {

constexpr uint64_t kPendingBytesSlack = 64 * kMiB;
constexpr size_t kJobsOverMax = 65'536;

// Whether these bytes begin as a frame does, of whatever version.
bool LooksLikeFrame(std::span<const std::byte> bytes) {
  return bytes.size() >= wire::kHeaderBytes &&
         std::memcmp(bytes.data(), &wire::kMagic, sizeof wire::kMagic) == 0;
}

}  // namespace

AggregatorDataPlane::AggregatorDataPlane(DataPlaneOptions options, transport::Transport* transport,
                                         const runtime::Clock* clock,
                                         const DataPlaneMachine& machine)
    : options_(std::move(options)),
      transport_(transport),
      clock_(clock),
      machine_(machine),
      budget_(options_.memory_bytes_max) {
  transport_->SetAdmission(
      [this](const transport::PeerIdentity& peer) { return WhyRefused(peer); });
}

AggregatorDataPlane::~AggregatorDataPlane() {
  transport_->SetAdmission({});
  // Before the memory that peers may write to.
  for (const auto& [id, connection] : connections_) transport_->Close(id);
}

void AggregatorDataPlane::OnJobView(const std::string& job_name, const view::View& view,
                                    const view::JobQuota& quota) {
  // Members would contribute as if what they have said in that view were still known here.
  if (const auto over = over_.find(view.job); over != over_.end() && view.epoch <= over->second) {
    telemetry::Log(telemetry::LogLevel::kWarning, "job '", job_name, "' (", view.job,
                   ") was over here in epoch ", over->second,
                   ", and the scheduler's view of it is not newer (epoch ", view.epoch,
                   "): its members are refused");
    return;
  }
  std::unique_ptr<ServedJob>& slot = jobs_[view.job];
  if (slot != nullptr && slot->core.closed()) {
    link_share_.Remove(view.job);
    fair_share_.Remove(view.job);  // It begins again with nothing that waits.
    leaving_.push_back(std::move(slot));
  }
  if (slot == nullptr) {
    aggregation::AggregatorCoreConfig config = {.job = view.job,
                                                .name = job_name,
                                                .self = options_.incarnation,
                                                .self_name = options_.name,
                                                .credit_bytes = options_.credit_bytes,
                                                .refusals_max = options_.refusals_max};
    slot = std::make_unique<ServedJob>(std::move(config), &budget_, NewPool());
    telemetry::Log(telemetry::LogLevel::kInfo, "serving job '", job_name, "' (", view.job, ")");
  }
  ServedJob& job = *slot;
  telemetry::Log(telemetry::LogLevel::kInfo, "job '", job_name, "': epoch ", view.epoch, " with ",
                 view.members.size(), " members and ", view.aggregators.size(), " aggregators");
  SetQuota(job, quota);
  job.core.OnView(view, clock_->NowNs(), job.effects);
  Perform(job);
  std::erase_if(job.slot_pools, [&view](const auto& pool) { return !view.IndexOf(pool.first); });

  std::vector<ConnectionId> held;
  for (const auto& [id, connection] : connections_) {
    if (!connection.held_hello.empty() && connection.held_job == view.job) held.push_back(id);
  }
  for (const ConnectionId id : held) {
    Connection& connection = connections_.at(id);
    const std::vector<std::byte> bytes = std::exchange(connection.held_hello, {});
    const auto parsed = wire::ParseFrame(bytes);
    OnFirstFrame(id, connection, bytes, std::get<wire::Frame>(parsed));
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
  fair_share_.Set(job.core.config().job, quota);
  link_share_.Set(job.core.config().job, quota);
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
    fair_share_.Remove(id);
    link_share_.Remove(id);
    leaving_.push_back(std::move(job));
  }
  jobs_.clear();
  Flush();
}

void AggregatorDataPlane::CloseJob(ServedJob& job, const std::string& text) {
  if (job.core.closed()) return;
  telemetry::Log(telemetry::LogLevel::kInfo, "job '", job.core.config().name, "' is over: ", text);
  over_[job.core.config().job] = job.core.view().epoch;
  // Ids ascend, so the first one is the oldest job's.
  if (over_.size() > kJobsOverMax) over_.erase(over_.begin());
  job.core.OnClosed(text, clock_->NowNs(), job.effects);
  Perform(job);
}

int AggregatorDataPlane::Poll() {
  int work = transport_->Poll(*this, options_.events_per_poll);
  work += SumSome();
  GiveHeldCredit();
  Flush();
  return work;
}

bool AggregatorDataPlane::PrepareToSleep() {
  return sums_pending_ == 0 && unflushed_.empty() && transport_->PrepareToSleep();
}

void AggregatorDataPlane::Tick() {
  const int64_t now_ns = clock_->NowNs();
  for (auto& [id, job] : jobs_) {
    job->core.OnTick(now_ns, job->effects);
    Perform(*job);
  }
  for (auto& job : leaving_) {
    job->core.OnTick(now_ns, job->effects);
    Perform(*job);
  }
  std::vector<ConnectionId> late;
  for (const auto& [id, connection] : connections_) {
    if (connection.job == nullptr && now_ns >= connection.deadline_ns) late.push_back(id);
  }
  for (const ConnectionId id : late) {
    Connection& connection = connections_.at(id);
    if (connection.refused) {
      CloseConnection(id, "it was refused");
    } else if (connection.held_hello.empty()) {
      CloseConnection(id, "it has not said Hello");
    } else {
      ++totals_.hellos_for_unknown_jobs;
      RefuseConnection(id, connection, connection.held_job, Epoch{0},
                       wire::WelcomeStatus::kUnknownJob, WhyUnknown(connection.held_job));
    }
  }
  GiveHeldCredit();
  TellKeptCredit();
  Flush();
  ForgetFinishedJobs();
}

std::string AggregatorDataPlane::WhyUnknown(JobId job) const {
  const std::string id = std::to_string(job.value());
  const auto over = over_.find(job);
  if (over == over_.end()) {
    return "aggregator '" + options_.name + "' knows no job " + id +
           ": is it registered with the same scheduler as the agent?";
  }
  return "job " + id + " was over at aggregator '" + options_.name + "' in epoch " +
         std::to_string(over->second.value()) +
         ": has the scheduler been started with an older store? Start the job again";
}

void AggregatorDataPlane::TellKeptCredit() {
  for (auto& [id, connection] : connections_) {
    if (connection.outbox == nullptr || connection.has_news) continue;
    connection.outbox->Flush(connection.job->core.view().epoch, 0);
  }
}

void AggregatorDataPlane::ForgetFinishedJobs() {
  const auto finished = [this](const ServedJob& job) {
    if (!job.core.finished()) return false;
    sums_pending_ -= job.sums.size();
    aggregation::AddCounters(job.core.counters(), totals_.ended);
    return true;
  };
  std::erase_if(jobs_, [&](const auto& entry) {
    if (!finished(*entry.second)) return false;
    fair_share_.Remove(entry.first);
    link_share_.Remove(entry.first);
    return true;
  });
  std::erase_if(leaving_, [&](const auto& job) { return finished(*job); });
  std::erase_if(tenants_, [](const auto& entry) { return entry.second.use_count() == 1; });
}

std::string AggregatorDataPlane::WhyRefused(const transport::PeerIdentity& peer) const {
  const auto job = jobs_.find(peer.job);
  if (job != jobs_.end() && !job->second->core.closed()) {
    const aggregation::AggregatorCore& core = job->second->core;
    // A key for a view that has not come here yet: the Hello waits for it.
    if (peer.epoch > core.view().epoch) return "";
    if (core.view().IndexOf(view::MemberIdentity{peer.node, peer.incarnation})) return "";
    return "node " + std::to_string(peer.node.value()) + " is not in epoch " +
           std::to_string(core.view().epoch.value()) + " of job '" + core.config().name +
           "': it has to join again as a new incarnation";
  }
  if (const auto over = over_.find(peer.job); over != over_.end()) {
    return peer.epoch > over->second ? "" : WhyUnknown(peer.job);
  }
  // Ids ascend: one below those that are remembered was over before.
  const bool is_forgotten = over_.size() == kJobsOverMax && peer.job < over_.begin()->first;
  return is_forgotten ? WhyUnknown(peer.job) : "";
}

void AggregatorDataPlane::OnAccepted(ConnectionId id) {
  ++totals_.connections;
  Connection& connection =
      connections_.try_emplace(id, options_.results_window_bytes).first->second;
  connection.deadline_ns = clock_->NowNs() + options_.hello_timeout_ns;
  connection.host = transport_->PeerHost(id);
  connection.member = transport_->ProvenIdentity(id);
  // Whoever has the listener's own key is no member of a job.
  if (connection.member && connection.member->job == JobId{0}) connection.member.reset();
  connection.over_link = !connection.host.empty();
  LimitConnections(id, connection);
}

bool AggregatorDataPlane::IsOfPeer(const Connection& one, const Connection& other) {
  if (!one.member || !other.member) {
    return one.member.has_value() == other.member.has_value() && one.host == other.host;
  }
  return one.member->SameMember(*other.member);
}

std::string AggregatorDataPlane::WhyOverLimit(const Connection& connection) const {
  const std::string bound =
      " has the peer_connections_max=" + std::to_string(options_.peer_connections_max) +
      " connections that one ";
  const std::string place = " may have to aggregator '" + options_.name + "': ";
  if (const auto& member = connection.member) {
    return "node " + std::to_string(member->node.value()) + " of job " +
           std::to_string(member->job.value()) + bound + "member" + place +
           "an agent needs one, and one more where that breaks";
  }
  return (connection.host.empty() ? std::string("this machine") : connection.host) + bound +
         "address without a member's key" + place +
         "raise that option there, if so many agents run on one host";
}

void AggregatorDataPlane::LimitConnections(ConnectionId id, Connection& connection) {
  size_t of_peer = 0;
  size_t unproven = 0;
  // Those that have not come to a job, but for the new one: the oldest of all, and of the peer.
  std::optional<ConnectionId> oldest;
  std::optional<ConnectionId> oldest_of_peer;
  for (const auto& [other, record] : connections_) {
    const bool is_of_peer = IsOfPeer(record, connection);
    if (is_of_peer) ++of_peer;
    if (record.job != nullptr) continue;
    ++unproven;
    if (other == id) continue;
    if (!oldest) oldest = other;
    if (is_of_peer && !oldest_of_peer) oldest_of_peer = other;
  }
  const size_t of_peer_max = options_.peer_connections_max;
  // A member may connect again before we know that its connection broke.
  if (of_peer_max > 0 && of_peer > of_peer_max && (!connection.member || of_peer > 2)) {
    ++totals_.connections_over_limit;
    const std::string text = WhyOverLimit(connection);
    if (oldest_of_peer) return CloseConnection(*oldest_of_peer, text);
    connection.over_limit = text;
    return;
  }
  const size_t unproven_max = options_.unproven_connections_max;
  if (unproven_max == 0 || unproven <= unproven_max || !oldest) return;
  ++totals_.connections_over_limit;
  CloseConnection(*oldest, "more than " + std::to_string(unproven_max) +
                               " connections have not said whose they are, and it is the oldest");
}

void AggregatorDataPlane::OnConnected(ConnectionId) {}  // We connect to nobody.

void AggregatorDataPlane::OnDisconnected(ConnectionId id, const std::string& reason) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  telemetry::Log(telemetry::LogLevel::kInfo, "connection ", id, " is over: ", reason);
  ServedJob* const job = found->second.job;
  Forget(found);
  if (job == nullptr) return;
  job->core.OnDisconnect(id, job->effects);
  Perform(*job);
}

void AggregatorDataPlane::OnFrame(ConnectionId id, std::span<const std::byte> bytes) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.traffic.received_bytes += bytes.size();
  totals_.received_bytes += bytes.size();
  if (connection.refused) return;
  const auto parsed = wire::ParseFrame(bytes);
  if (const auto* error = std::get_if<wire::ParseError>(&parsed)) {
    OnUnreadable(id, connection, bytes, error->text);
    return;
  }
  const wire::Frame& frame = std::get<wire::Frame>(parsed);
  if (connection.job == nullptr) {
    OnFirstFrame(id, connection, bytes, frame);
    return;
  }
  ServedJob& job = *connection.job;
  contributions_ = std::get_if<std::vector<wire::Contribute>>(&frame.entries);
  contributor_ = &connection;
  const uint64_t before_bytes = job.core.counters().contribution_bytes;
  job.core.OnFrame(id, frame, clock_->NowNs(), job.effects);
  // Inline bytes are in the frame and are taken off again where they are stored.
  const uint64_t taken_bytes = job.core.counters().contribution_bytes - before_bytes;
  connection.traffic.received_bytes += taken_bytes;
  totals_.received_bytes += taken_bytes;
  fair_share_.Charge(job.core.config().job, bytes.size() + taken_bytes);
  if (SharesLink(connection)) {
    link_share_.OnReceived(job.core.config().job, bytes.size() + taken_bytes, clock_->NowNs());
    if (contributions_ != nullptr) {
      connection.more_wait = (frame.header.flags & wire::kFlagMore) != 0;
      UpdateWants(connection);
    }
  }
  Perform(job);
  contributions_ = nullptr;
  contributor_ = nullptr;
}

void AggregatorDataPlane::OnWriteDone(ConnectionId id, uint64_t context) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  ServedJob* const job = connection.job;
  if (job == nullptr) return;
  const auto write = connection.writes.find(context);
  if (write == connection.writes.end() || !write->second.has_left) return;
  const uint32_t length_bytes = write->second.length_bytes;
  connection.results.OnWritten(length_bytes);
  connection.writes.erase(write);
  if (SharesLink(connection)) {
    link_share_.OnSent(job->core.config().job, length_bytes, clock_->NowNs());
    UpdateWants(connection);
  }
  while (const auto next = connection.results.Take()) PostResult(connection, *next);
  job->core.OnWriteDone(aggregation::WriteId{context}, job->effects);
  Perform(*job);
}

void AggregatorDataPlane::OnUnreadable(ConnectionId id, Connection& connection,
                                       std::span<const std::byte> bytes, const std::string& text) {
  ++totals_.unreadable_frames;
  telemetry::Log(telemetry::LogLevel::kWarning, "connection ", id,
                 " sent what is no frame: ", text);
  if (ServedJob* const job = connection.job) {
    job->core.OnUnreadable(id, text, job->effects);
    Perform(*job);
  } else if (LooksLikeFrame(bytes)) {
    RefuseConnection(id, connection, JobId{0}, Epoch{0}, wire::WelcomeStatus::kVersion, text);
  } else {
    CloseConnection(id, text);
  }
}

void AggregatorDataPlane::OnFirstFrame(ConnectionId id, Connection& connection,
                                       std::span<const std::byte> bytes, const wire::Frame& frame) {
  const auto* hellos = std::get_if<std::vector<wire::Hello>>(&frame.entries);
  if (hellos == nullptr || hellos->size() != 1 || !connection.held_hello.empty()) {
    CloseConnection(id, std::string("it began with a ") + wire::FrameTypeName(frame.header.type) +
                            ", or went on before its Hello was answered");
    return;
  }
  if (const std::string why = ImpostureOf(id, frame.header, hellos->front()); !why.empty()) {
    ++totals_.impostors;
    CloseConnection(id, why);
    return;
  }
  if (!connection.over_limit.empty()) {
    RefuseConnection(id, connection, frame.header.job, frame.header.epoch,
                     wire::WelcomeStatus::kUnknownJob, connection.over_limit);
    return;
  }
  const auto job = jobs_.find(frame.header.job);
  if (job == jobs_.end() || job->second->core.closed()) {
    connection.held_hello.assign(bytes.begin(), bytes.end());
    connection.held_job = frame.header.job;
    connection.deadline_ns = clock_->NowNs() + options_.unknown_job_hold_ns;
    return;
  }
  ServedJob& record = *job->second;
  const wire::Hello& hello = hellos->front();
  telemetry::Log(telemetry::LogLevel::kInfo, "connection ", id, ": node ", hello.member.node, " (",
                 hello.node_name, ") of job '", record.core.config().name, "', epoch ",
                 frame.header.epoch);
  connection.job = &record;
  connection.outbox = std::make_unique<Outbox>(
      frame.header.job, [this, id, &connection](std::vector<std::byte> out) {
        connection.traffic.sent_bytes += out.size();
        totals_.sent_bytes += out.size();
        if (SharesLink(connection)) {
          link_share_.OnSent(connection.job->core.config().job, out.size(), clock_->NowNs());
        }
        transport_->PostFrame(id, std::move(out));
      });
  record.core.OnFrame(id, frame, clock_->NowNs(), record.effects);
  Perform(record);
}

std::string AggregatorDataPlane::ImpostureOf(ConnectionId id, const wire::Header& header,
                                             const wire::Hello& hello) const {
  const std::optional<transport::PeerIdentity> proven = transport_->ProvenIdentity(id);
  const transport::PeerIdentity said = {.job = header.job,
                                        .epoch = header.epoch,
                                        .node = hello.member.node,
                                        .incarnation = hello.member.incarnation};
  if (!proven || *proven == said) return "";
  const auto text = [](const transport::PeerIdentity& identity) {
    return "node " + std::to_string(identity.node.value()) + " of job " +
           std::to_string(identity.job.value()) + " in epoch " +
           std::to_string(identity.epoch.value());
  };
  return "it says that it is " + text(said) + ", and its key is of " + text(*proven) +
         (text(said) == text(*proven) ? ", of another incarnation" : "");
}

void AggregatorDataPlane::RefuseConnection(ConnectionId id, Connection& connection, JobId job,
                                           Epoch epoch, wire::WelcomeStatus status,
                                           std::string text) {
  telemetry::Log(telemetry::LogLevel::kWarning, "connection ", id, " is refused: ", text);
  text.resize(std::min(text.size(), wire::kTextBytesMax));
  wire::FrameWriter writer(wire::FrameType::kWelcome, job, epoch);
  writer.Add(
      wire::Welcome{.status = status, .aggregator = options_.incarnation, .text = std::move(text)});
  transport_->PostFrame(id, writer.Take());
  connection.refused = true;
  connection.held_hello.clear();
  connection.deadline_ns = clock_->NowNs() + options_.unknown_job_hold_ns;
}

void AggregatorDataPlane::CloseConnection(ConnectionId id, const std::string& reason) {
  telemetry::Log(telemetry::LogLevel::kInfo, "closing connection ", id, ": ", reason);
  transport_->Close(id);
  if (const auto found = connections_.find(id); found != connections_.end()) Forget(found);
}

void AggregatorDataPlane::Forget(std::map<ConnectionId, Connection>::iterator connection) {
  connection->second.writes.clear();
  connection->second.more_wait = false;
  UpdateWants(connection->second);
  connections_.erase(connection);
}

void AggregatorDataPlane::MarkUnflushed(ConnectionId id, Connection& connection) {
  if (std::exchange(connection.has_news, true)) return;
  unflushed_.push_back(id);
}

void AggregatorDataPlane::Flush() {
  for (const ConnectionId id : std::exchange(unflushed_, {})) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    found->second.has_news = false;
    ServedJob& job = *found->second.job;
    // What is kept waits for a result to ride on, or for a Tick.
    const uint64_t kept_bytes = found->second.credit_meter.KeptBytes(options_.credit_bytes);
    found->second.outbox->Flush(job.core.view().epoch, kept_bytes);
    // One that sends and never reads must not make us keep what it does not take.
    const uint64_t pending_bytes =
        transport_->PendingBytes(id) + found->second.results.waiting_bytes();
    if (pending_bytes <= options_.memory_bytes_max + kPendingBytesSlack) continue;
    CloseConnection(id, "it does not read what it is sent");
    job.core.OnDisconnect(id, job.effects);
    Perform(job);
  }
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
  const auto found = connections_.find(id);
  const bool has_job = found != connections_.end() && found->second.job != nullptr;
  return has_job ? &found->second.job->core : nullptr;
}

uint64_t AggregatorDataPlane::HeldBytes(JobId id) const {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return 0;
  uint64_t bytes = 0;
  for (const auto& [name, memory] : job->second->memory) bytes += memory.bytes().size();
  return bytes;
}

ConnectionTraffic AggregatorDataPlane::TrafficOf(ConnectionId id) const {
  const auto found = connections_.find(id);
  return found == connections_.end() ? ConnectionTraffic{} : found->second.traffic;
}

}  // namespace talweg::aggregator
