// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_RINGS_H_
#define TALWEG_LIBS_SHM_DAEMON_RINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "libs/shm/daemon/connection.h"
#include "libs/shm/daemon/connections.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/shm/layout/control.h"

namespace talweg::shm {

// What ranks push: their rings, and when the agent may sleep though they push. One owner thread.
class Rings {
 public:
  // All outlive it.
  Rings(const RankServerConfig* config, Connections* connections, RankServerCounters* counters)
      : config_(config), connections_(connections), counters_(counters) {}

  // RankServer::PollRings, PrepareToSleep.
  int Poll(RankEventSink& sink);
  bool PrepareToSleep(RankServer::Until until);
  // A rank that comes is told of it.
  uint32_t sleep_sequence() const { return sleep_sequence_; }

  // Takes all that the rank has pushed, or all ranks have.
  int Drain(Connection& connection, RankEventSink& sink);
  void DrainAll(RankEventSink& sink);

  // Whether all ranks of the node have declared the tensor and pushed the round.
  bool EverybodyHasPushed(uint32_t tensor, uint64_t round) const;

 private:
  int Drain(Connection& connection, int pushes_max, RankEventSink& sink);
  // Whether the rank may have seen its tensor's open round complete before this agent.
  bool IsEarly(const Connection& connection, const RingEntry& entry) const;
  bool AllHavePushed(uint32_t tensor, uint64_t round) const;
  // After a look at all rings that took nothing.
  void CheckEarlyPushes(RankEventSink& sink);
  bool AnybodyAwaits() const;
  // Why the entry makes no sense, or "".
  std::string TakePush(Connection& connection, const RingEntry& entry, RankEventSink& sink);
  // Copies the lengths of the parts that the rank has pushed to lengths_. Why they make no sense,
  // or "".
  std::string TakeLengths(const TensorOfRank& tensor, const RingEntry& entry);

  const RankServerConfig* const config_;
  Connections* const connections_;
  RankServerCounters* const counters_;
  uint32_t sleep_sequence_ = 0;    // Odd: prepared to sleep.
  std::vector<uint32_t> lengths_;  // Those of the push that is being delivered.
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RINGS_H_
