// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_ROUNDS_H_
#define TALWEG_LIBS_AGGREGATION_ROUNDS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "libs/aggregation/aggregator_core_config.h"
#include "libs/aggregation/aggregator_tensor.h"
#include "libs/aggregation/attendance.h"
#include "libs/aggregation/effects.h"
#include "libs/aggregation/latecomers.h"
#include "libs/aggregation/present_view.h"
#include "libs/aggregation/sessions.h"
#include "libs/aggregation/status.h"
#include "libs/base/ids.h"
#include "libs/wire/frames.h"

namespace talweg::aggregation {

// The rounds of declared tensors: contributions come in, are summed, and results go out
// (docs/protocol.md, section 5). Only this class advances the slices' rounds. It knows which
// results are being written.
//
// A pure class. One owner thread. The constructor's arguments outlive it.
class Rounds {
 public:
  Rounds(const AggregatorCoreConfig* config, const PresentView* view, const Attendance* attendance,
         Tensors* tensors, Counters* counters)
      : config_(config),
        view_(view),
        attendance_(attendance),
        tensors_(tensors),
        counters_(counters) {}

  void OnView() { latecomers_.OnView(); }
  // Handles a Contribute frame. `member`: the connection's member in the present epoch.
  ContributionTally OnContributions(ConnectionId connection, const Session& session,
                                    std::optional<MemberIndex> member, const wire::Frame& frame,
                                    int64_t now_ns, Effects& out);
  void OnSummed(const SumId& id, uint32_t travel_bytes, Effects& out);
  void OnUndecodable(const SumId& id, size_t input, Effects& out);
  void OnWriteDone(WriteId id, Effects& out);
  // The connection is over. `member`: its member in the present epoch.
  void OnLost(ConnectionId connection, std::optional<MemberIndex> member, Effects& out);
  // The job is over: results of sums under way are dropped, and no more sums are asked for.
  void OnClosed() { is_over_ = true; }

  size_t writes_under_way() const { return writes_.size(); }
  const Latecomers& latecomers() const { return latecomers_; }

 private:
  struct Write {
    ConnectionId connection;
    TensorKey tensor;
    SliceIndex slice;
    AllocationId result;
  };
  // Where a contribution comes from.
  struct Origin {
    ConnectionId connection;
    MemberIndex member;
    uint32_t entry_index = 0;  // In its frame.
    int64_t now_ns = 0;
  };

  void OnContribution(const Origin& from, const wire::Contribute& entry, ContributionTally& tally,
                      Effects& out);
  // If half of a round's members are here, tells the others that it may go on without their late
  // ranks.
  void Hurry(AggregatorTensor& tensor, const LocalSlice& slice, Effects& out);
  void Refuse(ConnectionId connection, wire::RefusedReason reason, const wire::Contribute& entry,
              std::string text, ContributionTally& tally, Effects& out);
  // Returns the slice of a sum that has ended; null if the sum is stale.
  LocalSlice* SliceOf(const SumId& id);
  void StartSumIfFree(AggregatorTensor& tensor, LocalSlice& slice, Effects& out);
  void ServeAll(AggregatorTensor& tensor, LocalSlice& slice, Effects& out);
  void Serve(AggregatorTensor& tensor, LocalSlice& slice, MemberIndex member, bool wants_bytes,
             int32_t priority, Effects& out);
  void ForgetContributionsOf(MemberIndex member);
  void ForgetWritesOf(ConnectionId connection, Effects& out);
  void WriteIsOver(const Write& write, Effects& out);

  const AggregatorCoreConfig* const config_;
  const PresentView* const view_;
  const Attendance* const attendance_;
  Tensors* const tensors_;
  Counters* const counters_;
  Latecomers latecomers_;
  uint64_t last_write_ = 0;
  std::map<WriteId, Write> writes_;
  bool is_over_ = false;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_ROUNDS_H_
