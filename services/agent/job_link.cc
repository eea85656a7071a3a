// SPDX-License-Identifier: Apache-2.0
#include "services/agent/job_link.h"

#include <utility>

namespace talweg::agent {
namespace {

class AloneLink final : public JobLink {
 public:
  AloneLink(view::ViewMember self, uint64_t slice_bytes_max,
            std::function<void(const rpc::ViewPublished&)> publish)
      : self_(std::move(self)), slice_bytes_max_(slice_bytes_max), publish_(std::move(publish)) {}

  bool IsAlone() const override { return true; }
  void Join(const view::MemberIdentity& self) override {
    view::View view;
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
  void SetRanksReady(bool /*ready*/) override {}
  void SetRanksHaveState(bool /*have_state*/) override {}
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

  AgentDataPlane::Traffic TrafficOf(ConnectionId /*connection*/) const override { return {}; }
  Totals totals() const override { return {}; }

 private:
  const view::ViewMember self_;
  const uint64_t slice_bytes_max_;
  const std::function<void(const rpc::ViewPublished&)> publish_;
  uint64_t generation_ = 0;
};

}  // namespace

std::unique_ptr<JobLink> NewAloneLink(view::ViewMember self, uint64_t slice_bytes_max,
                                      std::function<void(const rpc::ViewPublished&)> publish) {
  return std::make_unique<AloneLink>(std::move(self), slice_bytes_max, std::move(publish));
}

}  // namespace talweg::agent
