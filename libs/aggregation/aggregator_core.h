// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_H_
#define TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libs/aggregation/aggregator_tensor.h"
#include "libs/aggregation/effects.h"
#include "libs/aggregation/memory_budget.h"
#include "libs/aggregation/status.h"
#include "libs/base/awake_time.h"
#include "libs/base/bytes.h"
#include "libs/base/ids.h"
#include "libs/view/job_quota.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

namespace talweg::aggregation {

struct AggregatorCoreConfig {
  JobId job;
  std::string name;
  Incarnation self;       // This aggregator's; its place in a view.
  std::string self_name;  // For texts.
  uint64_t credit_bytes = 8 * kMiB;
  // Names that are remembered, also of tensors that were refused. Records are small, but a peer
  // could send them for ever.
  size_t tensors_max = 200'000;
  uint64_t refusals_max = 10'000;  // A connection with more of them is closed.
  int64_t notice_first_ns = 1'000'000'000;
  int64_t notice_gap_max_ns = 60'000'000'000;
  // While one of those that are waited for is absent: members decide by it how long to wait.
  int64_t absent_notice_gap_max_ns = 4'000'000'000;
  int64_t refused_linger_ns =
      5'000'000'000;  // So that a refusal is read before the connection ends.
};

// One job at one aggregator: who is connected, what tensors are agreed, what each slice's round
// waits for, and what becomes of open rounds in a new view (docs/protocol.md, sections 4 to 6).
//
// A pure state machine. Events go in with the time, effects are appended to `out`, and the caller
// performs them in order, before the next event of the same connection. It knows no bytes. Equal
// events give equal effects. Whatever a peer sends is answered, counted or ends its connection;
// nothing in a frame reaches a CHECK.
//
// One owner thread. `budget` is shared with the other jobs of that thread and outlives this.
class AggregatorCore {
 public:
  using Effects = std::vector<Effect>;

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

  // A member of the present view.
  struct PresentMember {
    std::optional<ConnectionId> connection;  // Active in the present epoch.
    int64_t absent_ns = 0;        // For how long there has been none, as ticks have counted it.
    bool absent_at_tick = false;  // At the last one.
    bool reported = false;
    std::map<TensorKey, wire::Report> reports;  // Until decided.
  };

  AggregatorCore(AggregatorCoreConfig config, MemoryBudget* budget);
  ~AggregatorCore();
  AggregatorCore(const AggregatorCore&) = delete;
  AggregatorCore& operator=(const AggregatorCore&) = delete;

  // What this job may place, from now on. `tenant` is shared with the other jobs of quota.tenant;
  // null without one. What is placed stays.
  void SetQuota(const view::JobQuota& quota, std::shared_ptr<PlaceBudget> tenant);

  // A view of this job. Ignored unless its epoch is above the present one's.
  void OnView(const view::View& view, int64_t now_ns, Effects& out);
  // The job is over, or this aggregator leaves it: everybody is told `text`. Connections are closed
  // a little later, then the memory is released, and finished() is true.
  void OnClosed(const std::string& text, int64_t now_ns, Effects& out);

  // A frame of any type from any connection; a connection's first must be a Hello.
  void OnFrame(ConnectionId connection, const wire::Frame& frame, int64_t now_ns, Effects& out);
  // Bytes that are no frame, from a connection that has said Hello here.
  void OnUnreadable(ConnectionId connection, const std::string& text, Effects& out);
  // The transport has lost it. Also for connections that never said Hello.
  void OnDisconnect(ConnectionId connection, Effects& out);

  void OnAllocated(AllocationId id, wire::RemoteRef ref, Effects& out);
  void OnAllocationRefused(AllocationId id, const std::string& text, Effects& out);
  void OnSummed(const SumId& id, Effects& out);
  void OnWriteDone(WriteId id, Effects& out);
  // A few times a second.
  void OnTick(int64_t now_ns, Effects& out);

  // For people, tests and the simulation.
  JobStatus Status(int64_t now_ns) const;
  const AggregatorCoreConfig& config() const { return config_; }
  const view::JobQuota& quota() const { return quota_; }
  const PlaceBudget& place() const { return place_; }
  const view::View& view() const { return view_; }  // Epoch 0 before the first.
  std::optional<AggregatorIndex> self() const { return self_; }
  const Counters& counters() const { return counters_; }
  const std::map<ConnectionId, Session>& sessions() const { return sessions_; }
  const std::vector<PresentMember>& members() const { return members_; }  // By member index.
  const std::map<TensorKey, AggregatorTensor>& tensors() const { return tensors_; }
  bool reports_complete() const { return reports_complete_; }
  bool closed() const { return closed_; }
  bool finished() const { return closed_ && sessions_.empty(); }
  size_t writes_under_way() const { return writes_.size(); }

 private:
  struct Write {
    ConnectionId connection;
    TensorKey tensor;
    SliceIndex slice;
    AllocationId result;
  };
  struct AllocationUse {
    TensorKey tensor;
    std::optional<view::MemberIdentity> member;
  };

  // aggregator_core.cc: connections and views.
  void OnHello(ConnectionId connection, Epoch epoch, const wire::Hello& hello, int64_t now_ns,
               Effects& out);
  void Admit(ConnectionId connection, Session& session, int64_t now_ns, Effects& out);
  void Welcome(ConnectionId connection, Session& session, MemberIndex member, Effects& out);
  void RefuseHello(ConnectionId connection, Session& session, wire::WelcomeStatus status,
                   std::string text, int64_t now_ns, Effects& out);
  void OnFence(ConnectionId connection, Session& session, Epoch epoch, Effects& out);
  void Fenced(ConnectionId connection, Session& session, Effects& out);
  // Into the present epoch, over this connection.
  void Enter(MemberIndex member, ConnectionId connection);
  void Lose(ConnectionId connection, Effects& out);
  void Close(ConnectionId connection, std::string reason, Effects& out);
  // The member whose present connection this is, in the present epoch.
  std::optional<MemberIndex> ActiveMember(const Session& session, ConnectionId connection) const;
  std::string MemberText(MemberIndex member) const;

  // aggregator_core_agreement.cc: declarations and memory.
  void OnDeclare(ConnectionId connection, MemberIndex member, const wire::Declare& entry,
                 Effects& out);
  // A tensor has failed at a member.
  void OnFailed(MemberIndex member, const wire::Failed& entry, Effects& out);
  bool PlaceTensor(AggregatorTensor& tensor, Effects& out);
  // Why the rules have no room for one more tensor, or "".
  std::string RoomProblem(uint64_t needed_bytes) const;
  void EnsureMemory(AggregatorTensor& tensor, MemberIndex member, Effects& out);
  void AnswerIfReady(AggregatorTensor& tensor, MemberIndex member, Effects& out);
  void AnswerPoisoned(AggregatorTensor& tensor, MemberIndex member, wire::DeclaredStatus status,
                      Effects& out);
  void PoisonTensor(AggregatorTensor& tensor, wire::FailedCode code, std::string text,
                    Effects& out);
  void ReleaseSlots(AggregatorTensor& tensor, const view::MemberIdentity& member, Effects& out);
  void ReleaseAll(AggregatorTensor& tensor, Effects& out);
  void ReleaseUndeclared(Effects& out);
  void Unreserve(AggregatorTensor& tensor);

  // aggregator_core_rounds.cc: contributions and results.
  void OnContributions(ConnectionId connection, Session& session, const wire::Frame& frame,
                       int64_t now_ns, Effects& out);
  void OnContribution(ConnectionId connection, Session& session, MemberIndex member,
                      uint32_t entry_index, const wire::Contribute& entry, int64_t now_ns,
                      Effects& out);
  void Refuse(ConnectionId connection, Session& session, wire::RefusedReason reason,
              const wire::Contribute& entry, std::string text, Effects& out);
  static bool LengthIsWrong(const AggregatorTensor& tensor, const LocalSlice& slice,
                            const wire::Contribute& entry);
  std::string ModeProblem(const AggregatorTensor& tensor, const LocalSlice& slice,
                          MemberIndex member, const wire::Contribute& entry) const;
  // What the members of a complete round do not agree on, naming both sides, or "".
  std::string RoundDisagreement(const AggregatorTensor& tensor, const LocalSlice& slice) const;
  void StartSumIfFree(AggregatorTensor& tensor, LocalSlice& slice, Effects& out);
  void ServeAll(AggregatorTensor& tensor, LocalSlice& slice, Effects& out);
  void Serve(AggregatorTensor& tensor, LocalSlice& slice, MemberIndex member, bool wants_bytes,
             int32_t priority, Effects& out);
  void ForgetWritesOf(ConnectionId connection, Effects& out);
  void WriteIsOver(const Write& write, Effects& out);

  // aggregator_core_recovery.cc: reports and decisions.
  void OnReport(ConnectionId connection, MemberIndex member, const wire::Frame& frame,
                Effects& out);
  void OnRepeatedReport(ConnectionId connection, MemberIndex member, const wire::Report& entry,
                        Effects& out);
  void OnReportsComplete(Effects& out);
  void DecideTensor(AggregatorTensor& tensor, Effects& out);

  // aggregator_core_status.cc: who waits for whom.
  struct Wait {
    Round round;
    uint32_t slices = 0;
    int64_t since_ns = 0;
    std::vector<bool> missing;  // By member index.
    std::vector<bool> waiting;  // Contributed to a slice that is not complete.
  };
  std::optional<Wait> WaitOf(const AggregatorTensor& tensor) const;
  // Whether a round of it waits.
  bool NoticeTensor(AggregatorTensor& tensor, int64_t now_ns, Effects& out);
  void NoticeEpoch(int64_t now_ns, Effects& out);
  void CountAbsence(int64_t now_ns);
  // When to tell again of those that are missing, by member index.
  int64_t NoticeDueNs(const std::vector<bool>& missing, int64_t since_ns, int64_t last_ns) const;
  void NameMissing(const std::vector<bool>& missing, wire::Waiting& notice) const;

  template <typename Entry>
  void SendEntry(ConnectionId connection, Entry entry, Effects& out) {
    if constexpr (requires { entry.text; }) wire::CutText(entry.text);
    out.push_back(Send{connection, view_.epoch, std::move(entry)});
  }
  // Frames bound the length of texts; those that quote two names may be longer.

  const AggregatorCoreConfig config_;
  MemoryBudget* const budget_;
  view::View view_;
  std::optional<AggregatorIndex> self_;
  std::vector<PresentMember> members_;
  size_t reports_missing_ = 0;     // Those of members_.
  uint64_t placement_digest_ = 0;  // That of view_.
  std::map<ConnectionId, Session> sessions_;
  std::map<TensorKey, AggregatorTensor> tensors_;
  bool none_waits_ = false;  // As of the last tick, and nothing has happened since.
  bool reports_complete_ = false;
  bool closed_ = false;
  int64_t view_since_ns_ = 0;
  int64_t last_epoch_notice_ns_ = 0;
  AwakeTime awake_;  // By ticks: while this process is stopped nobody is absent.
  view::JobQuota quota_;
  PlaceBudget place_;                    // This job's.
  std::shared_ptr<PlaceBudget> tenant_;  // Null: it has none.
  uint64_t last_allocation_ = 0;
  uint64_t last_write_ = 0;
  std::map<AllocationId, AllocationUse> allocations_;
  std::map<WriteId, Write> writes_;
  Counters counters_;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_H_
