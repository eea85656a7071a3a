// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_NOTICES_H_
#define TALWEG_LIBS_AGGREGATION_NOTICES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "libs/aggregation/aggregator_core_config.h"
#include "libs/aggregation/aggregator_tensor.h"
#include "libs/aggregation/attendance.h"
#include "libs/aggregation/effects.h"
#include "libs/aggregation/present_view.h"
#include "libs/aggregation/recovery.h"
#include "libs/aggregation/sessions.h"
#include "libs/aggregation/status.h"
#include "libs/base/ids.h"

namespace talweg::aggregation {

// A tensor's earliest round that waits for a member.
struct Wait {
  Round round;
  uint32_t slices = 0;
  int64_t since_ns = 0;
  std::vector<bool> missing;  // By member index.
  std::vector<bool> waiting;  // By member index: contributed to a slice that is not complete.
};

// Returns nullopt if no round waits. `member_count`: of the view in which the tensor is placed.
std::optional<Wait> WaitOf(const AggregatorTensor& tensor, size_t member_count);

// Tells members, at growing intervals, whom an epoch or a round waits for (docs/protocol.md,
// section 8).
//
// A pure class. One owner thread. The constructor's arguments outlive it.
class Notices {
 public:
  Notices(const AggregatorCoreConfig* config, const PresentView* view, const Attendance* attendance,
          const Recovery* recovery, const Sessions* sessions, const Tensors* tensors,
          Counters* counters)
      : config_(config),
        view_(view),
        attendance_(attendance),
        recovery_(recovery),
        sessions_(sessions),
        tensors_(tensors),
        counters_(counters) {}

  void OnView(int64_t now_ns);
  // A round may have begun to wait.
  void OnEvent() { none_waits_ = false; }
  // Call it a few times a second. A job at rest costs nothing, however many tensors it has.
  void OnTick(int64_t now_ns, Effects& out);

 private:
  // What members have been told of a tensor's wait.
  struct Told {
    Round round;
    int64_t since_ns = 0;
    int64_t last_ns = 0;
  };

  void NoticeEpoch(int64_t now_ns, Effects& out);
  // Returns whether a round of the tensor waits.
  bool NoticeTensor(const AggregatorTensor& tensor, int64_t now_ns, Effects& out);
  // When to tell again about the members in `missing`.
  int64_t DueNs(const std::vector<bool>& missing, int64_t since_ns, int64_t last_ns) const;
  void NameMissing(const std::vector<bool>& missing, wire::Waiting& notice) const;

  const AggregatorCoreConfig* const config_;
  const PresentView* const view_;
  const Attendance* const attendance_;
  const Recovery* const recovery_;
  const Sessions* const sessions_;
  const Tensors* const tensors_;
  Counters* const counters_;
  bool none_waits_ = false;  // No round waited at the last tick, and nothing has happened since.
  int64_t view_since_ns_ = 0;
  int64_t last_epoch_notice_ns_ = 0;
  std::map<TensorKey, Told> told_;  // Tensors that waited at the last tick.
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_NOTICES_H_
