// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_OUTBOX_H_
#define TALWEG_SERVICES_AGGREGATOR_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "libs/base/ids.h"
#include "libs/wire/frames.h"

namespace talweg::aggregator {

// Puts the entries for one connection into as few frames as their order allows: consecutive entries
// of one type and epoch share a frame. The next frame that leaves carries the credit.
class Outbox {
 public:
  using PostFrame = std::function<void(std::vector<std::byte>)>;

  Outbox(JobId job, PostFrame post) : job_(job), post_(std::move(post)) {}

  template <typename Entry>
  void Add(wire::FrameType type, Epoch epoch, const Entry& entry) {
    if (writer_ && (writer_->type() != type || epoch_ != epoch)) FlushEntries();
    if (!writer_) Begin(type, epoch);
    if (writer_->Add(entry)) return;
    FlushEntries();
    Begin(type, epoch);
    writer_->Add(entry);
  }

  // After these frames nothing is in flight, so they drop credit that was not sent yet.
  void AddWelcome(Epoch epoch, const wire::Welcome& welcome);
  void AddFenceAck(Epoch epoch);

  void AddCredit(uint64_t bytes) { credit_bytes_ += bytes; }

  // Posts all entries. Posts remaining credit in a frame of its own if it is more than
  // `kept_bytes`; less waits until another frame carries it.
  void Flush(Epoch epoch, uint64_t kept_bytes);
  uint64_t credit_bytes() const { return credit_bytes_; }

 private:
  void Begin(wire::FrameType type, Epoch epoch);
  void FlushEntries();

  const JobId job_;
  const PostFrame post_;
  std::optional<wire::FrameWriter> writer_;
  Epoch epoch_;
  uint64_t credit_bytes_ = 0;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_OUTBOX_H_
