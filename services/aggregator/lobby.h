// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_LOBBY_H_
#define TALWEG_SERVICES_AGGREGATOR_LOBBY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/runtime/clock.h"
#include "libs/transport/transport.h"
#include "libs/wire/frames.h"
#include "services/aggregator/data_peer.h"
#include "services/aggregator/data_plane_options.h"
#include "services/aggregator/ended_jobs.h"

namespace talweg::aggregator {

// The connections that have not come to a job: those that have not said Hello, whose Hello waits
// for its job's view, or that are refused. It closes those that take too long, or are too many.
//
// One owner thread. What it is made of outlives it.
class Lobby {
 public:
  // A Hello that may be handed to its job.
  struct Arrival {
    ConnectionId id;
    std::vector<std::byte> bytes;  // The Hello's frame.
  };
  // A connection that leaves for its job.
  struct Guest {
    DataPeer peer;
    uint64_t received_bytes = 0;
    int64_t deadline_ns = 0;  // Closed then.
    bool is_refused = false;
    std::string over_limit;  // Not empty: there are too many, so it is refused with this.
    std::vector<std::byte> held_hello;  // For a job that is not known yet.
    JobId held_job;
  };

  Lobby(const DataPlaneOptions* options, transport::Transport* transport,
        const runtime::Clock* clock, const EndedJobs* ended, DataPlaneTotals* totals)
      : options_(options), transport_(transport), clock_(clock), ended_(ended), totals_(totals) {}

  // `others_of_peer`: connections of the same peer that have come to jobs. Closes an older one, or
  // has this one refused, where there are too many.
  void OnAccepted(ConnectionId id, const DataPeer& peer, size_t others_of_peer);
  // What came over a connection that is here. The frame, if it is a Hello that may be handed to its
  // job: Hold or Leave follows.
  std::optional<wire::Frame> OnFrame(ConnectionId id, std::span<const std::byte> bytes);
  // Its job is not known yet. Nobody else says anything before its Hello is answered.
  void Hold(ConnectionId id, JobId job, std::span<const std::byte> hello);
  // Those whose Hellos wait for this job, which is known now. They stay until they Leave.
  std::vector<Arrival> TakeHeld(JobId job);
  // It goes on to its job.
  Guest Leave(ConnectionId id);
  // It is closed already.
  void Forget(ConnectionId id) { guests_.erase(id); }
  void OnTick(int64_t now_ns);

  bool Has(ConnectionId id) const { return guests_.contains(id); }
  uint64_t ReceivedBytes(ConnectionId id) const;
  std::vector<ConnectionId> ids() const;

 private:
  std::string WhyOverLimit(const DataPeer& peer) const;
  void OnUnreadable(ConnectionId id, Guest& guest, std::span<const std::byte> bytes,
                    const std::string& text);
  // Why this Hello is not of the member that the connection's key is for; "" if it is, or if the
  // transport has its peers prove nothing.
  std::string ImpostureOf(ConnectionId id, const wire::Header& header,
                          const wire::Hello& hello) const;
  void Refuse(ConnectionId id, Guest& guest, JobId job, Epoch epoch, wire::WelcomeStatus status,
              std::string text);
  void Close(ConnectionId id, const std::string& reason);

  const DataPlaneOptions* const options_;
  transport::Transport* const transport_;
  const runtime::Clock* const clock_;
  const EndedJobs* const ended_;
  DataPlaneTotals* const totals_;
  std::map<ConnectionId, Guest> guests_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_LOBBY_H_
