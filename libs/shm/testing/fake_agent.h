// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_TESTING_FAKE_AGENT_H_
#define TALWEG_LIBS_SHM_TESTING_FAKE_AGENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "libs/shm/daemon/rank_server.h"

namespace talweg::shm {

// An agent for tests: a job of one node, whose rounds are summed in rank order in a thread of its
// own. Every collective, dtype and operation, any group; averages rounded once; no speed.
//
// The test thread owns it; everything below is called from there and takes effect before it
// returns.
class FakeAgent {
 public:
  struct Options {
    RankServerConfig server;  // socket_path and local_rank_count at least.
    std::string job_name = "test-job";
    // Ranks are admitted when all have come; else each at once.
    bool waits_for_all = false;
    // Tensors named so are declared by all, then the declaration of the last is never answered.
    std::string unanswered_name;
    // The ranks sum what is of all of them; the agent only says when.
    bool ranks_sum = false;
    // As agents before there was such a thing: what is declared in place is not summed so.
    bool knows_in_place = true;
    // A single rank that declares in place finds its results where it contributes.
    bool one_place = false;
    // Rounds are complete when the test says so (ReleaseRounds), not before.
    bool holds_rounds = false;
    // Ranks may be told what has come of a result (Arrive).
    bool tells_arrivals = false;
  };

  // Ends the process with a text when the server cannot be created.
  explicit FakeAgent(Options options);
  // As if the agent had been killed: no goodbye, sockets just close. (The socket's file is
  // removed.)
  ~FakeAgent();

  const std::string& socket_path() const;

  // Completes what is held, and holds no more.
  void ReleaseRounds();
  // From now on they are held again.
  void HoldRounds();
  // These bytes of a tensor's open round, which all have pushed, are summed, and ranks are told.
  // `as`: instead of what they ought to be.
  void Arrive(const std::string& tensor, uint64_t offset_bytes, uint64_t length_bytes,
              std::optional<std::byte> as = std::nullopt);
  // Ends the open round of a tensor for all ranks with `status` and `text`.
  void AbortRound(const std::string& tensor, RankStatus status, const std::string& text);
  void FailAll(RankStatus status, const std::string& text);
  // Stops handling anything, as a stopped process does; the second ends that.
  void Pause();
  void Resume();

  struct Seen {
    int hellos = 0;
    int pushes = 0;
    int gone_clean = 0;
    int gone_unclean = 0;
    std::string last_gone;  // RankGone::text
    std::string last_client_name;
    RankServerCounters counters;
  };
  Seen seen();
  // Waits until `done(seen())`; ends the process after a generous deadline.
  void WaitUntil(const std::function<bool(const Seen&)>& done);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_TESTING_FAKE_AGENT_H_
