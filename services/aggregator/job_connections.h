// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_JOB_CONNECTIONS_H_
#define TALWEG_SERVICES_AGGREGATOR_JOB_CONNECTIONS_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/runtime/clock.h"
#include "libs/transport/transport.h"
#include "services/aggregator/data_peer.h"
#include "services/aggregator/data_plane_options.h"
#include "services/aggregator/job_connection.h"
#include "services/aggregator/served_job.h"

namespace talweg::aggregator {

// The connections of jobs, and which of them have something to send. One owner thread. The
// constructor's arguments outlive this object, and each job outlives its connections.
class JobConnections {
 public:
  struct Entry {
    Entry(ServedJob* of, JobConnection::Config config, const ConnectionsShare& share)
        : job(of), connection(std::move(config), share, &of->credit) {}

    ServedJob* const job;
    JobConnection connection;
  };

  JobConnections(transport::Transport* transport, const runtime::Clock* clock,
                 DataPlaneTotals* totals)
      : share_{.transport = transport, .clock = clock, .totals = totals, .unflushed = &unflushed_} {
  }
  JobConnections(const JobConnections&) = delete;
  JobConnections& operator=(const JobConnections&) = delete;

  void Add(ServedJob* job, JobConnection::Config config);
  // Returns nullptr if the connection has no job yet, or is over.
  Entry* Find(ConnectionId id);
  const Entry* Find(ConnectionId id) const;
  // Closes the connection: the peer can write nothing any more. It need not be known here.
  void Close(ConnectionId id, const std::string& reason);
  // Forgets a connection that is closed. Returns its job, or nullptr.
  ServedJob* Remove(ConnectionId id);

  bool has_unflushed() const { return !unflushed_.empty(); }
  // Returns the connections that have something to send. Some may be over.
  std::vector<ConnectionId> TakeUnflushed();
  // Posts the credit that no frame has carried.
  void FlushKept();

  std::vector<ConnectionId> ids() const;
  size_t CountOf(const DataPeer& peer) const;

 private:
  std::vector<ConnectionId> unflushed_;
  const ConnectionsShare share_;
  std::map<ConnectionId, Entry> entries_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_JOB_CONNECTIONS_H_
