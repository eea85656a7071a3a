// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_H_
#define TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libs/aggregation/aggregator_core_config.h"
#include "libs/aggregation/aggregator_tensor.h"
#include "libs/aggregation/attendance.h"
#include "libs/aggregation/declarations.h"
#include "libs/aggregation/effects.h"
#include "libs/aggregation/memory_budget.h"
#include "libs/aggregation/notices.h"
#include "libs/aggregation/present_view.h"
#include "libs/aggregation/recovery.h"
#include "libs/aggregation/rounds.h"
#include "libs/aggregation/sessions.h"
#include "libs/aggregation/status.h"
#include "libs/aggregation/tensor_memory.h"
#include "libs/base/ids.h"
#include "libs/view/job_quota.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

namespace talweg::aggregation {

// One job at one aggregator: who is connected, what tensors are agreed, what each slice's round
// waits for, and what becomes of open rounds in a new view (docs/protocol.md, sections 4 to 6).
//
// A pure state machine. Events go in with the time, effects are appended to `out`, and the caller
// performs them in order, before the next event of the same connection. The core knows no bytes.
// The same events give the same effects. Each frame of a peer is answered, counted or ends its
// connection; nothing in a frame reaches a CHECK.
//
// AggregatorCore hands each event to its parts, in the order in which their effects must come:
// Sessions, Declarations, TensorMemory, Rounds, Recovery, Notices.
//
// One owner thread. The other jobs of that thread share `budget`, which outlives this.
class AggregatorCore {
 public:
  using Effects = aggregation::Effects;

  AggregatorCore(AggregatorCoreConfig config, MemoryBudget* budget);
  AggregatorCore(const AggregatorCore&) = delete;
  AggregatorCore& operator=(const AggregatorCore&) = delete;

  // Sets how much this job may place from now on; what is placed already stays. The other jobs of
  // quota.tenant share `tenant`; null: the job has no tenant.
  void SetQuota(const view::JobQuota& quota, std::shared_ptr<PlaceBudget> tenant);

  // A view of this job. Ignored unless its epoch is above the present one.
  // `gone`: who is out of the job, as the scheduler says with the view.
  void OnView(const view::View& view, int64_t now_ns, Effects& out, const view::Gone& gone = {});
  // The job is over, or this aggregator leaves it: tells `text` to all members. A little later it
  // closes the connections and releases the memory; then finished() is true.
  void OnClosed(const std::string& text, int64_t now_ns, Effects& out);

  // A frame of any type, from any connection. A connection's first frame must be a Hello.
  void OnFrame(ConnectionId connection, const wire::Frame& frame, int64_t now_ns, Effects& out);
  // Bytes that are not a frame, from a connection that has said Hello here.
  void OnUnreadable(ConnectionId connection, const std::string& text, Effects& out);
  // The transport has lost the connection. Also called for connections that never said Hello.
  void OnDisconnect(ConnectionId connection, Effects& out);

  // The answers to AllocateMemory.
  void OnAllocated(AllocationId id, wire::RemoteRef ref, Effects& out);
  void OnAllocationRefused(AllocationId id, const std::string& text, Effects& out);
  // A Sum or CopyResult is done, and its result takes `travel_bytes`.
  void OnSummed(const SumId& id, uint32_t travel_bytes, Effects& out);
  // The bytes of the Sum's input at this place are no encoding of its data.
  void OnUndecodable(const SumId& id, size_t input, Effects& out);
  void OnWriteDone(WriteId id, Effects& out);
  // Call it a few times a second.
  void OnTick(int64_t now_ns, Effects& out);

  // Returns why a member that says a newer epoch than the present one cannot be a member of it, or
  // "".
  std::string WhyNotAhead(const view::MemberIdentity& member, Epoch epoch, int64_t now_ns) const {
    return sessions_.WhyNotAhead(member, epoch, now_ns);
  }
  const Departed& departed() const { return view_.departed(); }

  // For people, tests and the simulation.
  JobStatus Status(int64_t now_ns, bool with_tensors) const;
  const AggregatorCoreConfig& config() const { return config_; }
  const view::JobQuota& quota() const { return memory_.quota(); }
  const PlaceBudget& place() const { return memory_.place(); }
  const view::View& view() const { return view_.view(); }  // Epoch 0 before the first.
  std::optional<AggregatorIndex> self() const { return view_.self(); }
  const Counters& counters() const { return counters_; }
  const std::map<ConnectionId, Session>& sessions() const { return sessions_.all(); }
  // By member index.
  const std::vector<PresentMember>& members() const { return attendance_.members(); }
  bool HasReported(MemberIndex member) const { return recovery_.HasReported(member); }
  const Tensors& tensors() const { return tensors_; }
  bool reports_complete() const { return recovery_.is_complete(); }
  bool closed() const { return closed_; }
  bool finished() const { return closed_ && sessions_.all().empty(); }
  size_t writes_under_way() const { return rounds_.writes_under_way(); }

 private:
  void OnFirstFrame(ConnectionId connection, const wire::Frame& frame, int64_t now_ns,
                    Effects& out);
  // A member's frame of the present epoch.
  void OnMemberFrame(ConnectionId connection, MemberIndex member, const wire::Frame& frame,
                     Effects& out);
  void OnLost(ConnectionId connection, std::optional<MemberIndex> member, Effects& out);
  void ReleaseAllMemory(Effects& out);

  const AggregatorCoreConfig config_;
  Counters counters_;
  Tensors tensors_;
  PresentView view_;
  Attendance attendance_;
  Sessions sessions_;
  TensorMemory memory_;
  Declarations declarations_;
  Rounds rounds_;
  Recovery recovery_;
  Notices notices_;
  bool closed_ = false;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_H_
