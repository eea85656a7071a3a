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
    client->link_.socket().CloseInChild();
    return;
  }
  client->~Client();
  std::free(client);
}

Client::~Client() {
  for (Watches* each = watches_.next(); each != nullptr;) {
    Watches* const next = each->next();
    each->~Watches();
    std::free(each);
    each = next;
  }
}

// ---- Connecting
// -----------------------------------------------------------------------------------

RankStatus Client::Handshake(const ClientOptions& options, ErrorText& error) {
  fork_guard_.Begin();
  cache_bytes_ = options.cache_bytes;
  spin_ns_ = options.spin_ns >= 0 ? options.spin_ns : DefaultSpinNs();
  const Deadline deadline(options.timeout_ns);
  const Deadline agent_wait = Deadline::Earlier(deadline, Deadline(options.agent_wait_ns));
  if (RankStatus status = link_.Connect(options.socket_path, agent_wait, error);
      status != RankStatus::kOk) {
    return status;
  }

  const Hello hello{.pid = static_cast<uint32_t>(fork_guard_.pid()),
                    .wanted_local_rank = options.wanted_local_rank,
                    .client_name = options.client_name};
  if (link_.socket().Send({.body = hello}) == AgentSocket::Sent::kBroken) {
    // The agent may have said why before it closed: read on.
  }
  handshake_error_ = &error;
  RankStatus over = RankStatus::kOk;
  const Awaited awaited = Await([this] { return welcomed_.load(); }, deadline, {uncounted_}, &over);
  handshake_error_ = nullptr;
  switch (awaited) {
    case Awaited::kDone: return handshake_status_;
    case Awaited::kOver: return health_.FailOver(over, "connecting", error);
    case Awaited::kTimeout:
      return error.Fail(
          RankStatus::kTimeout,
          "the agent at '%s' has not admitted this rank within %.3f s: the job may still wait "
          "for other nodes (see `talweg status`), or the agent be stopped",
          link_.path(), static_cast<double>(options.timeout_ns) / 1e9);
  }
  return RankStatus::kInternal;
}

RankStatus Client::TakeWelcome(const Welcome& welcome, ErrorText& error) {
  if (welcome.major != kProtocolMajor || welcome.status == RankStatus::kVersionMismatch) {
    return error.Fail(
        RankStatus::kVersionMismatch,
        "this libtalweg speaks version %u.%u of the rank protocol, the agent at '%s' %u.%u; "
        "install the same release of both%s%.*s",
        kProtocolMajor, kProtocolMinor, link_.path(), welcome.major, welcome.minor,
        welcome.text.empty() ? "" : ": ", TALWEG_SHM_PRINTED(welcome.text));
  }
  if (welcome.status != RankStatus::kOk) {
    const auto value = static_cast<uint32_t>(welcome.status);
    return error.Fail(value < kRankStatusCount ? welcome.status : RankStatus::kInternal, "%.*s",
                      TALWEG_SHM_PRINTED(welcome.text));
  }
  if (RankStatus status = link_.MapControl(welcome, error); status != RankStatus::kOk) {
    return status;
  }
  health_.WatchAgent(link_.control().header().silence_ms);
  identity_.rank = welcome.rank;
  identity_.size = welcome.size;
  identity_.local_rank = welcome.local_rank;
  identity_.local_size = welcome.local_size;
  identity_.node_rank = welcome.node_rank;
  identity_.node_count = welcome.node_count;
  streaming_.Begin(cache_bytes_, identity_.local_size);
  std::memcpy(identity_.job_name, welcome.job_name.data(), welcome.job_name.size());
  if (!tensors_.Begin(welcome.tensors_max) || !memory_.Begin()) {
    return error.Fail(RankStatus::kOutOfMemory, "no memory for the client");
  }
  return RankStatus::kOk;
}

RankStatus Client::Shutdown(int64_t timeout_ns, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  if (!health_.Close()) return RankStatus::kOk;
  const Deadline deadline(timeout_ns);
  FinishPieces();  // Or the others would wait for them, for a rank that has left cleanly.
  if (!health_.is_lost()) {
    AgentSocket::Sent sent;
    while ((sent = link_.socket().Send({.body = Goodbye{}})) == AgentSocket::Sent::kFull &&
           !deadline.Passed(MonotonicNs())) {
      link_.socket().WaitWritable(deadline);
    }
  }
  // Waits of other threads end with kClosed. The one that reads the socket is woken by the agent's
  // answer.
  WakeFollowers();
  SignalAll();
  const Awaited awaited = Await([this] { return goodbye_.load() || health_.is_lost(); }, deadline,
                                {uncounted_}, nullptr);
  link_.socket().Shutdown();
  WakeFollowers();
  if (awaited == Awaited::kTimeout) {
    return error.Fail(
        RankStatus::kTimeout,
        "the agent at '%s' has not answered the goodbye in time; the client is closed",
        link_.path());
  }
  return RankStatus::kOk;
}

RankStatus Client::Health(ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  ReadSocket(0);
  RankStatus over = RankStatus::kOk;
  return health_.Over(&over) ? health_.FailOver(over, "the client", error) : RankStatus::kOk;
}

// ---- Forks, endings
// -------------------------------------------------------------------------------

RankStatus Client::FailForked(ErrorText& error) {
  if (!child_closed_) {
    child_closed_ = true;
    link_.socket().CloseInChild();
    ReplaceInChild();
  }
  return error.Fail(
      RankStatus::kForked,
      "this client belongs to process %d, of which this process (%d) is a fork; connect "
      "after forking, or use the spawn start method",
      static_cast<int>(fork_guard_.pid()), static_cast<int>(::getpid()));
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
  health_.LookAtBeats();
}

void Client::HandleMessages() {
  Message message;
  const char* reason = nullptr;
  while (!health_.is_lost(std::memory_order_relaxed)) {
    switch (link_.socket().Next(&message, &reason)) {
      case AgentSocket::Received::kNothing: return;
      case AgentSocket::Received::kEnded:
        health_.Lose(RankStatus::kAgentLost,
                     "the agent at '%s' has ended (its end of the socket is closed)%s", "");
        return;
      case AgentSocket::Received::kInvalid:
        health_.Lose(RankStatus::kProtocol,
                     "what came from '%s' is no message of a Talweg agent: %s", reason);
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
      if (const char* wrong = memory_.AdoptPeer(*peer); wrong != nullptr) {
        health_.Lose(RankStatus::kProtocol,
                     "what the agent at '%s' says of another rank's memory makes no sense: %s",
                     wrong);
      }
    } else if (std::holds_alternative<Goodbye>(message.body)) {
      goodbye_.store(true);
    } else if (std::holds_alternative<Wake>(message.body)) {
      if (!link_.is_admitted()) continue;
      // Before the caller looks at the tensors again: the agent sends the next Wake only after
      // this.
      link_.control().rank_line().wakes_seen.store(++wakes_seen_, std::memory_order_seq_cst);
    } else if (const auto* lost = std::get_if<Lost>(&message.body)) {
      // The control segment says the same. The socket is read on: a goodbye is still answered.
      RankStatus over = RankStatus::kOk;
      if (link_.is_admitted() && health_.Over(&over)) continue;
      char text[kTextBytesMax + 1];
      std::snprintf(text, sizeof(text), "%.*s", TALWEG_SHM_PRINTED(lost->text));
      const auto value = static_cast<uint32_t>(lost->status);
      health_.Lose(value != 0 && value < kRankStatusCount ? lost->status : RankStatus::kJobFailed,
                   "the agent at '%s' says: %s", text);
      return;
    }
  }
}

}  // namespace talweg::shm
