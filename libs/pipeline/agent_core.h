// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_AGENT_CORE_H_
#define TALWEG_LIBS_PIPELINE_AGENT_CORE_H_

#include <cstdint>
#include <memory>
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

// One agent's life in one job: docs/protocol.md, sections 4 to 7. ViewState has its phases. Each
// part below has its own rules and state; this has the order in which an event reaches them.
//
// Pure: no clock, lock, memory or I/O. Every event appends what is to be done to `out`; the caller
// performs it, in order, before it delivers the next event. Deterministic. One owner thread.
// Peers and ranks are never trusted: what does not fit is refused, ignored or counted.
//
// Ready slices and new tensors' declarations leave in Flush() only: call it once after each batch
// of events, so that those of many tensors travel together.
//
// Local completions of writes are no event: a source is not reused before its result has come over
// the same ordered connection, or before that connection is fenced (section 6).
class AgentCore {
 public:
  explicit AgentCore(const AgentCoreConfig& config);

  // --- From the scheduler.

  // A view that is not newer than the present one is ignored. A view of one member and no
  // aggregators makes the local reduction the round.
  void OnView(const view::View& view, int64_t now_ns, Effects& out);
  // Ends every wait with `text`. Nothing follows.
  void OnJobFailed(const std::string& text, int64_t now_ns, Effects& out);
  // Another member is done and contributes to no further round; a round that still needs it fails
  // the job here, when its owner says so.
  void OnMemberLeft(const view::MemberIdentity& id, const std::string& text);
  // With step 0 ranks stop at the end of the step that they are in, and Quiesced says at once which
  // is the latest of these. With another they go on until they have ended it, and Quiesced follows
  // when all have and no round is open. A newer view, or OnResume, lets them go on.
  void OnQuiesce(uint64_t id, uint64_t step, int64_t now_ns, Effects& out);
  void OnResume(uint64_t id, int64_t now_ns, Effects& out);
  // It does not answer, or does again, and says after how long a lease lapses. What only its word
  // could end is waited for no longer than `unreachable_ns` of its silence.
  void OnSchedulerSilent(int64_t now_ns);
  void OnSchedulerAnswers(int64_t lease_ns, int64_t now_ns);

  // --- From aggregators.

  void OnConnected(ConnectionId connection, int64_t now_ns, Effects& out);
  void OnDisconnected(ConnectionId connection, const std::string& reason, int64_t now_ns,
                      Effects& out);
  // A frame that parsed. What does not parse: close the connection and call OnDisconnected.
  void OnFrame(ConnectionId connection, const wire::Frame& frame, int64_t now_ns, Effects& out);

  // --- From ranks. Local ranks at or past rank_count are ignored.

  void OnRankJoined(LocalRank rank, uint32_t pid, int64_t now_ns, Effects& out);
  // One DeclareReply follows, at once or when the owners have agreed.
  void OnRankDeclare(LocalRank rank, uint32_t request, const TensorSpec& spec, int64_t now_ns,
                     Effects& out);
  void OnPush(const Push& push, int64_t now_ns, Effects& out);
  // It has ended so many steps since it came, and waits until it may begin the next.
  void OnRankAtBoundary(LocalRank rank, uint64_t steps, int64_t now_ns, Effects& out);
  // Ranks here mean, from now on, the numbers that a view gives, which is one of the latest that
  // this member has had. False: it is none of these, or it does not have this member.
  bool OnRanksFollow(Epoch epoch, Effects& out);
  // `clean`: it said goodbye. Otherwise the job cannot go on here; `text` says what was seen.
  void OnRankLeft(LocalRank rank, bool clean, const std::string& text, int64_t now_ns,
                  Effects& out);

  // --- From the caller itself.

  // Whether the ranks here could take part in steps at once.
  void OnRanksReady(bool ready);
  // Performed StopRanks of 0: how many steps each rank has ended; whoever ends one later stops.
  void OnRanksStop(const std::vector<uint64_t>& ended, Effects& out);
  // This node cannot go on, for a reason of its own: the job fails, here and for the scheduler.
  void OnLocalFailure(const std::string& text, int64_t now_ns, Effects& out);
  // `text` is "" when there is memory, else why not.
  void OnTensorAllocated(TensorIndex tensor, const std::string& text, int64_t now_ns, Effects& out);
  // The contribution of a node's only rank does not lie where it could be sent from (but on a GPU):
  // it is reduced to the send buffer like those of several ranks. Before OnTensorAllocated.
  void StageContributions(TensorIndex tensor);
  void OnReduced(uint64_t ticket, int64_t now_ns, Effects& out);
  bool ReduceWanted(uint64_t ticket) const { return reductions_.IsWanted(ticket); }
  // Reconnects and tells who is waited for. Call it at NextTickNs() at the latest.
  void OnTick(int64_t now_ns, Effects& out);
  int64_t NextTickNs() const { return timer_.next_ns(); }
  // Lets ready slices leave.
  void Flush(int64_t now_ns, Effects& out);
  // A clean end: says Goodbye to the aggregators, and ends whatever still waits. No Close follows:
  // the caller closes the connections when the Goodbyes have gone out.
  void Leave(Effects& out);

  // --- To look at.

  const AgentCoreConfig& config() const { return config_; }
  // Views, phase, failure, numbers of ranks.
  const ViewState& views() const { return views_; }
  const std::vector<std::unique_ptr<AgentTensor>>& tensors() const { return tensors_.all(); }
  // Names those for whom the round waits; "": nobody that is known.
  std::string WhomItWaitsFor(TensorIndex tensor, Round round) const;
  // Null: there is none.
  const AgentTensor* FindTensor(TensorKey key) const { return tensors_.Find(key); }
  const OwnerLinks::Owners& owners() const { return links_.all(); }
  const schedule::SliceQueue& queue() const { return queue_; }
  const AgentCoreCounters& counters() const { return counters_; }

  // CHECKs what must hold between events. For simulations and tests: walks all tensors.
  void CheckInvariants() const;

 private:
  // All owners of the newest view have answered.
  void Freeze(int64_t now_ns, Effects& out);
  // Slices to an owner may leave, when it has been told of the tensors and their rounds.
  void OpenOwner(const Owner& owner, Effects& out);
  // A frame that is from its owner, and of its epoch.
  void OnEntries(const Owner& owner, const wire::Frame& frame, int64_t now_ns, Effects& out);

  // Each part knows only parts that stand before it.
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
