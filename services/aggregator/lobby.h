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
#include "libs/view/view.h"
#include "libs/wire/frames.h"
#include "services/aggregator/data_peer.h"
#include "services/aggregator/data_plane_options.h"
#include "services/aggregator/ended_jobs.h"

namespace talweg::aggregator {

// The connections that have no job yet: they have not said Hello, their Hello waits for the job's
// view, or they are refused. The lobby closes connections that take too long or are too many.
//
// One owner thread. The constructor's arguments outlive the lobby.
class Lobby {
 public:
  // A Hello that can be given to its job.
  struct Arrival {
    ConnectionId id;
    std::vector<std::byte> bytes;  // The Hello's frame.
  };
  // A connection in the lobby.
  struct Guest {
    DataPeer peer;
    uint64_t received_bytes = 0;
    int64_t deadline_ns = 0;  // When the lobby closes or refuses it.
    bool is_refused = false;
    std::string over_limit;  // Not empty: there are too many connections, and this text refuses it.
    std::vector<std::byte> held_hello;  // For a job that is not known yet.
    JobId held_job;
    view::MemberIdentity held_member;
  };

  Lobby(const DataPlaneOptions* options, transport::Transport* transport,
        const runtime::Clock* clock, const EndedJobs* ended, DataPlaneTotals* totals)
      : options_(options), transport_(transport), clock_(clock), ended_(ended), totals_(totals) {}

  // `others_of_peer`: how many connections of the same peer have a job. If there are too many,
  // closes an older one, or has this one refused when it says Hello.
  void OnAccepted(ConnectionId id, const DataPeer& peer, size_t others_of_peer);
  // A frame came over a connection in the lobby. Returns it if it is a Hello that can be given to
  // its job. The caller then calls Hold or Leave.
  std::optional<wire::Frame> OnFrame(ConnectionId id, std::span<const std::byte> bytes);
  // The job is not known yet, so the Hello of `member` waits. The peer must send nothing before the
  // answer. Of one member, only the newest connection waits.
  void Hold(ConnectionId id, JobId job, const view::MemberIdentity& member,
            std::span<const std::byte> hello);
  // Returns the Hellos that wait for this job, which is now known. The connections stay until
  // Leave.
  std::vector<Arrival> TakeHeld(JobId job);
  // The connection goes on to its job.
  Guest Leave(ConnectionId id);
  // The connection is closed.
  void Forget(ConnectionId id) { guests_.erase(id); }
  void OnTick(int64_t now_ns);

  bool Has(ConnectionId id) const { return guests_.contains(id); }
  uint64_t ReceivedBytes(ConnectionId id) const;
  std::vector<ConnectionId> ids() const;

 private:
  std::string WhyOverLimit(const DataPeer& peer) const;
  void OnUnreadable(ConnectionId id, Guest& guest, std::span<const std::byte> bytes,
                    const std::string& text);
  // Returns why this Hello names another member than the connection's key, or "" if it does not or
  // if the transport's peers prove nothing.
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
