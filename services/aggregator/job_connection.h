// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_JOB_CONNECTION_H_
#define TALWEG_SERVICES_AGGREGATOR_JOB_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "libs/aggregation/effects.h"
#include "libs/aggregation/result_queue.h"
#include "libs/base/ids.h"
#include "libs/runtime/clock.h"
#include "libs/transport/transport.h"
#include "libs/wire/frames.h"
#include "services/aggregator/credit_meter.h"
#include "services/aggregator/data_peer.h"
#include "services/aggregator/data_plane_options.h"
#include "services/aggregator/held_credit.h"
#include "services/aggregator/outbox.h"
#include "services/aggregator/slot_memory.h"

namespace talweg::aggregator {

// What the connections of a data plane have in common. All outlive them.
struct ConnectionsShare {
  transport::Transport* transport = nullptr;
  const runtime::Clock* clock = nullptr;
  DataPlaneTotals* totals = nullptr;
  // Connections that have something to say, in the order in which they had it first: Flush them.
  std::vector<ConnectionId>* unflushed = nullptr;
};

// A connection that has come to a job: what is to be said over it, the results that are written to
// its member, and the credit that goes back.
//
// One owner thread, the data thread. It neither parses what comes nor knows the job's core.
class JobConnection {
 public:
  struct Config {
    ConnectionId id;
    JobId job;
    DataPeer peer;
    uint64_t received_bytes = 0;  // Before it came to the job.
    uint64_t results_window_bytes = aggregation::ResultQueue::kNoWindow;
  };

  // `credit` is the job's, and outlives it.
  JobConnection(Config config, const ConnectionsShare& share, HeldCredit* credit);
  JobConnection(const JobConnection&) = delete;
  JobConnection& operator=(const JobConnection&) = delete;

  // Bytes of a frame have come, or bytes that the member has written, which its frame tells.
  void OnReceived(uint64_t bytes);
  // A frame has been taken in: so many bytes in all, over the link if it is one.
  void OnFrameTaken(uint64_t bytes);
  // Whether the member has more to send than it has room for.
  void SetMoreWaits(bool more_wait);
  // Bytes that were counted twice: as part of a frame, and as what it told.
  void UncountInline(uint64_t bytes);

  void Say(const aggregation::Send& effect);
  void ReturnCredit(uint64_t bytes);
  void GiveCredit(uint64_t bytes);
  // `memory` is what the result is read from. It is held until it has been written.
  void SendResult(const aggregation::SendResult& effect, const SlotMemory& memory);
  // A result that was written is not read any more. False: there was no such write.
  bool OnWritten(uint64_t write);

  // Posts what is there. Credit may wait for something to ride on: `credit_bytes` was granted.
  void Flush(Epoch epoch, uint64_t credit_bytes);
  // Posts credit that nothing has carried.
  void FlushKept(Epoch epoch);
  // It is over: neither credit nor results matter any more.
  void End();

  const DataPeer& peer() const { return config_.peer; }
  const ConnectionTraffic& traffic() const { return traffic_; }
  // Something is to be flushed.
  bool has_news() const { return has_news_; }
  // What the member does not take.
  uint64_t pending_bytes() const;

 private:
  // A result that is written to the member, or waits to be.
  struct ResultWrite {
    SlotMemory source;
    uint32_t length_bytes = 0;
    bool has_left = false;
  };

  bool is_over_link() const { return !config_.peer.host.empty(); }
  // What it moves counts on the link that jobs share.
  bool SharesLink() const { return is_over_link() && credit_->is_shared(); }
  void MarkUnflushed();
  void UpdateWants();
  void PostFrame(std::vector<std::byte> frame);
  void PostResult(const aggregation::SendResult& effect);
  void HurryResults();

  const Config config_;
  const ConnectionsShare share_;
  HeldCredit* const credit_;
  Outbox outbox_;
  CreditMeter credit_meter_;
  bool has_news_ = false;                             // In share_.unflushed.
  bool more_wait_ = false;                            // Its member has said so last.
  bool wants_link_ = false;                           // As credit_ has been told.
  std::unordered_map<uint64_t, ResultWrite> writes_;  // By WriteId.
  aggregation::ResultQueue results_;
  ConnectionTraffic traffic_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_JOB_CONNECTION_H_
