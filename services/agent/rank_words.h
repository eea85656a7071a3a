// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_RANK_WORDS_H_
#define TALWEG_SERVICES_AGENT_RANK_WORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_core.h"
#include "libs/runtime/clock.h"
#include "services/agent/agent_life.h"
#include "services/agent/core_runner.h"
#include "services/agent/device_rounds.h"
#include "services/agent/job_link.h"
#include "services/agent/rank_desk.h"
#include "services/agent/timeline.h"

namespace talweg::agent {

// Gives the core the ranks' events: their tensors and rounds, their steps, and which view they
// follow (docs/elastic.md). Owned by the data thread.
class RankWords final : public RankEvents {
 public:
  // All are valid until the last call.
  struct Parts {
    const runtime::Clock* clock = nullptr;
    CoreRunner* runner = nullptr;
    AgentLife* life = nullptr;
    Timeline* timeline = nullptr;
  };
  explicit RankWords(const Parts& parts) : parts_(parts) {}

  // Call both before the first event of a rank.
  void SetDesk(RankDesk* desk) { desk_ = desk; }
  void SetLink(JobLink* link) { link_ = link; }
  // Null: there are no GPUs, or they are gone.
  void SetDevices(DeviceRounds* devices) { devices_ = devices; }

  // --- RankEvents
  void OnRankJoined(LocalRank rank, uint32_t pid) override;
  void OnRanksAttached(bool all) override { link_->SetRanksAttached(all); }
  void OnRanksReady(bool all) override;
  void OnRanksHaveState() override { link_->SetRanksHaveState(true); }
  void OnRankDeclare(LocalRank rank, uint32_t request,
                     const pipeline::Declaration& declaration) override;
  void OnRankPush(const pipeline::Push& push) override;
  void OnRankLeft(LocalRank rank, bool clean, const std::string& text) override;
  void OnRankFailure(const std::string& text) override;
  void OnRankAtBoundary(LocalRank rank, uint64_t steps) override;
  void OnRanksStop(std::vector<uint64_t> ended) override;
  void OnRankFollows(LocalRank rank, uint32_t request, Epoch epoch) override;
  std::string WhomItWaitsFor(pipeline::TensorIndex tensor, Round round) const override {
    return Core().WhomItWaitsFor(tensor, round);
  }
  const pipeline::AgentCore& Core() const override { return parts_.runner->core(); }

 private:
  int64_t NowNs() const { return parts_.clock->NowNs(); }

  const Parts parts_;
  RankDesk* desk_ = nullptr;
  JobLink* link_ = nullptr;
  DeviceRounds* devices_ = nullptr;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_RANK_WORDS_H_
