// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_REDUCTIONS_H_
#define TALWEG_LIBS_PIPELINE_REDUCTIONS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "libs/base/ids.h"
#include "libs/pipeline/effects.h"

namespace talweg::pipeline {

// One slice that is reduced on this node.
struct Reduction {
  TensorIndex tensor;
  Round round;
  SliceIndex slice;
  AggregatorIndex owner;
  uint32_t length_bytes = 0;
  uint32_t cost_bytes = 0;    // How much of the owner's credit the slice holds.
  uint32_t travel_bytes = 0;  // How many bytes travel, when it is reduced.
  bool is_final = false;  // The reduction makes the round's result, and the slice does not leave.
};

// One result that is decoded on this node.
struct Decoding {
  TensorIndex tensor;
  Round round;
  SliceIndex slice;
  uint32_t rank_count = 0;
  uint32_t length_bytes = 0;
};

// The slices that the reducer holds, those that it has returned and that leave with the next Flush,
// and the results that are being decoded. A ticket is drawn once.
class Reductions {
 public:
  // Returns the ticket with which the reducer gives the slice back.
  uint64_t Begin(const Reduction& reduction);
  // Returns nullopt if the slice is not wanted any more.
  std::optional<Reduction> End(uint64_t ticket);
  // The same for a result that is decoded.
  uint64_t BeginDecoding(const Decoding& decoding);
  std::optional<Decoding> EndDecoding(uint64_t ticket);
  bool IsWanted(uint64_t ticket) const {
    return in_hand_.contains(ticket) || decodings_.contains(ticket);
  }
  // Bytes that the reducer holds.
  uint64_t bytes() const { return bytes_; }

  void AddReady(const Reduction& reduction) { ready_.push_back(reduction); }
  std::vector<Reduction> TakeReady();

  // The connection to `owner` broke: forgets its slices.
  void Forget(AggregatorIndex owner);
  // Forgets the slices that are reduced, or were.
  void Clear();
  void ClearDecodings() { decodings_.clear(); }

  bool is_idle() const { return in_hand_.empty(); }
  // CHECKs that `bytes` is the sum of the slices in hand.
  void CheckInvariants() const;

 private:
  std::map<uint64_t, Reduction> in_hand_;  // By ticket.
  std::vector<Reduction> ready_;
  std::map<uint64_t, Decoding> decodings_;  // By ticket.
  uint64_t next_ticket_ = 1;
  uint64_t bytes_ = 0;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_REDUCTIONS_H_
