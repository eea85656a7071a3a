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

// The ranks' rings: takes what ranks push, and says when the agent may sleep although they push.
// One owner thread.
class Rings {
 public:
  // All outlive this.
  Rings(const RankServerConfig* config, Connections* connections, RankServerCounters* counters)
      : config_(config), connections_(connections), counters_(counters) {}

  // As RankServer::PollRings and PrepareToSleep.
  int Poll(RankEventSink& sink);
  bool PrepareToSleep(RankServer::Until until);
  // A rank that joins is told it.
  uint32_t sleep_sequence() const { return sleep_sequence_; }

  // Takes all that the rank, or every rank, has pushed.
  int Drain(Connection& connection, RankEventSink& sink);
  void DrainAll(RankEventSink& sink);

  // Whether all ranks of the node have declared the tensor and pushed the round.
  bool EverybodyHasPushed(uint32_t tensor, uint64_t round) const;

 private:
  int Drain(Connection& connection, int pushes_max, RankEventSink& sink);
  // Whether the rank may have seen its tensor's open round complete before this agent did.
  bool IsEarly(const Connection& connection, const RingEntry& entry) const;
  bool AllHavePushed(uint32_t tensor, uint64_t round) const;
  // Call it after a look at all rings that took nothing.
  void CheckEarlyPushes(RankEventSink& sink);
  bool AnybodyAwaits() const;
  // Returns why the entry is invalid, or "".
  std::string TakePush(Connection& connection, const RingEntry& entry, RankEventSink& sink);
  // Copies the lengths of the parts that the rank has pushed to lengths_. Returns why they are
  // invalid, or "".
  std::string TakeLengths(const TensorOfRank& tensor, const RingEntry& entry);

  const RankServerConfig* const config_;
  Connections* const connections_;
  RankServerCounters* const counters_;
  uint32_t sleep_sequence_ = 0;    // Odd: prepared to sleep.
  std::vector<uint32_t> lengths_;  // Those of the push that is being delivered.
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RINGS_H_
