// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_RANK_DESK_H_
#define TALWEG_SERVICES_AGENT_RANK_DESK_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libs/pipeline/agent_core.h"
#include "libs/pipeline/effects.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/view/view.h"
#include "services/agent/tensor_memory.h"

namespace talweg::agent {

shm::RankStatus ToRankStatus(pipeline::Status status);

// What ranks do, under the core's names.
class RankEvents {
 public:
  virtual ~RankEvents() = default;
  virtual void OnRankJoined(LocalRank rank, uint32_t pid) = 0;
  // Whether all of the node's ranks are connected. Said when one comes or goes.
  virtual void OnRanksAttached(bool all) = 0;
  // Whether the node could take part in steps at once. Said before OnRanksAttached, and when it
  // changes.
  virtual void OnRanksReady(bool all) = 0;
  // They have what the others have of the training's state. Said once.
  virtual void OnRanksHaveState() = 0;
  virtual void OnRankDeclare(LocalRank rank, uint32_t request,
                             const pipeline::TensorSpec& spec) = 0;
  virtual void OnRankPush(const pipeline::Push& push) = 0;
  virtual void OnRankLeft(LocalRank rank, bool clean, const std::string& text) = 0;
  virtual void OnRankFailure(const std::string& text) = 0;  // This node cannot serve its ranks.
  virtual void OnRankAtBoundary(LocalRank rank, uint64_t steps) = 0;
  virtual void OnRanksStop(std::vector<uint64_t> ended) = 0;
  // RankDesk::AnswerFollow follows.
  virtual void OnRankFollows(LocalRank rank, uint32_t request, Epoch epoch) = 0;
  // Says whom a round that ranks have pushed waits for, for people; empty: nobody that is known.
  virtual std::string WhomItWaitsFor(pipeline::TensorIndex tensor, Round round) const = 0;
  virtual const pipeline::AgentCore& Core() const = 0;
};

// What ranks hand over of GPUs (GpuFront).
class RankDevices {
 public:
  virtual ~RankDevices() = default;
  virtual absl::StatusOr<shm::Exported> Export(LocalRank rank, const shm::RankExport& given) = 0;
  // OK: RankDesk::ReplyUnexported follows.
  virtual absl::Status Unexport(LocalRank rank, uint32_t request, uint32_t buffer) = 0;
  virtual absl::StatusOr<shm::Placed> Place(LocalRank rank, pipeline::TensorIndex tensor,
                                            uint32_t buffer) = 0;
  // INVALID_ARGUMENT: it made no sense.
  virtual absl::Status Push(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                            int32_t priority, const shm::DevicePlace& place) = 0;
};

// Between the ranks' server and the core. Greets ranks when there is a view that tells them who
// they are. Owned by the data thread.
class RankDesk final : public shm::RankEventSink {
 public:
  struct Rank {
    bool attached = false;
    bool welcomed = false;
    shm::RankConnectionId connection;
    uint64_t pid = 0;
    uint64_t uid = 0;
    std::string client_name;
    bool knows_standbys = false;
    bool ready = false;  // It has said so.
    std::string ended;   // How it ended, unless it has not.
    uint64_t bytes_pushed = 0;
    std::unordered_map<uint32_t, RoundSignature>
        signatures;  // By tensors that it pushes from GPUs.
  };

  // All outlive it.
  RankDesk(uint32_t rank_count, const std::string& job_name, shm::RankServer* server,
           TensorMemory* memory, RankEvents* events);

  // Who the ranks are, by the first view of this member, and stay. Those that wait are welcomed.
  void SetView(const view::View& view, const view::MemberIdentity& self);

  void Do(const pipeline::DeclareReply& effect);
  void Do(const pipeline::CompleteRound& effect);
  void Do(const pipeline::SliceArrived& effect);
  void Do(const pipeline::FailRank& effect);
  void Do(const pipeline::FailJob& effect);
  void Do(const pipeline::StopRanks& effect);

  // A view has come, which ranks may look at.
  void OnNewestView(Epoch epoch) { server_->PublishEpoch(epoch); }
  // Looks how far the ranks are, now and then: those that began with the job, or have ended a step
  // since they entered it, have what the others have.
  void LookForState();
  // Whether nodes may come and go in this job.
  void SetMembershipChanges(bool changes) { membership_changes_ = changes; }
  void AnswerFollow(LocalRank rank, uint32_t request, Epoch epoch, bool ok);

  // With devices that outlive it; else the server takes none.
  void SetDevices(RankDevices* devices) { devices_ = devices; }
  // Whether the first declaration of the name on this node was of a tensor on a GPU.
  bool IsOnDevice(const std::string& name) const { return device_names_.contains(name); }
  // Whether it was to be summed in place, if the ranks sum.
  bool IsInPlace(const std::string& name) const { return in_place_names_.contains(name); }
  // The node's only rank, if it takes the tensor's result where it contributes.
  std::optional<shm::RankConnectionId> OnePlaceOf(const std::string& name) const;
  void ReplyUnexported(LocalRank rank, uint32_t request);
  void TellEventsLost(LocalRank rank);
  // The signature of the rank's rounds of the tensor that come from a GPU.
  RoundSignature SignatureOnDevice(LocalRank rank, pipeline::TensorIndex tensor) const;

  // A new generation of ranks: the old ones are all gone. Their memory is dropped.
  void Restart();

  const std::vector<Rank>& ranks() const { return ranks_; }
  bool AnyAttached() const;
  bool AllAttached() const;
  // Or one does not ask to enter as a standby.
  bool AllReady() const;
  uint64_t bytes_pushed() const { return bytes_pushed_; }

  // shm::RankEventSink
  void OnRankHello(shm::RankConnectionId connection, const shm::RankHello& hello) override;
  void OnRankDeclare(shm::RankConnectionId connection, shm::RequestId request,
                     const shm::RankDeclaration& declaration) override;
  void OnRankPush(shm::RankConnectionId connection, const shm::PushedRound& push) override;
  void OnRankBoundary(shm::RankConnectionId connection, shm::RequestId request,
                      const shm::Boundary& question) override;
  void OnRankAsk(shm::RankConnectionId connection, shm::RequestId request, shm::TensorIndex tensor,
                 Round round) override;
  void OnRankGone(shm::RankConnectionId connection, const shm::RankGone& gone) override;
  void OnRankPushOnDevice(shm::RankConnectionId connection, LocalRank local_rank,
                          shm::TensorIndex tensor, Round round, int32_t priority,
                          const shm::DevicePlace& place) override;
  void OnRankExport(shm::RankConnectionId connection, shm::RequestId request,
                    const shm::RankExport& exported) override;
  void OnRankUnexport(shm::RankConnectionId connection, shm::RequestId request,
                      uint32_t buffer) override;
  void OnRankPlace(shm::RankConnectionId connection, shm::RequestId request,
                   shm::TensorIndex tensor, uint32_t buffer, RoundSignature signature) override;

 private:
  // A rank that waits for the next step.
  struct AtBoundary {
    LocalRank rank;
    shm::RequestId request;
    uint64_t steps = 0;
  };

  void Greet(LocalRank rank);
  // The view of `epoch`, 0 for the newest, to one rank.
  void AnswerView(LocalRank rank, shm::RequestId request, Epoch epoch, uint32_t first_member);

  Rank* Find(shm::RankConnectionId connection, LocalRank* local_rank);

  const std::string job_name_;
  shm::RankServer* const server_;
  TensorMemory* const memory_;
  RankEvents* const events_;
  RankDevices* devices_ = nullptr;
  std::set<std::string> declared_names_;
  std::set<std::string> device_names_;                        // First declared on a GPU.
  std::set<std::pair<LocalRank, uint32_t>> device_declares_;  // Not answered yet.
  std::set<std::string> in_place_names_;                      // First declared so.
  std::set<std::string> one_place_names_;                     // Likewise.
  std::vector<Rank> ranks_;
  std::optional<view::View> view_;
  view::MemberIdentity self_;
  std::vector<shm::RankConnectionId> gone_;
  bool membership_changes_ = false;
  bool have_state_ = false;       // The ranks; it has been said.
  std::optional<uint64_t> stop_;  // As in StopRanks.
  std::vector<AtBoundary> at_boundary_;
  uint64_t bytes_pushed_ = 0;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_RANK_DESK_H_
