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

// The results that are to be written to one connection. While fewer bytes than the window are under
// way, a result leaves at once. Otherwise it waits. The one with the largest priority leaves next;
// among equals, the one that came first.
//
// The queue knows no bytes. The owner of the connection keeps the results' memory while they wait
// and while they are written. While anything waits something is under way, so OnWritten follows.
//
// A pure class. One owner thread.
class ResultQueue {
 public:
  // Small, so that little is overtaken; large enough to keep a link full while the data thread
  // sums.
  static constexpr uint64_t kUsualWindowBytes = kMiB;
  // With this window nothing ever waits.
  static constexpr uint64_t kNoWindow = std::numeric_limits<uint64_t>::max();

  explicit ResultQueue(uint64_t window_bytes = kNoWindow) : window_bytes_(window_bytes) {}

  // Returns whether the result leaves now. If not, Take returns it when its turn has come. A result
  // has at least one byte.
  bool Add(const SendResult& result);
  // A result that has left is no longer read.
  void OnWritten(uint64_t bytes);
  // Takes the next result, if it may leave.
  std::optional<SendResult> Take();
  // Takes the next result regardless of the window, for a caller whose next message must not
  // overtake results.
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
