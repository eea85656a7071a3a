// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_IMPL_H_
#define TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_IMPL_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/shm/daemon/arena.h"
#include "libs/shm/daemon/rank_control.h"
#include "libs/shm/daemon/rank_listener.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/shm/daemon/rank_socket.h"

// The parts of RankServer: rank_server.cc hears what ranks say, rank_server_rings.cc what they
// push, rank_server_answers.cc says what the agent says; rank_server_devices.cc has both sides of
// what is said of GPUs, rank_server_steps.cc of what is said of steps and views,
// rank_server_waits.cc of whom rounds wait for.
namespace talweg::shm {

// What a rank contributes to a tensor, by what it has declared.
struct GivenParts {
  BufferShape shape;
  Parts parts;
};

struct TensorOfRank {
  bool declared = false;
  uint64_t pushed = 0;
  uint64_t completed = 0;
  DeclaredData data;
  GivenParts given;
  const std::byte* contribution = nullptr;  // Read only. null: it has none in host memory.
};

struct Connection {
  enum class State {
    kSilent,  // Accepted; no hello yet.
    kAsking,  // Said hello; the agent has not answered.
    kActive,
    kDraining,  // Over; what is left to send is being sent.
    kGone,      // Over; memory is kept until Release.
  };

  RankConnectionId id;
  State state = State::kSilent;
  std::optional<RankSocket> socket;
  Descriptor pidfd;
  pid_t pid = 0;
  uid_t uid = 0;
  LocalRank local_rank;
  std::string client_name;
  uint32_t number = 0;  // As declarations call it.
  uint32_t job_size = 0;
  uint32_t number_count = 0;    // With those of standbys.
  bool rings_to_await = false;  // By its version, as the next.
  bool knows_in_place = false;
  bool knows_own_parts = false;
  bool knows_one_place = false;
  bool released = false;      // The agent needs the memory no more.
  bool said_goodbye = false;  // Which counts when its ring is empty.
  // Its ring's next entry is a push of this tensor that came before the open round is complete.
  std::optional<uint32_t> early;
  bool writes_wanted = false;  // EPOLLOUT is on.
  std::optional<RankControl> control;
  ArenaBudget budget;  // What the next two may have together.
  std::optional<Arena> contributions;
  std::optional<Arena> one_places;
  SharedArena shared;
  uint64_t peer_parts = 0;                // Bit p: it has been given part p of all other ranks.
  std::vector<TensorOfRank> tensors;      // By TensorIndex.
  std::map<RequestId, GivenParts> asked;  // Declarations that are not answered yet.
  std::set<uint32_t> known_segments;

  bool over() const { return state == State::kDraining || state == State::kGone; }
  std::string Name() const {
    return "local rank " + std::to_string(local_rank.value()) + " (pid " + std::to_string(pid) +
           (client_name.empty() ? "" : ", '" + client_name + "'") + ")";
  }
};

class RankServerImpl final : public RankServer {
 public:
  RankServerImpl(RankServerConfig config, RankListener listener, Descriptor epoll)
      : config_(std::move(config)),
        listener_(std::move(listener)),
        epoll_(std::move(epoll)),
        result_budget_{.bytes_max = config_.result_bytes_max},
        results_({SegmentUse::kResult, config_.segment_bytes_min, "results of this node"},
                 &result_budget_, &next_segment_),
        plan_(config_.local_rank_count, config_.contribution_bytes_max, config_.segment_bytes_min),
        holders_(config_.local_rank_count) {}

  const RankServerConfig& config() const override { return config_; }
  int WaitDescriptor() const override { return epoll_.get(); }
  RankServerCounters counters() const override { return counters_; }

  int PollRings(RankEventSink& sink) override;
  int PollSockets(RankEventSink& sink) override;
  bool PrepareToSleep(Until until) override;
  void Beat() override;
  void Welcome(RankConnectionId id, const WelcomeData& data) override;
  void Refuse(RankConnectionId id, RankStatus status, std::string_view text) override;
  Outcome<ContributionBuffer> AllocateContribution(RankConnectionId id, uint64_t bytes) override;
  Outcome<ResultBuffer> AllocateOnePlace(RankConnectionId id, uint64_t bytes) override;
  Outcome<SharedPlace> PlanContribution(const BufferShape& shape, bool in_place) override {
    return plan_.Place(shape, in_place);
  }
  Outcome<Location> PlaceContribution(RankConnectionId id, const SharedPlace& place) override;
  Outcome<ResultBuffer> AllocateResult(uint64_t bytes) override;
  void DropTensorMemory() override;
  void ReplyDeclared(RankConnectionId id, RequestId request, const DeclaredData& data) override;
  void RefuseDeclaration(RankConnectionId id, RequestId request, RankStatus status,
                         std::string_view text) override;
  void ReplyExported(RankConnectionId id, RequestId request, const Exported& answer) override;
  void ReplyUnexported(RankConnectionId id, RequestId request, const Unexported& answer) override;
  void ReplyPlaced(RankConnectionId id, RequestId request, const Placed& answer) override;
  void PublishEventsLost(RankConnectionId id) override;
  uint64_t PublishStop(RankConnectionId id, uint64_t stop_at) override;
  void PublishEpoch(Epoch epoch) override;
  void ReplyMembership(RankConnectionId id, RequestId request,
                       const RankMembership& answer) override;
  void ReplyTold(RankConnectionId id, RequestId request, const Told& answer) override;
  void Renumber(RankConnectionId id, Rank rank, uint32_t size, const RankNumbers& numbers) override;
  void Garbage(RankConnectionId id, const std::string& why, RankEventSink& sink) override;
  void PublishCompletion(const Completion& completion) override;
  void PublishArrival(TensorIndex tensor, uint64_t bytes) override;
  void FailAll(RankStatus status, std::string_view text) override;
  void Disconnect(RankConnectionId id, RankStatus status, std::string_view text) override;
  void Release(RankConnectionId id) override;

 private:
  Connection* Find(RankConnectionId id);
  // The connection while it is neither over nor unknown.
  Connection* FindOpen(RankConnectionId id);

  int AcceptAll();
  void DropOldestSilent();
  int OnSocketReady(Connection& connection, RankEventSink& sink);
  int OnProcessEnded(Connection& connection, RankEventSink& sink);
  int HandleMessages(Connection& connection, RankEventSink& sink);
  void OnHello(Connection& connection, const Hello& hello, RankEventSink& sink);
  void OnDeclare(Connection& connection, uint32_t request, const Declare& declare,
                 RankEventSink& sink);
  // Whether the message was about memory of GPUs.
  bool OnDeviceMessage(Connection& connection, const Message& message, RankEventSink& sink);
  void OnBoundary(Connection& connection, uint32_t request, const Boundary& question,
                  RankEventSink& sink);
  void OnAsk(Connection& connection, uint32_t request, const Ask& question, RankEventSink& sink);
  void OnGoodbye(Connection& connection, RankEventSink& sink);
  void OnGarbage(Connection& connection, const std::string& why, RankEventSink& sink);
  // 0: it is not over before its pushes are taken.
  int OnEnded(Connection& connection, RankEventSink& sink);
  int DrainRing(Connection& connection, int pushes_max, RankEventSink& sink);
  // Whether the rank may have seen its tensor's open round complete before this agent.
  bool IsEarly(const Connection& connection, const RingEntry& entry) const;
  bool AllHavePushed(uint32_t tensor, uint64_t round) const;
  // After a look at all rings that took nothing.
  void CheckEarlyPushes(RankEventSink& sink);
  void SayGoodbye(Connection& connection, RankEventSink& sink);
  bool AnybodyAwaits() const;
  // Why the entry makes no sense, or "".
  std::string TakePush(Connection& connection, const RingEntry& entry, RankEventSink& sink);
  static std::string CheckRound(const TensorOfRank& tensor, const RingEntry& entry);
  // Copies the lengths of the parts that the rank has pushed to lengths_. Why they make no sense,
  // or "".
  std::string TakeLengths(const TensorOfRank& tensor, const RingEntry& entry);
  // Whether all ranks of the node have declared the tensor and pushed the round.
  bool EverybodyHasPushed(uint32_t tensor, uint64_t round) const;

  void RefuseWith(Connection& connection, RankStatus status, std::string_view text);
  void FailRank(Connection& connection, RankStatus status, std::string_view text);
  void Send(Connection& connection, const Message& message, std::vector<int> borrowed = {},
            std::vector<Descriptor> owned = {});
  void AfterOutput(Connection& connection, RankSocket::Output output);
  // Threads that wait for `tensor`, if only its completion was published.
  void Wake(Connection& connection, RankControl::Waiter waiter,
            std::optional<uint32_t> tensor = std::nullopt);
  void SendWake(Connection& connection);
  const Segment* FindSegment(Connection& connection, uint32_t id, SegmentKind* kind);
  // Where the rank's contribution lies in this process.
  void FindContribution(Connection& connection, TensorOfRank& tensor);
  // Hands it part `part` of the other ranks' contributions.
  void IntroducePeers(Connection& connection, uint32_t part);
  // Ends the conversation: sends what is queued, then closes. Frees the local rank.
  void Drain(Connection& connection);
  void Close(Connection& connection);
  void SweepReleased();

  const RankServerConfig config_;
  RankListener listener_;
  Descriptor epoll_;
  uint32_t next_segment_ = 1;
  ArenaBudget result_budget_;
  Arena results_;
  SharedPlan plan_;
  uint64_t next_id_ = 1;
  std::map<RankConnectionId, std::unique_ptr<Connection>> connections_;
  std::vector<std::optional<RankConnectionId>> holders_;  // By local rank.
  std::vector<Connection*> active_;                       // kActive, in order of their Welcome.
  uint32_t sleep_sequence_ = 0;                           // Odd: prepared to sleep.
  bool sweep_ = false;
  Epoch epoch_;  // The newest view's.
  std::optional<Failure> job_failure_;
  RankServerCounters counters_;
  std::vector<uint32_t> lengths_;  // Those of the push that is being delivered.
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_IMPL_H_
