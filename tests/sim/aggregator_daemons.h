// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_AGGREGATOR_DAEMONS_H_
#define TALWEG_TESTS_SIM_AGGREGATOR_DAEMONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/aggregator_process.h"
#include "tests/sim/network.h"
#include "tests/sim/profile.h"
#include "tests/sim/scheduler_process.h"
#include "tests/sim/timeline.h"

namespace talweg::sim {

// The aggregators of one life, and the faults that strike them. Aggregators of one daemon are its
// lanes: they start, stop and end together. A lane has a network host of its own, because nothing
// but the end of their process connects lanes.
class AggregatorDaemons {
 public:
  AggregatorDaemons(Timeline* timeline, Trace* trace, Network* network, SchedulerProcess* scheduler,
                    const Profile* profile, std::function<Incarnation()> new_incarnation);

  // Call AddHosts once, and then Start.
  void AddHosts();
  void Start();

  // Kills a daemon at once, or at a moment when some members may have a result that others lack.
  void CrashSome();
  // Tells a daemon to stop, as SIGTERM does.
  void DrainSome();
  // The hosts whose processes stop and are cut off with the one on `host`, itself included.
  std::vector<HostIndex> HostsTogether(HostIndex host) const;

  // Every daemon that was told to stop has done so.
  bool Settled() const;
  // Names the lanes that have been told to stop and have not ended. One line each.
  std::string Unsettled() const;
  void CheckMemory() const;
  // Calls `visit` with each process of this life, dead or alive.
  void ForEach(const std::function<void(const AggregatorProcess& process)>& visit) const;

 private:
  struct Daemon;
  struct Lane {
    Daemon* daemon = nullptr;
    uint32_t place = 0;
    HostIndex host = 0;
    std::unique_ptr<AggregatorProcess> process;  // nullptr: it has ended, or not begun.
  };
  struct Daemon {
    std::string host_id;
    std::vector<Lane*> lanes;
    bool told_to_stop = false;
    bool starts_again = false;  // The scheduler has refused a lane.
  };

  Lane& Some() { return *lanes_[timeline_->random().Below(lanes_.size())]; }
  std::string NextHostId(const Daemon& daemon);
  void StartDaemon(Daemon& daemon);
  void StartLater(Daemon& daemon);
  void StartLane(Lane& lane);
  void Crash(Lane& lane);
  // Ends the daemon's process. Returns how many lanes still ran.
  uint64_t EndDaemon(Daemon& daemon, bool silently);
  void EndHost(Lane& lane, bool silently);
  // The aggregator has ended by itself.
  void OnEnded(Lane& lane, const AggregatorProcess* process);

  Timeline* const timeline_;
  Trace* const trace_;
  Network* const network_;
  SchedulerProcess* const scheduler_;
  const Profile* const profile_;
  const std::function<Incarnation()> new_incarnation_;
  std::vector<std::unique_ptr<Daemon>> daemons_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  // A process stays here after its end, so that its pending events still find it and see that it is
  // over.
  std::vector<std::unique_ptr<AggregatorProcess>> past_;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_AGGREGATOR_DAEMONS_H_
