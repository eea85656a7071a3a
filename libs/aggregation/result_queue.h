// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_RESULT_QUEUE_H_
#define TALWEG_LIBS_AGGREGATION_RESULT_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "libs/aggregation/effects.h"
#include "libs/base/bytes.h"

namespace talweg::aggregation {

// The results that are to be written to one connection. As long as less than the window is under
// way a result leaves at once. Else it waits, and the one with the largest priority leaves next,
// of several the one that came first.
//
// It knows no bytes: whoever owns the connection holds the results' memory while they wait, as
// while they are written. While anything waits something is under way, so OnWritten follows.
//
// A pure class. One owner thread.
class ResultQueue {
 public:
  // Little to overtake, and enough to keep a link full while the data thread sums.
  static constexpr uint64_t kUsualWindowBytes = kMiB;
  // Nothing ever waits.
  static constexpr uint64_t kNoWindow = std::numeric_limits<uint64_t>::max();

  explicit ResultQueue(uint64_t window_bytes = kNoWindow) : window_bytes_(window_bytes) {}

  // Whether the result leaves now. If not, Take gives it back when its turn has come. A result has
  // bytes.
  bool Add(const SendResult& result);
  // A result that has left is not read any more.
  void OnWritten(uint64_t bytes);
  // The next result, if it may leave.
  std::optional<SendResult> Take();
  // The next result, whatever is under way: before something that must not overtake results.
  std::optional<SendResult> TakeAnyway();

  size_t waiting_count() const { return waiting_.size(); }
  uint64_t waiting_bytes() const { return waiting_bytes_; }
  uint64_t under_way_bytes() const { return under_way_bytes_; }

 private:
  // Larger priorities first, then by order of arrival.
  using Turn = std::pair<int64_t, uint64_t>;

  const uint64_t window_bytes_;
  std::map<Turn, SendResult> waiting_;
  uint64_t next_arrival_ = 0;
  uint64_t waiting_bytes_ = 0;
  uint64_t under_way_bytes_ = 0;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_RESULT_QUEUE_H_
