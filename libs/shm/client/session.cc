// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/session.h"

#include "libs/shm/client/deadline.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

RankStatus Session::Begin(const ClientOptions& options, pid_t pid, ErrorText& error) {
  waiting_.Begin(options.spin_ns);
  const Deadline deadline(options.timeout_ns);
  const Deadline agent_wait = Deadline::Earlier(deadline, Deadline(options.agent_wait_ns));
  if (RankStatus status = link_.Connect(options.socket_path, agent_wait, error);
      status != RankStatus::kOk) {
    return status;
  }
  const Hello hello{.pid = static_cast<uint32_t>(pid),
                    .wanted_local_rank = options.wanted_local_rank,
                    .client_name = options.client_name,
                    .flags = options.standby ? kHelloStandby : 0};
  if (link_.socket().Send({.body = hello}) == AgentSocket::Sent::kBroken) {
    // The agent may have said why before it closed the socket: read on.
  }
  admission_.Begin(options.cache_bytes, error);
  RankStatus over = RankStatus::kOk;
  const Awaited awaited = waiting_.Await([this] { return admission_.is_answered(); }, deadline,
                                         {waiting_.uncounted()}, &over);
  const RankStatus admitted = admission_.End();
  switch (awaited) {
    case Awaited::kDone: return admitted;
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

RankStatus Session::End(int64_t timeout_ns, ErrorText& error) {
  if (!health_.Close()) return RankStatus::kOk;
  const Deadline deadline(timeout_ns);
  rounds_.FinishPieces();  // Otherwise others would wait for pieces of a rank that has left.
  if (!health_.is_lost()) {
    AgentSocket::Sent sent;
    while ((sent = link_.socket().Send({.body = Goodbye{}})) == AgentSocket::Sent::kFull &&
           !deadline.Passed(MonotonicNs())) {
      link_.socket().WaitWritable(deadline);
    }
  }
  // Waits of other threads end with kClosed. The agent's answer wakes the thread that reads the
  // socket.
  waiting_.WakeFollowers();
  watchers_.SignalAll();
  const Awaited awaited =
      waiting_.Await([this] { return inbox_.has_goodbye() || health_.is_lost(); }, deadline,
                     {waiting_.uncounted()}, nullptr);
  link_.socket().Shutdown();
  waiting_.WakeFollowers();
  if (awaited == Awaited::kTimeout) {
    return error.Fail(
        RankStatus::kTimeout,
        "the agent at '%s' has not answered the goodbye in time; the client is closed",
        link_.path());
  }
  return RankStatus::kOk;
}

}  // namespace talweg::shm
