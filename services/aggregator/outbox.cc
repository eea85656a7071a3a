// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/outbox.h"

#include <utility>

namespace talweg::aggregator {

void Outbox::AddWelcome(Epoch epoch, const wire::Welcome& welcome) {
  FlushEntries();
  credit_bytes_ = 0;
  Add(wire::FrameType::kWelcome, epoch, welcome);
  FlushEntries();
}

void Outbox::AddFenceAck(Epoch epoch) {
  FlushEntries();
  credit_bytes_ = 0;
  post_(wire::FrameWriter(wire::FrameType::kFenceAck, job_, epoch).Take());
}

void Outbox::Flush(Epoch epoch, uint64_t kept_bytes) {
  FlushEntries();
  if (credit_bytes_ <= kept_bytes) return;
  post_(wire::FrameWriter(wire::FrameType::kCredit, job_, epoch)
            .Take(std::exchange(credit_bytes_, 0)));
}

void Outbox::Begin(wire::FrameType type, Epoch epoch) {
  writer_.emplace(type, job_, epoch);
  epoch_ = epoch;
}

void Outbox::FlushEntries() {
  if (!writer_) return;
  if (writer_->entry_count() > 0) post_(writer_->Take(std::exchange(credit_bytes_, 0)));
  writer_.reset();
}

}  // namespace talweg::aggregator
