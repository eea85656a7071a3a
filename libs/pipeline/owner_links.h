// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_OWNER_LINKS_H_
#define TALWEG_LIBS_PIPELINE_OWNER_LINKS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_core_config.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/tick_timer.h"
#include "libs/pipeline/view_state.h"
#include "libs/schedule/slice_queue.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {

enum class OwnerState : uint8_t {
  kBackoff = 1,  // No connection; the next attempt is due at retry_at_ns.
  kConnecting = 2,
  kGreeting = 3,  // Hello sent.
  kFencing = 4,   // Fence sent.
  kReady = 5,     // Welcomed, or fenced: nothing of an older epoch can land through it.
};

// An aggregator of the newest view, and the connection to it.
struct Owner {
  AggregatorIndex index;
  Incarnation incarnation;
  OwnerState state = OwnerState::kBackoff;
  ConnectionId connection;  // 0: none.
  uint64_t credit_bytes = 0;
  int64_t retry_at_ns = 0;
  int64_t backoff_ns = 0;
  int64_t unready_since_ns = 0;      // While not kReady.
  std::string trouble;               // How the last connection broke while the owner was not
                                     // kReady.
  std::set<TensorIndex> undeclared;  // While kReady: the tensors that the next Flush declares.
};

// The connections to the aggregators of the newest view (docs/protocol.md, section 6).
//
//   kBackoff --retry--> kConnecting --connected--> kGreeting --welcomed--> kReady
//      ^                    |                          |                    |  ^
//      |                    |                          |           new view |  | fence answered
//      |                    |                          |                    v  |
//      +---- broken --------+--- broken, or refused ---+----- broken ----- kFencing
//
//   new view: an owner that is kReady or kFencing, and goes on in it --> kFencing
//             every other connection is closed, and a new one is opened --> kConnecting
class OwnerLinks {
 public:
  using Owners = std::map<AggregatorIndex, Owner>;

  // All outlive this.
  OwnerLinks(const AgentCoreConfig* config, const ViewState* views, TickTimer* timer)
      : config_(config), views_(views), timer_(timer) {}

  // --- Transitions.

  // There is a newer view.
  void OnView(int64_t now_ns, Effects& out);
  void OnConnected(ConnectionId connection, Effects& out);
  // Returns the owner if it was kReady until now.
  std::optional<AggregatorIndex> OnDisconnected(ConnectionId connection, const std::string& reason,
                                                int64_t now_ns, Effects& out);
  enum class Answer : uint8_t {
    kIgnored = 1,  // The answer does not fit this owner's state.
    kReady = 2,    // The owner is ready now.
    kLater = 3,    // The owner refused for now; another attempt follows.
    kNever = 4,    // The owner will never accept this agent.
  };
  Answer OnWelcome(ConnectionId connection, const wire::Frame& frame, int64_t now_ns, Effects& out);
  Answer OnFenceAck(ConnectionId connection, Epoch epoch);
  // Makes the connection attempts that are due.
  void Reconnect(int64_t now_ns, Effects& out);
  // Removes all owners. Those with a connection get Close with `text`; those that are kReady get
  // Goodbye.
  void CloseAll(const std::string& text, Effects& out);
  void SayGoodbye(Effects& out);

  // --- What the next Flush declares. Only owners that are ready have such tensors.

  void AddUndeclared(AggregatorIndex owner, TensorIndex tensor);
  std::set<TensorIndex> TakeUndeclared(AggregatorIndex owner);

  // --- To look at.

  const Owners& all() const { return owners_; }
  const Owner& At(AggregatorIndex owner) const { return owners_.at(owner); }
  // Returns null if no owner has this connection.
  const Owner* Find(ConnectionId connection) const;
  bool AreReady() const;
  // Returns the first owner that has not been ready for `unreachable_ns`, or null.
  const Owner* FindUnreachable(int64_t now_ns) const;
  // Works also after the owners have been removed.
  const std::string& NameOf(AggregatorIndex owner) const;
  schedule::Reach ReachOf(AggregatorIndex owner) const;

  void CheckInvariants() const;

 private:
  Owner* FindOwner(ConnectionId connection);
  void Connect(Owner& owner, Effects& out);
  void Answered(Owner& owner);
  void BackOff(Owner& owner, int64_t now_ns);
  void SendBare(const Owner& owner, wire::FrameType type, Effects& out) const;

  const AgentCoreConfig* const config_;
  const ViewState* const views_;
  TickTimer* const timer_;
  Owners owners_;
  uint64_t next_connection_ = 1;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_OWNER_LINKS_H_
