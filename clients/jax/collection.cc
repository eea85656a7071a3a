// SPDX-License-Identifier: Apache-2.0
#include "clients/jax/collection.h"

#include <string>
#include <utility>

#include "clients/jax/finishers.h"
#include "clients/jax/frame.h"

namespace talweg::jax {
namespace {

xla::ErrorCode CodeOf(talweg_status status) {
  switch (status) {
    case TALWEG_INVALID_ARGUMENT:
    case TALWEG_MISMATCH: return xla::ErrorCode::kInvalidArgument;
    case TALWEG_JOB_FAILED:
    case TALWEG_AGENT_LOST: return xla::ErrorCode::kUnavailable;
    case TALWEG_ABORTED: return xla::ErrorCode::kAborted;
    case TALWEG_UNSUPPORTED: return xla::ErrorCode::kUnimplemented;
    case TALWEG_INTERNAL:
    case TALWEG_PROTOCOL: return xla::ErrorCode::kInternal;
    default: return xla::ErrorCode::kFailedPrecondition;
  }
}

// talweg.jax finds the status in the text (_errors.py).
std::string TextOf(const Outcome& outcome) {
  return "Talweg (status " + std::to_string(outcome.status) + ", " +
         talweg_status_name(outcome.status) + "): " + outcome.text;
}

}  // namespace

void Collection::Add(OpenRound round, void* out) {
  entries_.push_back({.round = std::move(round), .out = out});
}

xla::Error* Collection::Run(std::unique_ptr<Collection> collection, xla::Future** future) {
  std::vector<Entry*> open;
  for (Entry& entry : collection->entries_) {
    if (entry.round.IsOver()) {
      collection->Note(entry.round.Collect(entry.out));
    } else {
      open.push_back(&entry);
    }
  }
  if (open.empty()) {
    return collection->Error();
  }
  xla::Future* const made = MakeFuture(collection->api_);
  if (made == nullptr) {  // Memory may have run out. Then this thread waits.
    for (Entry* entry : open) {
      collection->Note(entry->round.Collect(entry->out));
    }
    return collection->Error();
  }
  *future = made;
  collection->future_ = made;
  collection->left_ = open.size();
  Collection* const shared = collection.release();
  for (Entry* entry : open) {
    entry->round.loop->Watch(
        entry->round.tensor, entry->round.round, [shared, entry](talweg_status told) {
          shared->End(told == TALWEG_OK ? entry->round.Collect(entry->out)
                                        : Outcome::Untold(told, entry->round.call));
        });
  }
  return nullptr;
}

void Collection::Note(Outcome outcome) {
  if (!outcome.ok() && first_failure_.ok()) {
    first_failure_ = std::move(outcome);
  }
}

void Collection::End(Outcome outcome) {
  {
    const std::scoped_lock lock(mutex_);
    Note(std::move(outcome));
    if (--left_ > 0) {
      return;
    }
  }
  Finishers::Shared().Run([this] {
    const std::unique_ptr<Collection> last(this);
    Complete(api_, future_, Error());
  });
}

xla::Error* Collection::Error() const {
  if (first_failure_.ok()) {
    return nullptr;
  }
  return MakeError(api_, CodeOf(first_failure_.status), TextOf(first_failure_));
}

}  // namespace talweg::jax
