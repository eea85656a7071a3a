// SPDX-License-Identifier: Apache-2.0
#include "services/agent/member_link.h"

#include <string>
#include <utility>

#include "services/agent/connected_link.h"

namespace talweg::agent {
namespace {

constexpr int64_t kSchedulerLeaveNs = 2'000'000'000;

// Owns the AgentDataPlane.
class MemberLink final : public ConnectedLink {
 public:
  MemberLink(std::unique_ptr<AgentDataPlane> data_plane, transport::Transport* transport,
             rpc::SchedulerLinkOptions scheduler, rpc::JoinSpec join,
             rpc::SchedulerClient::OnEvent on_event)
      : ConnectedLink(data_plane.get(), transport),
        data_plane_(std::move(data_plane)),
        join_(std::move(join)),
        scheduler_(
            std::make_unique<rpc::SchedulerClient>(std::move(scheduler), std::move(on_event))) {}
  ~MemberLink() override {
    scheduler_.reset();
    data_plane_->CloseAll();
  }

  void Join(const view::MemberIdentity& self) override {
    join_.member.id = self;
    scheduler_->JoinJob(join_);
  }
  absl::Status Leave(LeaveReason reason, const std::string& text) override {
    data_plane_->CloseAll();
    using Reason = rpc::SchedulerClient::LeaveReason;
    return scheduler_->Leave(
        reason == LeaveReason::kFinished ? Reason::kFinished : Reason::kStopped, text,
        kSchedulerLeaveNs);
  }

  void Quiesced(uint64_t id, uint64_t step) override { scheduler_->Quiesced(id, step); }
  void SetRanksAttached(bool attached) override { scheduler_->SetRanksAttached(attached); }
  void SetRanksReady(bool ready) override { scheduler_->SetRanksReady(ready); }
  void SetRanksHaveState(bool have_state) override { scheduler_->SetRanksHaveState(have_state); }
  void ReportLost(const pipeline::ReportLost& lost) override {
    if (lost.rank) {
      scheduler_->ReportLostRank(*lost.rank, lost.text);
    } else {
      scheduler_->ReportLostSelf(lost.text);
    }
  }
  void ReportUnreachable(Incarnation aggregator, const std::string& reason) override {
    scheduler_->ReportUnreachableAggregator(aggregator, reason);
  }

 private:
  const std::unique_ptr<AgentDataPlane> data_plane_;
  rpc::JoinSpec join_;
  std::unique_ptr<rpc::SchedulerClient> scheduler_;
};

}  // namespace

std::unique_ptr<JobLink> NewMemberLink(std::unique_ptr<AgentDataPlane> data_plane,
                                       transport::Transport* transport,
                                       rpc::SchedulerLinkOptions scheduler, rpc::JoinSpec join,
                                       rpc::SchedulerClient::OnEvent on_event) {
  return std::make_unique<MemberLink>(std::move(data_plane), transport, std::move(scheduler),
                                      std::move(join), std::move(on_event));
}

}  // namespace talweg::agent
