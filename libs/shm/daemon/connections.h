// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_CONNECTIONS_H_
#define TALWEG_LIBS_SHM_DAEMON_CONNECTIONS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/shm/daemon/connection.h"
#include "libs/shm/daemon/outcome.h"
#include "libs/shm/daemon/rank_control.h"
#include "libs/shm/daemon/rank_listener.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/shm/daemon/rank_socket.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// The ranks' connections, from the moment that they are accepted until nobody needs their memory:
//
//   kSilent --TakeLocalRank--> kAsking --Activate--> kActive
//      |                          |                     |
//      +------ refused, failed, garbage, goodbye -------+--> kDraining --all is sent--> kGone
//
// A rank that ends by itself goes to kGone at once. One owner thread.
class Connections {
 public:
  // What epoll gives back of a connection: its id, the lowest bit telling its process.
  static uint64_t SocketKey(RankConnectionId id) { return id.value() << 1; }
  static uint64_t ProcessKey(RankConnectionId id) { return id.value() << 1 | 1; }
  static RankConnectionId IdOf(uint64_t key) { return RankConnectionId(key >> 1); }
  static bool IsProcess(uint64_t key) { return (key & 1) != 0; }

  // All outlive it. `epoll`: where it watches sockets and processes.
  Connections(const RankServerConfig* config, int epoll, RankServerCounters* counters)
      : config_(config), epoll_(epoll), counters_(counters), holders_(config->local_rank_count) {}

  // --- Finding
  const std::map<RankConnectionId, std::unique_ptr<Connection>>& all() const {
    return connections_;
  }
  // The active ones, in order of their Activate. Those that end stay in the list until Sweep.
  const std::vector<Connection*>& active() const { return active_; }
  Connection* Find(RankConnectionId id);
  // The connection while it is neither over nor unknown.
  Connection* FindOpen(RankConnectionId id);

  // --- Beginning
  // A peer whom the socket's mode does not mean is refused.
  void Add(RankListener::Peer peer);
  // Gives it the local rank, or any for kAnyLocalRank, and watches its process. False: it has been
  // refused.
  bool TakeLocalRank(Connection& connection, uint32_t wanted);
  void Activate(Connection& connection, RankControl control);

  // --- Output
  void Send(Connection& connection, const Message& message, std::vector<int> borrowed = {},
            std::vector<Descriptor> owned = {});
  // Goes on with what is queued.
  void Flush(Connection& connection);
  // Threads that wait for `tensor`, if only its completion was published.
  void Wake(Connection& connection, RankControl::Waiter waiter,
            std::optional<uint32_t> tensor = std::nullopt);
  void SendWake(Connection& connection);

  // --- Ending
  // Ends a connection that has not been welcomed.
  void Refuse(Connection& connection, RankStatus status, std::string_view text);
  // Ends it; the rank's waits end with this.
  void Fail(Connection& connection, RankStatus status, std::string_view text);
  // The rank sent `why`: it is told, and gone.
  void Garbage(Connection& connection, const std::string& why, RankEventSink& sink);
  void SayGoodbye(Connection& connection, RankEventSink& sink);
  // Nothing can be sent any more.
  void Close(Connection& connection);
  // The agent needs its memory no more.
  void Release(RankConnectionId id);
  // Forgets those that are gone and released.
  void Sweep();

  // The job has failed: every rank is told, and who comes later is refused. Only the first call
  // counts.
  void FailAll(RankStatus status, std::string_view text);
  const std::optional<Failure>& job_failure() const { return job_failure_; }

 private:
  // Connections that have not said hello are bounded: the oldest makes room.
  void DropOldestSilent();
  void AfterOutput(Connection& connection, RankSocket::Output output);
  // Ends the conversation: sends what is queued, then closes.
  void Drain(Connection& connection);
  void FreeLocalRank(Connection& connection);

  const RankServerConfig* const config_;
  const int epoll_;
  RankServerCounters* const counters_;
  uint64_t next_id_ = 1;
  std::map<RankConnectionId, std::unique_ptr<Connection>> connections_;
  std::vector<std::optional<RankConnectionId>> holders_;  // By local rank.
  std::vector<Connection*> active_;
  bool sweep_ = false;
  std::optional<Failure> job_failure_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_CONNECTIONS_H_
