// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_JOB_CONNECTION_H_
#define TALWEG_SERVICES_AGGREGATOR_JOB_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
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

// What all connections of a data plane use. All outlive the connections.
struct ConnectionsShare {
  transport::Transport* transport = nullptr;
  const runtime::Clock* clock = nullptr;
  DataPlaneTotals* totals = nullptr;
  // Connections that have something to send, in the order in which each first had: Flush them.
  std::vector<ConnectionId>* unflushed = nullptr;
};

// A connection of a job: the entries to send over it, the results to write to its member, and the
// credit to give back.
//
// Owned by the data thread. Does not parse frames, and does not know the job's core.
class JobConnection {
 public:
  struct Config {
    ConnectionId id;
    JobId job;
    DataPeer peer;
    uint64_t received_bytes = 0;  // Received before it came to the job.
    uint64_t results_window_bytes = aggregation::ResultQueue::kNoWindow;
  };

  // `credit` is the job's, and outlives the connection.
  JobConnection(Config config, const ConnectionsShare& share, HeldCredit* credit);
  JobConnection(const JobConnection&) = delete;
  JobConnection& operator=(const JobConnection&) = delete;

  // The bytes of a frame have come, or bytes that the member has written and a frame announces.
  void OnReceived(uint64_t bytes);
  // A frame was handled: `bytes` are its own and those that it announces. Counts them if the
  // connection uses the link.
  void OnFrameTaken(uint64_t bytes);
  // `more_wait`: the member has more to send than its credit allows.
  void SetMoreWaits(bool more_wait);
  // Takes off bytes that were counted twice: in a frame, and as announced by it.
  void UncountInline(uint64_t bytes);

  void Say(const aggregation::Send& effect);
  void ReturnCredit(uint64_t bytes);
  void GiveCredit(uint64_t bytes);
  // Reads the result from `memory`, and holds that until the result is written.
  void SendResult(const aggregation::SendResult& effect, const SlotMemory& memory);
  // A result was written, so its memory is not read any more. Returns false if there was no such
  // write.
  bool OnWritten(uint64_t write);

  // Posts all entries. Part of the credit may wait until a frame carries it (CreditMeter);
  // `credit_bytes` is the granted credit.
  void Flush(Epoch epoch, uint64_t credit_bytes);
  // Posts the credit that no frame has carried.
  void FlushKept(Epoch epoch);
  // The connection is over. Drops its results and its credit.
  void End();

  const DataPeer& peer() const { return config_.peer; }
  const ConnectionTraffic& traffic() const { return traffic_; }
  // Returns whether Flush has something to post.
  bool has_news() const { return has_news_; }
  // Returns the bytes that wait because the member does not read.
  uint64_t pending_bytes() const;
  // Returns whether frames of more than `bytes_max` wait for that reason. They are copies, and
  // nobody has reserved memory for them. Results that are written lie in their own memory.
  bool HasMoreFramesThan(uint64_t bytes_max);

 private:
  // A result that is being written to the member, or waits for that.
  struct ResultWrite {
    SlotMemory source;
    uint32_t bytes = 0;
    bool has_left = false;
  };

  bool is_over_link() const { return !config_.peer.host.empty(); }
  // Returns whether its bytes count on the link that jobs share.
  bool SharesLink() const { return is_over_link() && credit_->is_shared(); }
  void MarkUnflushed();
  void UpdateWants();
  void ForgetFramesThatLeft();
  void PostFrame(std::vector<std::byte> frame);
  void PostResult(const aggregation::SendResult& effect);
  void HurryResults();

  const Config config_;
  const ConnectionsShare share_;
  HeldCredit* const credit_;
  Outbox outbox_;
  CreditMeter credit_meter_;
  bool has_news_ = false;                             // Whether it is in share_.unflushed.
  bool more_wait_ = false;                            // As last set by SetMoreWaits.
  bool wants_link_ = false;                           // As last told to credit_.
  std::unordered_map<uint64_t, ResultWrite> writes_;  // By WriteId.
  aggregation::ResultQueue results_;
  ConnectionTraffic traffic_;
  // A frame that may not have left yet.
  struct PostedFrame {
    uint64_t end = 0;  // traffic_.sent_bytes with it.
    uint64_t bytes = 0;
  };
  std::deque<PostedFrame> frames_;
  uint64_t frames_bytes_ = 0;  // The sum over frames_.
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_JOB_CONNECTION_H_
