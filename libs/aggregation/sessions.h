// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_SESSIONS_H_
#define TALWEG_LIBS_AGGREGATION_SESSIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libs/aggregation/aggregator_core_config.h"
#include "libs/aggregation/attendance.h"
#include "libs/aggregation/effects.h"
#include "libs/aggregation/present_view.h"
#include "libs/aggregation/status.h"
#include "libs/base/ids.h"
#include "libs/wire/frames.h"

namespace talweg::aggregation {

enum class SessionState : uint8_t {
  kHeld = 1,     // Its Hello waits for its view.
  kActive = 2,   // Welcomed.
  kRefused = 3,  // Told why not; closed a little later, if not by the peer.
};

// A connection that has said Hello.
struct Session {
  SessionState state = SessionState::kHeld;
  Epoch epoch;       // That it said Hello for or has fenced to.
  Epoch fence_held;  // A Fence that waits for its view; 0: none.
  wire::Hello hello;
  int64_t close_at_ns = 0;  // kRefused.
  uint64_t refusals = 0;
  uint64_t contribution_bytes = 0;
};

// What became of a frame's contributions.
struct ContributionTally {
  uint64_t refused = 0;      // Entries.
  uint64_t taken_bytes = 0;  // What those hold that were taken.
};

// The connections that have said Hello to a job: who is welcomed, waits for its view, or is refused
// (docs/protocol.md, sections 4 and 6). Whoever is welcomed, or has fenced, enters `attendance`.
//
// A pure class. One owner thread. What it is made of outlives it.
class Sessions {
 public:
  // A connection is over, and its session is gone. `member`: whose it was in the present epoch.
  // What was under way for it is forgotten by this call.
  using OnLost = std::function<void(ConnectionId, std::optional<MemberIndex> member, Effects&)>;

  Sessions(const AggregatorCoreConfig* config, const PresentView* view, Attendance* attendance,
           Counters* counters, OnLost on_lost)
      : config_(config),
        view_(view),
        attendance_(attendance),
        counters_(counters),
        on_lost_(std::move(on_lost)) {}

  // A connection's first frame.
  void OnHello(ConnectionId connection, Epoch epoch, const wire::Hello& hello, int64_t now_ns,
               Effects& out);
  // An active session has fenced.
  void OnFence(ConnectionId connection, Epoch epoch, Effects& out);
  // A connection with too many refusals is closed.
  void OnContributed(ConnectionId connection, const ContributionTally& tally, Effects& out);

  // A new view. First whoever is out is closed, so that nothing of theirs lands any more.
  void CloseWhoIsOut(Effects& out);
  // Then Hellos and Fences that have waited for it are answered.
  void AnswerThoseThatWaited(int64_t now_ns, Effects& out);

  // Tells everybody why the job is over here.
  void RefuseAll(const std::string& text, int64_t now_ns, Effects& out);
  // Those that have had the time to read it.
  void CloseRefused(int64_t now_ns, Effects& out);
  // Also one that has not said Hello.
  void Close(ConnectionId connection, std::string reason, Effects& out);
  // It is closed already.
  void Lose(ConnectionId connection, Effects& out);

  const std::map<ConnectionId, Session>& all() const { return all_; }
  const Session* Find(ConnectionId connection) const;
  // The member whose present connection this is, in the present epoch.
  std::optional<MemberIndex> ActiveMember(ConnectionId connection, const Session& session) const;
  // Welcomed ones that have not fenced to the present epoch, with the epoch that they hold.
  std::vector<std::pair<ConnectionId, Epoch>> ThoseBehind() const;

 private:
  void Admit(ConnectionId connection, Session& session, int64_t now_ns, Effects& out);
  void Welcome(ConnectionId connection, Session& session, MemberIndex member, Effects& out);
  void Refuse(ConnectionId connection, Session& session, wire::WelcomeStatus status,
              std::string text, int64_t now_ns, Effects& out);
  void Fenced(ConnectionId connection, Session& session, Effects& out);

  const AggregatorCoreConfig* const config_;
  const PresentView* const view_;
  Attendance* const attendance_;
  Counters* const counters_;
  const OnLost on_lost_;
  std::map<ConnectionId, Session> all_;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_SESSIONS_H_
