// SPDX-License-Identifier: Apache-2.0
#include "services/agent/job_link.h"

#include <utility>

namespace talweg::agent {
namespace {

constexpr int64_t kSchedulerLeaveNs = 2'000'000'000;

class AloneLink final : public JobLink {
 public:
  AloneLink(ViewMember self, uint64_t slice_bytes_max,
            std::function<void(const rpc::ViewPublished&)> publish)
      : self_(std::move(self)), slice_bytes_max_(slice_bytes_max), publish_(std::move(publish)) {}

  bool IsAlone() const override { return true; }
  void Join(const MemberIdentity& self) override {
    View view;
    view.job = JobId{++generation_};
    view.epoch = Epoch{1};
    view.slice_bytes_max = slice_bytes_max_;
    view.members.push_back(self_);
    view.members.front().id = self;
    publish_({.view = std::move(view)});
  }
  absl::Status Leave(LeaveReason /*reason*/, const std::string& /*text*/) override {
    return absl::OkStatus();
  }

  void Quiesced(uint64_t /*id*/, uint64_t /*step*/) override {}
  void SetRanksAttached(bool /*attached*/) override {}
  void ReportLost(const pipeline::ReportLost& /*lost*/) override {}
  void ReportUnreachable(Incarnation /*aggregator*/, const std::string& /*reason*/) override {}

  void Do(const pipeline::Connect& /*effect*/) override {}
  void Do(const pipeline::Close& /*effect*/) override {}
  void Do(pipeline::Send& /*effect*/) override {}
  void Do(const pipeline::WriteSlice& /*effect*/) override {}
  void OnHostFound(ConnectionId /*connection*/,
                   const absl::StatusOr<std::string>& /*literal*/) override {}
  int Poll(int /*events_max*/) override { return 0; }
  bool PrepareToSleep() override { return true; }
  bool Drained() const override { return true; }
  void CloseAll() override {}
  bool AnyLocal() const override { return false; }
  void UseNetworkOnly() override {}

  DataPlane::Traffic TrafficOf(ConnectionId /*connection*/) const override { return {}; }
  Totals totals() const override { return {}; }

 private:
  const ViewMember self_;
  const uint64_t slice_bytes_max_;
  const std::function<void(const rpc::ViewPublished&)> publish_;
  uint64_t generation_ = 0;
};

class MemberLink final : public JobLink {
 public:
  MemberLink(std::unique_ptr<DataPlane> data_plane, transport::Transport* transport,
             rpc::SchedulerLinkOptions scheduler, rpc::JoinSpec join,
             rpc::SchedulerClient::OnEvent on_event)
      : data_plane_(std::move(data_plane)),
        transport_(transport),
        join_(std::move(join)),
        scheduler_(
            std::make_unique<rpc::SchedulerClient>(std::move(scheduler), std::move(on_event))) {}
  ~MemberLink() override {
    scheduler_.reset();
    data_plane_->CloseAll();
  }

  bool IsAlone() const override { return false; }
  void Join(const MemberIdentity& self) override {
    join_.member.id = self;
    scheduler_->JoinJob(join_);
  }
  absl::Status Leave(LeaveReason reason, const std::string& text) override {
    data_plane_->CloseAll();
    return scheduler_->Leave(reason, text, kSchedulerLeaveNs);
  }

  void Quiesced(uint64_t id, uint64_t step) override { scheduler_->Quiesced(id, step); }
  void SetRanksAttached(bool attached) override { scheduler_->SetRanksAttached(attached); }
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

  void Do(const pipeline::Connect& effect) override { data_plane_->Do(effect); }
  void Do(const pipeline::Close& effect) override { data_plane_->Do(effect); }
  void Do(pipeline::Send& effect) override { data_plane_->Do(effect); }
  void Do(const pipeline::WriteSlice& effect) override { data_plane_->Do(effect); }
  void OnHostFound(ConnectionId connection, const absl::StatusOr<std::string>& literal) override {
    data_plane_->OnHostFound(connection, literal);
  }
  int Poll(int events_max) override { return data_plane_->Poll(events_max); }
  bool PrepareToSleep() override { return transport_->PrepareToSleep(); }
  bool Drained() const override { return data_plane_->Drained(); }
  void CloseAll() override { data_plane_->CloseAll(); }
  bool AnyLocal() const override { return data_plane_->AnyLocal(); }
  void UseNetworkOnly() override { data_plane_->UseNetworkOnly(); }

  DataPlane::Traffic TrafficOf(ConnectionId connection) const override {
    return data_plane_->TrafficOf(connection);
  }
  Totals totals() const override {
    return {data_plane_->bytes_sent(), data_plane_->bytes_received(), data_plane_->bad_frames()};
  }

 private:
  const std::unique_ptr<DataPlane> data_plane_;
  transport::Transport* const transport_;
  rpc::JoinSpec join_;
  std::unique_ptr<rpc::SchedulerClient> scheduler_;
};

}  // namespace

std::unique_ptr<JobLink> NewAloneLink(ViewMember self, uint64_t slice_bytes_max,
                                      std::function<void(const rpc::ViewPublished&)> publish) {
  return std::make_unique<AloneLink>(std::move(self), slice_bytes_max, std::move(publish));
}

std::unique_ptr<JobLink> NewMemberLink(std::unique_ptr<DataPlane> data_plane,
                                       transport::Transport* transport,
                                       rpc::SchedulerLinkOptions scheduler, rpc::JoinSpec join,
                                       rpc::SchedulerClient::OnEvent on_event) {
  return std::make_unique<MemberLink>(std::move(data_plane), transport, std::move(scheduler),
                                      std::move(join), std::move(on_event));
}

}  // namespace talweg::agent
