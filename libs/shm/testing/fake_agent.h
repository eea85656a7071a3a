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

// An agent for tests: it has a job of one node, and sums rounds in rank order in its own thread. It
// knows every collective, dtype and operation, and any group. It rounds averages once, and is not
// fast.
//
// The test thread owns it, and makes all calls; each takes effect before it returns.
class FakeAgent {
 public:
  struct Options {
    RankServerConfig server;  // socket_path and local_rank_count at least.
    std::string job_name = "test-job";
    // Ranks are admitted when all have joined; otherwise each at once.
    bool waits_for_all = false;
    // All ranks declare tensors of this name, but the last declaration is never answered.
    std::string unanswered_name;
    // The ranks sum tensors of all of them; the agent only says when.
    bool ranks_sum = false;
    // Like older agents: a tensor that is declared in place is not summed in place.
    bool knows_in_place = true;
    // A single rank that declares in place finds its results where it contributes.
    bool one_place = false;
    // Rounds are complete only when the test says so (ReleaseRounds).
    bool holds_rounds = false;
    // Ranks may be told which bytes of a result have arrived (Arrive).
    bool tells_arrivals = false;
  };

  // Ends the process with a text if the server cannot be created.
  explicit FakeAgent(Options options);
  // Acts like a killed agent: no goodbye, sockets just close. (The socket's file is removed.)
  ~FakeAgent();

  const std::string& socket_path() const;

  // Completes the rounds that are held, and holds no more.
  void ReleaseRounds();
  // Holds rounds from now on.
  void HoldRounds();
  // Sums these bytes of a tensor's open round, which all have pushed, and tells the ranks. `as`:
  // writes this byte instead of the sums.
  void Arrive(const std::string& tensor, uint64_t offset_bytes, uint64_t length_bytes,
              std::optional<std::byte> as = std::nullopt);
  // Ends the open round of a tensor for all ranks with `status` and `text`.
  void AbortRound(const std::string& tensor, RankStatus status, const std::string& text);
  void FailAll(RankStatus status, const std::string& text);
  // Pause stops handling anything, like a stopped process. Resume ends that.
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
