// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_JAX_COLLECTION_H_
#define TALWEG_CLIENTS_JAX_COLLECTION_H_

// The rounds that one call of XLA collects, until the last of them is over.

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "clients/jax/rounds.h"
#include "clients/jax/xla_ffi.h"

namespace talweg::jax {

// One thread fills it and calls Run(). Then it belongs to whoever ends its last round.
class Collection {
 public:
  explicit Collection(const xla::Api& api) : api_(api) {}

  // `out` has room for what the round gives, until the collection is complete.
  void Add(OpenRound round, void* out);

  // Takes the rounds that are over, on this thread. The loop's thread takes each other round when
  // it is over. If there are any of these, this sets *future, and a thread of Finishers completes
  // it after the last round. A round is taken even if another has failed, so that its tensor may be
  // pushed again. The error is that of the first round that failed.
  static xla::Error* Run(std::unique_ptr<Collection> collection, xla::Future** future);

 private:
  struct Entry {
    OpenRound round;
    void* out;
  };

  void Note(Outcome outcome);
  void End(Outcome outcome);
  xla::Error* Error() const;

  const xla::Api& api_;
  std::vector<Entry> entries_;
  xla::Future* future_ = nullptr;
  std::mutex mutex_;
  size_t left_ = 0;
  Outcome first_failure_;
};

}  // namespace talweg::jax

#endif  // TALWEG_CLIENTS_JAX_COLLECTION_H_
