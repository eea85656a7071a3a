// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_SIM_RANK_SERVER_H_
#define TALWEG_TESTS_SIM_SIM_RANK_SERVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libs/shm/daemon/rank_server.h"
#include "tests/sim/sim_rank_memory.h"

namespace talweg::sim {

// The agent's messages to simulated ranks. They must not answer inside a call.
class RankHearing {
 public:
  virtual ~RankHearing() = default;
  // There is something to poll for.
  virtual void OnSaid() = 0;
  virtual void OnWelcome(LocalRank rank) = 0;
  virtual void OnDeclared(LocalRank rank, uint32_t request, const shm::DeclaredData& data) = 0;
  virtual void OnDeclarationRefused(LocalRank rank, uint32_t request, shm::RankStatus status,
                                    const std::string& text) = 0;
  virtual void OnCompletion(const shm::RankServer::Completion& completion) = 0;
  virtual void OnDisconnected(LocalRank rank, const std::string& text) = 0;
  virtual void OnJobFailed(const std::string& text) = 0;
  // As RankServer::PublishStop.
  virtual uint64_t OnStopPublished(LocalRank rank, uint64_t stop_at) = 0;
  virtual void OnMembership(LocalRank rank, uint32_t request,
                            const shm::RankMembership& answer) = 0;
  virtual void OnTold(LocalRank rank, uint32_t request, const std::string& text) = 0;
};

// The agent's side of its simulated ranks.
class SimRankServer final : public shm::RankServer {
 public:
  using Word = std::function<void(shm::RankEventSink& sink, shm::RankConnectionId connection)>;

  SimRankServer(uint32_t rank_count, RankHearing* hearing)
      : hearing_(hearing), connections_(rank_count, 1), gone_(rank_count, false) {}

  // A rank sends a message. The agent receives messages in order, when it polls.
  void Say(LocalRank rank, Word word);
  // The rank's goodbye, or the end of its connection.
  void SayGone(LocalRank rank, bool clean, const std::string& text);
  // From now on another process is this rank.
  void Replace(LocalRank rank) {
    ++connections_[rank.value()];
    gone_[rank.value()] = false;
  }
  SimRankMemory& memory() { return memory_; }

  // --- shm::RankServer.
  const shm::RankServerConfig& config() const override { return config_; }
  int PollRings(shm::RankEventSink& /*sink*/) override { return 0; }
  int PollSockets(shm::RankEventSink& sink) override;
  int WaitDescriptor() const override { return -1; }
  bool PrepareToSleep(Until /*until*/) override { return said_.empty(); }
  void Beat() override {}
  void Welcome(shm::RankConnectionId connection, const shm::WelcomeData& data) override;
  void Refuse(shm::RankConnectionId connection, shm::RankStatus status,
              std::string_view text) override;
  shm::Outcome<shm::ContributionBuffer> AllocateContribution(shm::RankConnectionId connection,
                                                             uint64_t bytes) override {
    return memory_.AllocateContribution(connection, bytes);
  }
  shm::Outcome<shm::ResultBuffer> AllocateOnePlace(shm::RankConnectionId connection,
                                                   uint64_t bytes) override {
    return memory_.AllocateOnePlace(connection, bytes);
  }
  shm::Outcome<shm::SharedPlace> PlanContribution(const shm::BufferShape& shape,
                                                  bool in_place) override {
    return memory_.PlanContribution(shape, in_place);
  }
  shm::Outcome<shm::Location> PlaceContribution(shm::RankConnectionId connection,
                                                const shm::SharedPlace& place) override {
    return memory_.PlaceContribution(connection, place);
  }
  shm::Outcome<shm::ResultBuffer> AllocateResult(uint64_t bytes) override {
    return memory_.AllocateResult(bytes);
  }
  void DropTensorMemory() override { memory_.DropTensorMemory(); }
  void ReplyDeclared(shm::RankConnectionId connection, shm::RequestId request,
                     const shm::DeclaredData& data) override;
  void RefuseDeclaration(shm::RankConnectionId connection, shm::RequestId request,
                         shm::RankStatus status, std::string_view text) override;
  void ReplyExported(shm::RankConnectionId, shm::RequestId, const shm::Exported&) override {}
  void ReplyUnexported(shm::RankConnectionId, shm::RequestId, const shm::Unexported&) override {}
  void ReplyPlaced(shm::RankConnectionId, shm::RequestId, const shm::Placed&) override {}
  void PublishEventsLost(shm::RankConnectionId) override {}
  void Garbage(shm::RankConnectionId connection, const std::string& why,
               shm::RankEventSink& sink) override;
  uint64_t PublishStop(shm::RankConnectionId connection, uint64_t stop_at) override;
  // No simulated agent calls it.
  uint64_t StepsEnded(shm::RankConnectionId /*connection*/) override { return 0; }
  void PublishEpoch(Epoch /*epoch*/) override {}
  void ReplyMembership(shm::RankConnectionId connection, shm::RequestId request,
                       const shm::RankMembership& answer) override;
  void ReplyTold(shm::RankConnectionId connection, shm::RequestId request,
                 const shm::Told& answer) override;
  void Renumber(shm::RankConnectionId, Rank, uint32_t, const shm::RankNumbers&) override {}
  void PublishCompletion(const Completion& completion) override;
  void PublishArrival(shm::TensorIndex /*tensor*/, uint64_t /*bytes*/) override {}
  void FailAll(shm::RankStatus status, std::string_view text) override;
  void Disconnect(shm::RankConnectionId connection, shm::RankStatus status,
                  std::string_view text) override;
  void Release(shm::RankConnectionId /*connection*/) override {}
  shm::RankServerCounters counters() const override { return {}; }

 private:
  struct Said {
    LocalRank rank;
    uint64_t connection = 0;
    Word word;
  };
  shm::RankConnectionId ConnectionOf(LocalRank rank) const {
    return shm::RankConnectionId{connections_[rank.value()] * gone_.size() + rank.value()};
  }
  LocalRank RankOf(shm::RankConnectionId connection) const;

  RankHearing* const hearing_;
  const shm::RankServerConfig config_;
  SimRankMemory memory_;
  std::deque<Said> said_;
  // By local rank.
  std::vector<uint64_t> connections_;
  std::vector<bool> gone_;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_SIM_RANK_SERVER_H_
