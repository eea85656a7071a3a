// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/client.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "libs/shm/client/await.h"
#include "libs/shm/client/cpus.h"

namespace talweg::shm {
namespace {

int64_t DefaultSpinNs() {
  const int count = Cpus(0).count;
  // Who spins on few cores keeps the agent from running.
  return count <= 2 ? 2'000 : count <= 8 ? 20'000 : 50'000;
}

}  // namespace

RankStatus Client::Connect(const ClientOptions& options, Client** out, ErrorText& error) {
  *out = nullptr;
  void* memory = std::calloc(1, sizeof(Client));
  if (memory == nullptr) return error.Fail(RankStatus::kOutOfMemory, "no memory for the client");
  Client* client = new (memory) Client;
  const RankStatus status = client->Handshake(options, error);
  if (status != RankStatus::kOk) {
    Free(client);
    return status;
  }
  *out = client;
  return RankStatus::kOk;
}

void Client::Free(Client* client) {
  if (client == nullptr) return;
  if (client->fork_guard_.Forked()) {
    // The rest stays: what the kernel left out of the child may be something else's addresses by
    // now.
    client->socket_.CloseInChild();
    return;
  }
  client->~Client();
  std::free(client);
}

Client::~Client() {
  for (uint32_t i = 0; tensors_ != nullptr && i < tensors_max_; ++i) {
    if (Tensor* tensor = tensors_[i].load(); tensor != nullptr) {
      std::free(tensor->name.load());
      tensor->own_result.Reset();
      std::free(tensor);
    }
  }
  std::free(tensors_);
  for (Watches* each = watches_.next(); each != nullptr;) {
    Watches* const next = each->next();
    each->~Watches();
    std::free(each);
    each = next;
  }
  std::free(static_cast<void*>(peers_));
  for (uint32_t i = 0; i < segment_count_; ++i) segments_[i].mapping.Reset();
  std::free(segments_);
}

// ---- Connecting
// -----------------------------------------------------------------------------------

RankStatus Client::Handshake(const ClientOptions& options, ErrorText& error) {
  fork_guard_.Begin();
  cache_bytes_ = options.cache_bytes;
  spin_ns_ = options.spin_ns >= 0 ? options.spin_ns : DefaultSpinNs();
  const Deadline deadline(options.timeout_ns);
  const Deadline agent_wait = Deadline::Earlier(deadline, Deadline(options.agent_wait_ns));
  if (RankStatus status = socket_.Connect(options.socket_path, agent_wait, error);
      status != RankStatus::kOk) {
    return status;
  }
  std::strncpy(socket_path_, options.socket_path, sizeof(socket_path_) - 1);

  const Hello hello{.pid = static_cast<uint32_t>(fork_guard_.pid()),
                    .wanted_local_rank = options.wanted_local_rank,
                    .client_name = options.client_name};
  if (socket_.Send({.body = hello}) == AgentSocket::Sent::kBroken) {
    // The agent may have said why before it closed: read on.
  }
  handshake_error_ = &error;
  RankStatus over = RankStatus::kOk;
  const Awaited awaited = Await([this] { return welcomed_.load(); }, deadline, {uncounted_}, &over);
  handshake_error_ = nullptr;
  switch (awaited) {
    case Awaited::kDone: return handshake_status_;
    case Awaited::kOver: return FailOver(over, "connecting", error);
    case Awaited::kTimeout:
      return error.Fail(
          RankStatus::kTimeout,
          "the agent at '%s' has not admitted this rank within %.3f s: the job may still wait "
          "for other nodes (see `talweg status`), or the agent be stopped",
          socket_path_, static_cast<double>(options.timeout_ns) / 1e9);
  }
  return RankStatus::kInternal;
}

RankStatus Client::TakeWelcome(const Welcome& welcome, ErrorText& error) {
  if (welcome.major != kProtocolMajor || welcome.status == RankStatus::kVersionMismatch) {
    return error.Fail(
        RankStatus::kVersionMismatch,
        "this libtalweg speaks version %u.%u of the rank protocol, the agent at '%s' %u.%u; "
        "install the same release of both%s%.*s",
        kProtocolMajor, kProtocolMinor, socket_path_, welcome.major, welcome.minor,
        welcome.text.empty() ? "" : ": ", TALWEG_SHM_PRINTED(welcome.text));
  }
  if (welcome.status != RankStatus::kOk) {
    const auto value = static_cast<uint32_t>(welcome.status);
    return error.Fail(value < kRankStatusCount ? welcome.status : RankStatus::kInternal, "%.*s",
                      TALWEG_SHM_PRINTED(welcome.text));
  }
  if (RankStatus status = MapControl(welcome, error); status != RankStatus::kOk) return status;
  identity_.rank = welcome.rank;
  identity_.size = welcome.size;
  identity_.local_rank = welcome.local_rank;
  identity_.local_size = welcome.local_size;
  identity_.node_rank = welcome.node_rank;
  identity_.node_count = welcome.node_count;
  streaming_.Begin(cache_bytes_, identity_.local_size);
  std::memcpy(identity_.job_name, welcome.job_name.data(), welcome.job_name.size());
  agent_minor_ = welcome.minor;
  tensors_max_ = welcome.tensors_max;
  tensors_ = static_cast<std::atomic<Tensor*>*>(std::calloc(tensors_max_, sizeof(*tensors_)));
  peers_ = static_cast<PeerPart*>(
      std::calloc(std::max(1u, identity_.local_size), kPartsMax * sizeof(PeerPart)));
  if (tensors_ == nullptr || peers_ == nullptr) {
    return error.Fail(RankStatus::kOutOfMemory, "no memory for the client");
  }
  return RankStatus::kOk;
}

RankStatus Client::MapControl(const Welcome& welcome, ErrorText& error) {
  const ControlShape shape{welcome.ring_capacity, welcome.tensors_max};
  const Descriptor fd = socket_.TakeDescriptor();
  const char* wrong = nullptr;
  if (!fd.valid()) {
    wrong = "no control segment came with its Welcome";
  } else if (!shape.Valid() || shape.total_bytes() != welcome.control_bytes) {
    wrong = "the control segment's limits make no sense";
  } else {
    wrong = SegmentError(fd.get(), welcome.control_bytes);
  }
  if (wrong != nullptr) {
    return error.Fail(RankStatus::kProtocol, "the agent at '%s': %s", socket_path_, wrong);
  }
  control_mapping_ = Mapping::Map(fd.get(), welcome.control_bytes, Mapping::Access::kReadWrite);
  if (!control_mapping_.valid()) {
    return error.Fail(RankStatus::kOutOfMemory, "the control segment cannot be mapped: %s",
                      std::strerror(errno));
  }
  control_ = ControlView(control_mapping_.data(), shape);
  const ControlHeader& header = control_.header();
  if (header.magic.load(std::memory_order_acquire) != kControlMagic ||
      header.major != kLayoutMajor || header.total_bytes != welcome.control_bytes) {
    return error.Fail(
        RankStatus::kVersionMismatch,
        "this libtalweg knows version %u.%u of the control segment, the agent at '%s' made "
        "version %u.%u; install the same release of both",
        kLayoutMajor, kLayoutMinor, socket_path_, header.major, header.minor);
  }
  agent_watch_.Begin(header.silence_ms);
  return RankStatus::kOk;
}

RankStatus Client::Shutdown(int64_t timeout_ns, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  if (closed_.exchange(true)) return RankStatus::kOk;
  const Deadline deadline(timeout_ns);
  FinishPieces();  // Or the others would wait for them, for a rank that has left cleanly.
  if (lost_.load() == 0) {
    AgentSocket::Sent sent;
    while ((sent = socket_.Send({.body = Goodbye{}})) == AgentSocket::Sent::kFull &&
           !deadline.Passed(MonotonicNs())) {
      socket_.WaitWritable(deadline);
    }
  }
  // Waits of other threads end with kClosed. The one that reads the socket is woken by the agent's
  // answer.
  WakeFollowers();
  SignalAll();
  const Awaited awaited = Await([this] { return goodbye_.load() || lost_.load() != 0; }, deadline,
                                {uncounted_}, nullptr);
  socket_.Shutdown();
  WakeFollowers();
  if (awaited == Awaited::kTimeout) {
    return error.Fail(
        RankStatus::kTimeout,
        "the agent at '%s' has not answered the goodbye in time; the client is closed",
        socket_path_);
  }
  return RankStatus::kOk;
}

RankStatus Client::Health(ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  ReadSocket(0);
  RankStatus over = RankStatus::kOk;
  return Over(&over) ? FailOver(over, "the client", error) : RankStatus::kOk;
}

// ---- Forks, endings
// -------------------------------------------------------------------------------

RankStatus Client::FailForked(ErrorText& error) {
  if (!child_closed_) {
    child_closed_ = true;
    socket_.CloseInChild();
    ReplaceInChild();
  }
  return error.Fail(
      RankStatus::kForked,
      "this client belongs to process %d, of which this process (%d) is a fork; connect "
      "after forking, or use the spawn start method",
      static_cast<int>(fork_guard_.pid()), static_cast<int>(::getpid()));
}

bool Client::Over(RankStatus* status) const {
  if (closed_.load(std::memory_order_relaxed)) {
    *status = RankStatus::kClosed;
    return true;
  }
  if (tensors_ != nullptr && control_.agent_line().state.load(std::memory_order_seq_cst) !=
                                 static_cast<uint32_t>(JobState::kRunning)) {
    const uint32_t value = control_.agent_line().failure_status.load(std::memory_order_relaxed);
    *status = value != 0 && value < kRankStatusCount ? static_cast<RankStatus>(value)
                                                     : RankStatus::kJobFailed;
    return true;
  }
  if (const uint32_t lost = lost_.load(std::memory_order_acquire); lost != 0) {
    *status = static_cast<RankStatus>(lost);
    return true;
  }
  return false;
}

RankStatus Client::FailOver(RankStatus status, const char* what, ErrorText& error) const {
  if (closed_.load()) {
    return error.Fail(RankStatus::kClosed, "%s: the client has been shut down; connect anew", what);
  }
  if (tensors_ != nullptr && control_.agent_line().state.load(std::memory_order_acquire) !=
                                 static_cast<uint32_t>(JobState::kRunning)) {
    return error.Fail(status, "%s: %.*s", what,
                      static_cast<int>(::strnlen(control_.failure_text().text, kFailureTextBytes)),
                      control_.failure_text().text);
  }
  return error.Fail(status, "%s: %s", what, lost_text_);
}

void Client::Lose(RankStatus status, const char* format, const char* detail) {
  const MutexLock lock(state_mutex_);
  if (lost_.load() != 0) return;
  // The socket's path says which agent; `detail` may be the agent's own words.
  std::snprintf(lost_text_, sizeof(lost_text_), format, socket_path_, detail);
  lost_.store(static_cast<uint32_t>(status), std::memory_order_release);
}

// ---- Reading the socket
// ---------------------------------------------------------------------------

void Client::ReadSocket(int64_t every_ns) {
  const int64_t now_ns = MonotonicNs();
  if (now_ns - looked_ns_.load(std::memory_order_relaxed) < every_ns) return;
  looked_ns_.store(now_ns, std::memory_order_relaxed);
  if (reading_.exchange(true, std::memory_order_seq_cst)) return;
  LookAtAgent();
  StopReading();
}

void Client::LookAtAgent() {
  ReadAgent();
  TellWatchers();
}

void Client::ReadAgent() {
  HandleMessages();
  WatchAgent();
}

void Client::WatchAgent() {
  if (!agent_watch_.watches() || lost_.load(std::memory_order_relaxed) != 0) return;
  const uint32_t beats = control_.agent_line().beats.load(std::memory_order_relaxed);
  if (!agent_watch_.IsSilent(beats, MonotonicNs())) return;
  char limit[32];
  std::snprintf(limit, sizeof(limit), "%.1f s", static_cast<double>(agent_watch_.limit_ns()) / 1e9);
  Lose(RankStatus::kAgentLost,
       "the agent at '%s' is stopped, or hangs: it has shown no sign of life for %s (its "
       "silence_ms)",
       limit);
  socket_.Shutdown();  // Should it go on, it finds this rank gone.
}

void Client::HandleMessages() {
  Message message;
  const char* reason = nullptr;
  while (lost_.load(std::memory_order_relaxed) == 0) {
    switch (socket_.Next(&message, &reason)) {
      case AgentSocket::Received::kNothing: return;
      case AgentSocket::Received::kEnded:
        Lose(RankStatus::kAgentLost,
             "the agent at '%s' has ended (its end of the socket is closed)%s", "");
        return;
      case AgentSocket::Received::kInvalid:
        Lose(RankStatus::kProtocol, "what came from '%s' is no message of a Talweg agent: %s",
             reason);
        return;
      case AgentSocket::Received::kMessage: break;
    }
    if (const auto* declared = std::get_if<Declared>(&message.body)) {
      HandleDeclared(message, *declared);
    } else if (std::holds_alternative<Exported>(message.body) ||
               std::holds_alternative<Unexported>(message.body) ||
               std::holds_alternative<Placed>(message.body)) {
      HandleDeviceAnswer(message);
    } else if (const auto* membership = std::get_if<Membership>(&message.body)) {
      HandleMembership(message, *membership);
    } else if (const auto* welcome = std::get_if<Welcome>(&message.body)) {
      if (handshake_error_ == nullptr || welcomed_.load()) continue;
      handshake_status_ = TakeWelcome(*welcome, *handshake_error_);
      welcomed_.store(true);
    } else if (const auto* peer = std::get_if<Peer>(&message.body)) {
      if (const char* wrong = AdoptPeer(*peer); wrong != nullptr) {
        Lose(RankStatus::kProtocol,
             "what the agent at '%s' says of another rank's memory makes no sense: %s", wrong);
      }
    } else if (std::holds_alternative<Goodbye>(message.body)) {
      goodbye_.store(true);
    } else if (std::holds_alternative<Wake>(message.body)) {
      if (tensors_ == nullptr) continue;
      // Before the caller looks at the tensors again: the agent sends the next Wake only after
      // this.
      control_.rank_line().wakes_seen.store(++wakes_seen_, std::memory_order_seq_cst);
    } else if (const auto* lost = std::get_if<Lost>(&message.body)) {
      // The control segment says the same. The socket is read on: a goodbye is still answered.
      RankStatus over = RankStatus::kOk;
      if (tensors_ != nullptr && Over(&over)) continue;
      char text[kTextBytesMax + 1];
      std::snprintf(text, sizeof(text), "%.*s", TALWEG_SHM_PRINTED(lost->text));
      const auto value = static_cast<uint32_t>(lost->status);
      Lose(value != 0 && value < kRankStatusCount ? lost->status : RankStatus::kJobFailed,
           "the agent at '%s' says: %s", text);
      return;
    }
  }
}

}  // namespace talweg::shm
