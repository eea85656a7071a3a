// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_SCHEDULER_PROCESS_H_
#define TALWEG_TESTS_SIM_SCHEDULER_PROCESS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "libs/membership/scheduler_core.h"
#include "tests/sim/ledger.h"
#include "tests/sim/network.h"
#include "tests/sim/profile.h"

namespace talweg::sim {

// The scheduler has started with an older store: it has forgotten members that it let in or
// declared lost.
inline constexpr const char* kOlderStore = "an older store is put in the scheduler's place";

// The time of day when a life begins.
inline constexpr int64_t kStartUnixNs = 1'800'000'000'000'000'000;

// The scheduler with its synced store, and the calls and streams through which other processes
// reach it.
class SchedulerProcess {
 public:
  // Runs at the scheduler, which performs the effects before the caller gets an answer.
  using Request = std::function<void(membership::SchedulerCore&, int64_t now_ns,
                                     std::vector<membership::Effect>&)>;
  using Message = std::variant<membership::MemberMessage, membership::AggregatorMessage>;
  struct StreamHandler {
    std::function<void(const Message&)> on_message;
    // With an answer, the scheduler has ended the stream; without one, the connection broke.
    std::function<void(const std::optional<membership::Answer>&)> on_end;
  };

  SchedulerProcess(Timeline* timeline, Trace* trace, Network* network, Host* host,
                   const Profile* profile, std::map<JobId, Ledger>* ledgers);

  // A call from `from`. The request or the answer may be lost or delayed, and the call may be made
  // twice. `done(false)`: no answer within the deadline. Dropped when the caller's life ends.
  void Call(HostIndex from, Request request, std::function<void(bool answered)> done) {
    CallTimes(Copies(), from, std::move(request), std::move(done));
  }
  // A call that opens a stream: the library under a stream makes it at most once.
  void CallOnce(HostIndex from, Request request, std::function<void(bool answered)> done) {
    CallTimes(Lost() ? 0 : 1, from, std::move(request), std::move(done));
  }
  // Returns the id for an attach request. The stream opens when the request is accepted.
  membership::StreamId NewStream(HostIndex from, StreamHandler handler);
  void DropStream(membership::StreamId stream);  // The attach was refused, or had no answer.
  // The attach request was accepted. A stream that is over by now ends after that.
  void NoteAttached(membership::StreamId stream);

  void Start();
  // Kills the scheduler, and starts it again with its store.
  void Restart(int64_t down_ns);
  // Like Restart, but for long, for good, or again and again, and some of its last messages are
  // lost.
  void Lose();
  void OnHostEnded(HostIndex host, bool silently);
  // `check` gets each view before any process does.
  void SetViewCheck(std::function<void(const view::View& view)> check) {
    view_check_ = std::move(check);
  }
  bool BreakSomeStream();

  const membership::SchedulerCore* core() const { return core_.get(); }
  uint64_t restarts() const { return restarts_; }
  std::optional<int64_t> down_since_ns() const { return down_since_ns_; }
  // Since when the scheduler has not run long enough to decide who is lost.
  int64_t undecided_since_ns() const { return undecided_since_ns_; }
  // Since when the scheduler has run without a gap.
  int64_t steady_since_ns() const { return steady_since_ns_; }

 private:
  struct Stream {
    HostIndex host = 0;
    uint64_t life = 0;
    StreamHandler handler;
    int64_t last_arrival_ns = 0;
    bool open = true;
    bool broken = false;  // The scheduler is told as soon as it knows the stream.
    bool cut = false;     // Messages on their way to the other end are lost.
  };

  int64_t NextSeconds(uint64_t most);
  void Run(const Request& request);
  void CallTimes(int copies, HostIndex from, Request request, std::function<void(bool)> done);
  int Copies() { return Lost() ? 0 : timeline_->random().OneIn(50) ? 2 : 1; }
  void Perform(std::vector<membership::Effect>& effects);
  void Tell(membership::StreamId id, Message message);
  void EndStream(membership::StreamId id, std::optional<membership::Answer> answer);
  void Store(const membership::StoreWrite& write);
  bool DiesAt(const membership::StoreWrite& write);
  bool DiesBehind(const membership::Effect& told);
  bool MayDie(Fault fault) const;
  void NoteText(const std::string& text);
  void MaybeRestoreBackup();
  void Tick(uint64_t life);
  void BreakLater(membership::StreamId id);
  void OnViewTold(const view::View& view);
  void CheckStored(const view::View& view) const;
  void CheckNote(const std::string& text) const;
  void CheckBeginnings();
  bool Lost() { return timeline_->random().Below(100) < profile_->rpc_loss_percent; }

  Timeline* const timeline_;
  Trace* const trace_;
  Network* const network_;
  Host* const host_;
  const Profile* const profile_;
  std::map<JobId, Ledger>* const ledgers_;
  std::function<void(const view::View& view)> view_check_;
  std::unique_ptr<membership::SchedulerCore> core_;
  membership::Snapshot store_;
  std::vector<membership::Snapshot> backups_;  // This life's.
  std::map<membership::StreamId, Stream> streams_;
  uint64_t next_stream_ = 1;
  uint64_t life_ = 0;
  uint64_t restarts_ = 0;
  int64_t last_run_ns_ = 0;
  int64_t steady_since_ns_ = 0;
  std::optional<int64_t> down_since_ns_;
  int64_t started_ns_ = 0;
  int64_t undecided_since_ns_ = 0;
  std::map<JobId, int64_t> gathers_since_ns_;  // Since when a job has had its minimum of members.
  std::set<JobId> begun_;
  uint64_t relapses_left_ = 0;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_SCHEDULER_PROCESS_H_
