// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_RANK_DESK_H_
#define TALWEG_SERVICES_AGENT_RANK_DESK_H_

#include <absl/status/statusor.h>

#include <cstdint>
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
#include "services/agent/declare_replies.h"
#include "services/agent/encoding_rule.h"
#include "services/agent/memory_order.h"
#include "services/agent/tensor_memory.h"

namespace talweg::agent {

// What ranks do, in the core's terms.
class RankEvents {
 public:
  virtual ~RankEvents() = default;
  virtual void OnRankJoined(LocalRank rank, uint32_t pid) = 0;
  // Called when a rank connects or disconnects. `all`: all of the node's ranks are connected.
  virtual void OnRanksAttached(bool all) = 0;
  // Called before OnRanksAttached, and when `all` changes. `all`: the node can take part in steps
  // at once.
  virtual void OnRanksReady(bool all) = 0;
  // The ranks have the training state that the other members have. Called once.
  virtual void OnRanksHaveState() = 0;
  virtual void OnRankDeclare(LocalRank rank, uint32_t request,
                             const pipeline::Declaration& declaration) = 0;
  virtual void OnRankPush(const pipeline::Push& push) = 0;
  virtual void OnRankLeft(LocalRank rank, bool clean, const std::string& text) = 0;
  virtual void OnRankFailure(const std::string& text) = 0;  // This node cannot serve its ranks.
  virtual void OnRankAtBoundary(LocalRank rank, uint64_t steps) = 0;
  virtual void OnRanksStop(std::vector<uint64_t> ended) = 0;
  // RankDesk::AnswerFollow follows.
  virtual void OnRankFollows(LocalRank rank, uint32_t request, Epoch epoch) = 0;
  // Returns a text that names whom a pushed round waits for, or "" if that is not known.
  virtual std::string WhomItWaitsFor(pipeline::TensorIndex tensor, Round round) const = 0;
  virtual const pipeline::AgentCore& Core() const = 0;
};

// Takes what ranks hand over of their GPUs (GpuFront).
class RankDevices {
 public:
  virtual ~RankDevices() = default;
  virtual absl::StatusOr<shm::Exported> Export(LocalRank rank, const shm::RankExport& given) = 0;
  // OK: RankDesk::ReplyUnexported follows.
  virtual absl::Status Unexport(LocalRank rank, uint32_t request, uint32_t buffer) = 0;
  virtual absl::StatusOr<shm::Placed> Place(LocalRank rank, pipeline::TensorIndex tensor,
                                            uint32_t buffer) = 0;
  // INVALID_ARGUMENT: the rank's push is not valid.
  virtual absl::Status Push(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                            int32_t priority, const shm::DevicePlace& place) = 0;
};

// Connects the ranks' server with the core. Welcomes ranks once a view tells which rank each is.
// Owned by the data thread.
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
    bool ready = false;  // The rank has said that it is ready.
    std::string ended;   // How the rank ended; "" if it has not.
    uint64_t bytes_pushed = 0;
    std::unordered_map<uint32_t, RoundSignature>
        signatures;  // By tensor, for those that the rank pushes from GPUs.
  };

  // All outlive the desk.
  RankDesk(uint32_t rank_count, const std::string& job_name, shm::RankServer* server,
           TensorMemory* memory, MemoryOrders* orders, RankEvents* events);

  // The first view of this member numbers the ranks for good. Welcomes the ranks that wait. Later
  // calls do nothing.
  void SetView(const view::View& view, const view::MemberIdentity& self);

  void Do(const pipeline::DeclareReply& effect);
  void Do(const pipeline::CompleteRound& effect);
  void Do(const pipeline::SliceArrived& effect);
  void Do(const pipeline::FailRank& effect);
  void Do(const pipeline::FailJob& effect);
  void Do(const pipeline::StopRanks& effect);

  // Tells ranks that there is a newer view, which they may ask for.
  void OnNewestView(Epoch epoch) { server_->PublishEpoch(epoch); }
  // Call it now and then. Calls OnRanksHaveState once the ranks began with the job, or have each
  // ended a step since they entered it.
  void LookForState();
  // Which tensors travel encoded. Call it before ranks come.
  void SetEncodingRule(const EncodingRule& rule) { encoding_rule_ = rule; }
  // Whether nodes may come and go in this job.
  void SetMembershipChanges(bool changes) { membership_changes_ = changes; }
  void AnswerFollow(LocalRank rank, uint32_t request, Epoch epoch, bool ok);

  // `devices` outlives the desk. Without this call the server refuses tensors on GPUs.
  void SetDevices(RankDevices* devices) { devices_ = devices; }
  // Returns the node's only rank, if it is attached.
  std::optional<shm::RankConnectionId> OnlyRank() const;
  void ReplyUnexported(LocalRank rank, uint32_t request);
  void TellEventsLost(LocalRank rank);
  // Returns the signature of the rounds of this tensor that the rank pushes from a GPU.
  RoundSignature SignatureOnDevice(LocalRank rank, pipeline::TensorIndex tensor) const;

  // Prepares for new ranks after the old ones have all gone. Drops their memory.
  void Restart();

  const std::vector<Rank>& ranks() const { return ranks_; }
  bool AnyAttached() const;
  bool AllAttached() const;
  // Returns whether all ranks are ready, or a rank that is attached knows no standbys.
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
  // Sends the view of `epoch`, 0 for the newest, to one rank.
  void AnswerView(LocalRank rank, shm::RequestId request, Epoch epoch, uint32_t first_member);

  Rank* Find(shm::RankConnectionId connection, LocalRank* local_rank);

  const std::string job_name_;
  shm::RankServer* const server_;
  TensorMemory* const memory_;
  RankEvents* const events_;
  DeclareReplies replies_;
  RankDevices* devices_ = nullptr;
  std::set<std::pair<LocalRank, uint32_t>> device_declares_;  // Not answered yet.
  std::vector<Rank> ranks_;
  std::optional<view::View> view_;
  view::MemberIdentity self_;
  std::vector<shm::RankConnectionId> gone_;
  bool membership_changes_ = false;
  EncodingRule encoding_rule_;
  bool have_state_ = false;       // OnRanksHaveState was called.
  std::optional<uint64_t> stop_;  // As in StopRanks.
  std::vector<AtBoundary> at_boundary_;
  uint64_t bytes_pushed_ = 0;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_RANK_DESK_H_
