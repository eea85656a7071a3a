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
  kRefused = 3,  // The peer was told why; closed a little later, or by the peer.
};

// A connection that has said Hello.
struct Session {
  SessionState state = SessionState::kHeld;
  Epoch epoch;       // The epoch of its Hello, or of the last Fence that was answered.
  Epoch fence_held;  // A Fence that waits for its view; 0: none.
  wire::Hello hello;
  // kRefused: when it is closed. kHeld: when it is refused.
  std::optional<int64_t> until_ns;
  uint64_t refusals = 0;
  uint64_t contribution_bytes = 0;
};

// The outcome of a frame's contributions, or of its declarations.
struct ContributionTally {
  uint64_t refused = 0;      // In entries.
  uint64_t taken_bytes = 0;  // Data bytes of the accepted entries.
};

// The connections that have said Hello to a job: each is welcomed, waits for its view, or is
// refused (docs/protocol.md, sections 4 and 6). A member that is welcomed, or has fenced, enters
// `attendance`.
//
// A pure class. One owner thread. The constructor's arguments outlive it.
class Sessions {
 public:
  // A connection is over, and its session is gone. `member`: its member in the present epoch. The
  // function forgets what was under way for it.
  using OnLost = std::function<void(ConnectionId, std::optional<MemberIndex> member, Effects&)>;

  Sessions(const AggregatorCoreConfig* config, const PresentView* view, Attendance* attendance,
           Counters* counters, OnLost on_lost)
      : config_(config),
        view_(view),
        attendance_(attendance),
        counters_(counters),
        on_lost_(std::move(on_lost)) {}

  // Handles a connection's first frame.
  void OnHello(ConnectionId connection, Epoch epoch, const wire::Hello& hello, int64_t now_ns,
               Effects& out);
  // An active session has sent a Fence.
  void OnFence(ConnectionId connection, Epoch epoch, Effects& out);
  // Closes a connection with too many refusals.
  void OnTally(ConnectionId connection, const ContributionTally& tally, Effects& out);

  // In a new view: first closes the connections of members outside it, so that nothing of theirs
  // lands any more.
  void CloseWhoIsOut(Effects& out);
  // Then answers the Hellos and Fences that have waited for the view.
  void AnswerThoseThatWaited(int64_t now_ns, Effects& out);

  // Tells all members why the job is over here.
  void RefuseAll(const std::string& text, int64_t now_ns, Effects& out);
  // Refuses Hellos that have waited too long. Closes refused connections that have had time to read
  // the refusal.
  void OnTick(int64_t now_ns, Effects& out);
  // Also closes a connection that has not said Hello.
  void Close(ConnectionId connection, std::string reason, Effects& out);
  // The connection is closed already.
  void Lose(ConnectionId connection, Effects& out);

  // Returns why a member that says a newer epoch than is known here cannot be a member of that
  // epoch, or "".
  std::string WhyNotAhead(const view::MemberIdentity& member, Epoch epoch, int64_t now_ns) const;

  const std::map<ConnectionId, Session>& all() const { return all_; }
  const Session* Find(ConnectionId connection) const;
  // The member whose connection this is in the present epoch.
  std::optional<MemberIndex> ActiveMember(ConnectionId connection, const Session& session) const;
  // Welcomed connections that have not fenced to the present epoch, with the epoch that they hold.
  std::vector<std::pair<ConnectionId, Epoch>> ThoseBehind() const;

 private:
  void Admit(ConnectionId connection, Session& session, int64_t now_ns, Effects& out);
  // The Hello waits for its view. Only the newest connection of a member does.
  void Hold(ConnectionId connection, Session& session, int64_t now_ns, Effects& out);
  // Closes the other connections of this member for which `concerns` is true. Returns false if one
  // of them is newer: then `connection` is closed, and its session is gone.
  bool Replace(ConnectionId connection, const Session& session,
               bool (*concerns)(const Session& other), Effects& out);
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
