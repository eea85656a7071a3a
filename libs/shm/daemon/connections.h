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

// The ranks' connections, from accept until nobody needs their memory:
//
//   kSilent --TakeLocalRank--> kAsking --Activate--> kActive
//      |                          |                     |
//      +------ refused, failed, garbage, goodbye -------+--> kDraining --all is sent--> kGone
//
// A rank that ends by itself goes to kGone at once. One owner thread.
class Connections {
 public:
  // What epoll returns for a connection: its id, and in the lowest bit whether it is the process.
  static uint64_t SocketKey(RankConnectionId id) { return id.value() << 1; }
  static uint64_t ProcessKey(RankConnectionId id) { return id.value() << 1 | 1; }
  static RankConnectionId IdOf(uint64_t key) { return RankConnectionId(key >> 1); }
  static bool IsProcess(uint64_t key) { return (key & 1) != 0; }

  // All outlive this. `epoll` watches the sockets and processes.
  Connections(const RankServerConfig* config, int epoll, RankServerCounters* counters)
      : config_(config), epoll_(epoll), counters_(counters), holders_(config->local_rank_count) {}

  // --- Finding
  const std::map<RankConnectionId, std::unique_ptr<Connection>>& all() const {
    return connections_;
  }
  // The active connections, in the order in which they became active. One that ends stays in the
  // list until Sweep.
  const std::vector<Connection*>& active() const { return active_; }
  Connection* Find(RankConnectionId id);
  // Returns null if the connection is over or unknown.
  Connection* FindOpen(RankConnectionId id);

  // --- Beginning
  // Refuses a peer that the socket's mode does not let in.
  void Add(RankListener::Peer peer);
  // Gives the connection the local rank `wanted`, or any for kAnyLocalRank, and watches its
  // process. Returns false if it was refused.
  bool TakeLocalRank(Connection& connection, uint32_t wanted);
  void Activate(Connection& connection, RankControl control);

  // --- Output
  void Send(Connection& connection, const Message& message, std::vector<int> borrowed = {},
            std::vector<Descriptor> owned = {});
  // Sends what is queued.
  void Flush(Connection& connection);
  // Wakes threads that wait; for `tensor` only, if only its completion was published.
  void Wake(Connection& connection, RankControl::Waiter waiter,
            std::optional<uint32_t> tensor = std::nullopt);
  void SendWake(Connection& connection);

  // --- Ending
  // Ends a connection that has not been welcomed yet.
  void Refuse(Connection& connection, RankStatus status, std::string_view text);
  // Ends the connection. The rank's waits end with `status` and `text`.
  void Fail(Connection& connection, RankStatus status, std::string_view text);
  // The rank sent `why`: tells it, and ends the connection. Reports it to `sink` as gone if it has
  // said hello.
  void Garbage(Connection& connection, const std::string& why, RankEventSink& sink);
  void SayGoodbye(Connection& connection, RankEventSink& sink);
  // Nothing can be sent any more.
  void Close(Connection& connection);
  // The agent no longer needs the rank's memory.
  void Release(RankConnectionId id);
  // Forgets connections that are gone and released.
  void Sweep();

  // The job has failed: tells every rank, and refuses later ones. Only the first call counts.
  void FailAll(RankStatus status, std::string_view text);
  const std::optional<Failure>& job_failure() const { return job_failure_; }

 private:
  // Bounds the connections that have not said hello: drops the oldest.
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
