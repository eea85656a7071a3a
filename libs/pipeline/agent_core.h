// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_AGENT_CORE_H_
#define TALWEG_LIBS_PIPELINE_AGENT_CORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_core_config.h"
#include "libs/pipeline/agent_tensor.h"
#include "libs/pipeline/declarations.h"
#include "libs/pipeline/effects.h"
#include "libs/pipeline/failures.h"
#include "libs/pipeline/local_ranks.h"
#include "libs/pipeline/owner_links.h"
#include "libs/pipeline/pushes.h"
#include "libs/pipeline/recovery.h"
#include "libs/pipeline/reductions.h"
#include "libs/pipeline/rounds.h"
#include "libs/pipeline/slice_sender.h"
#include "libs/pipeline/stalls.h"
#include "libs/pipeline/step_quiesce.h"
#include "libs/pipeline/tensor_table.h"
#include "libs/pipeline/tick_timer.h"
#include "libs/pipeline/view_state.h"
#include "libs/pipeline/waits.h"
#include "libs/schedule/slice_queue.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {

// One agent's life in one job (docs/protocol.md, sections 4 to 7). ViewState has its phases. Each
// part below has its own rules and state; AgentCore decides in which order an event reaches them.
//
// Pure: no clock, lock, memory or I/O. Each event appends effects to `out`; the caller performs
// them, in order, before it delivers the next event. Deterministic. One owner thread. AgentCore
// trusts no peer and no rank: it refuses, ignores or counts what does not fit.
//
// Ready slices and new tensors' declarations leave in Flush() only. Call it once after each batch
// of events, so that the slices of many tensors travel together.
//
// The local completion of a write is not an event: a source is reused only after its result has
// come over the same ordered connection, or after that connection has been fenced (section 6).
class AgentCore {
 public:
  explicit AgentCore(const AgentCoreConfig& config);

  // --- From the scheduler.

  // Ignores a view that is not newer than the newest. In a view of one member and no aggregators,
  // the local reduction produces the result.
  void OnView(const view::View& view, int64_t now_ns, Effects& out);
  // Ends every wait with `text`. No effects follow later.
  void OnJobFailed(const std::string& text, int64_t now_ns, Effects& out);
  // Another member is done and contributes to no further round. If a round still needs it, the
  // round's owner says so, and the job then fails here.
  void OnMemberLeft(const view::MemberIdentity& id, const std::string& text);
  // With step 0, ranks stop at the end of their current step, and Quiesced says at once which of
  // these steps is the latest. With another step, ranks go on until they have ended that one;
  // Quiesced follows when all have and no round is open. A newer view, or OnResume, lets the ranks
  // go on.
  void OnQuiesce(uint64_t id, uint64_t step, int64_t now_ns, Effects& out);
  void OnResume(uint64_t id, int64_t now_ns, Effects& out);
  // The scheduler stops answering, or answers again; a lease lapses after `lease_ns`. After
  // `unreachable_ns` of silence nothing waits any more for what only the scheduler could end.
  void OnSchedulerSilent(int64_t now_ns);
  void OnSchedulerAnswers(int64_t lease_ns, int64_t now_ns);

  // --- From aggregators.

  void OnConnected(ConnectionId connection, int64_t now_ns, Effects& out);
  void OnDisconnected(ConnectionId connection, const std::string& reason, int64_t now_ns,
                      Effects& out);
  // Takes a frame that was parsed. If a frame does not parse, close the connection and call
  // OnDisconnected instead.
  void OnFrame(ConnectionId connection, const wire::Frame& frame, int64_t now_ns, Effects& out);

  // --- From ranks. A local rank that is not below rank_count is ignored.

  void OnRankJoined(LocalRank rank, uint32_t pid, int64_t now_ns, Effects& out);
  // One DeclareReply follows, at once or when the owners have agreed.
  void OnRankDeclare(LocalRank rank, uint32_t request, const Declaration& declaration,
                     int64_t now_ns, Effects& out);
  void OnPush(const Push& push, int64_t now_ns, Effects& out);
  // The rank has ended `steps` steps since it joined, and waits until it may begin the next one.
  void OnRankAtBoundary(LocalRank rank, uint64_t steps, int64_t now_ns, Effects& out);
  // From now on this node's ranks number peers as view `epoch` does, one of the newest views.
  // Returns false if `epoch` is not one of them, or if this member is not in that view.
  bool OnRanksFollow(Epoch epoch, Effects& out);
  // `clean`: the rank said goodbye. Otherwise this node cannot go on, and `text` says why.
  void OnRankLeft(LocalRank rank, bool clean, const std::string& text, int64_t now_ns,
                  Effects& out);

  // --- From the caller itself.

  // Whether this node's ranks could take part in steps at once.
  void OnRanksReady(bool ready);
  // The caller has performed StopRanks with 0 steps. `ended`: how many steps each rank had ended
  // then. A rank that ends another step stops there.
  void OnRanksStop(const std::vector<uint64_t>& ended, Effects& out);
  // This node cannot go on, for the reason `text`. The job fails here, and the scheduler hears of
  // it.
  void OnLocalFailure(const std::string& text, int64_t now_ns, Effects& out);
  // `text` is "" if the memory was allocated; otherwise it says why not.
  void OnTensorAllocated(TensorIndex tensor, const std::string& text, Effects& out);
  // `travel_bytes`: how many bytes the outcome takes encoded; nullopt if it is not encoded.
  void OnReduced(uint64_t ticket, std::optional<uint32_t> travel_bytes, int64_t now_ns,
                 Effects& out);
  // `is_sound`: the bytes were an encoding of the result.
  void OnDecoded(uint64_t ticket, bool is_sound, Effects& out);
  // Whether a ReduceSlice or DecodeSlice is still to be performed.
  bool Wants(uint64_t ticket) const { return reductions_.IsWanted(ticket); }
  // Reconnects, and reports who is waited for. Call it at NextTickNs() at the latest.
  void OnTick(int64_t now_ns, Effects& out);
  int64_t NextTickNs() const { return timer_.next_ns(); }
  // Sends ready slices and due declarations.
  void Flush(int64_t now_ns, Effects& out);
  // Ends the job cleanly: says Goodbye to the aggregators and ends every wait. No Close follows.
  // The caller closes the connections when the Goodbyes have been sent.
  void Leave(Effects& out);

  // --- To look at.

  const AgentCoreConfig& config() const { return config_; }
  // Views, phase, failure, numbers of ranks.
  const ViewState& views() const { return views_; }
  const std::vector<std::unique_ptr<AgentTensor>>& tensors() const { return tensors_.all(); }
  // Names those for whom the round waits. Returns "" if none is known.
  std::string WhomItWaitsFor(TensorIndex tensor, Round round) const;
  // Returns null if no such tensor is declared.
  const AgentTensor* FindTensor(TensorKey key) const { return tensors_.Find(key); }
  const OwnerLinks::Owners& owners() const { return links_.all(); }
  const schedule::SliceQueue& queue() const { return queue_; }
  const AgentCoreCounters& counters() const { return counters_; }

  // CHECKs the invariants that hold between events. It walks all tensors: for simulations and
  // tests.
  void CheckInvariants() const;

 private:
  // All owners of the newest view have answered.
  void Freeze(int64_t now_ns, Effects& out);
  // Slices may go to `owner` once it has heard of the tensors and their rounds.
  void OpenOwner(const Owner& owner, Effects& out);
  // Handles a frame that comes from an owner and belongs to its epoch.
  void OnEntries(const Owner& owner, const wire::Frame& frame, int64_t now_ns, Effects& out);

  // Each part knows only parts that are declared before it.
  const AgentCoreConfig config_;
  AgentCoreCounters counters_;
  TickTimer timer_;
  ViewState views_;
  LocalRanks ranks_;
  TensorTable tensors_;
  StepQuiesce quiesce_;
  OwnerLinks links_;
  schedule::SliceQueue queue_;
  Reductions reductions_;
  Failures failures_;
  Rounds rounds_;
  SliceSender sender_;
  Pushes pushes_;
  Recovery recovery_;
  Declarations declarations_;
  Waits waits_;
  Stalls stalls_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_AGENT_CORE_H_
