// SPDX-License-Identifier: Apache-2.0
#include "tests/attackers/lone_member.h"

#include <chrono>
#include <cstdio>
#include <utility>
#include <variant>

#include "libs/transport/proof/data_key.h"

namespace talweg {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

}  // namespace

LoneMember::LoneMember(const std::string& scheduler, const std::string& setting,
                       const std::string& job, view::MemberIdentity self, uint32_t members)
    : self_(self), client_({.address = scheduler}, [this](const rpc::MemberEvent& event) {
        const auto* published = std::get_if<rpc::ViewPublished>(&event);
        if (published != nullptr && !std::exchange(is_told_, true)) {
          promise_.set_value(published->view);
        }
      }) {
  membership::JobSpec spec;
  spec.max_members = members;
  if (members > 1) {
    spec.loss_policy = membership::LossPolicy::kContinue;
    spec.gather_ns = std::chrono::nanoseconds(kPatience).count();
  }
  client_.JoinJob({.job_name = job,
                   .spec = spec,
                   .member = {.id = self, .rank_count = 1, .name = job, .admin_address = ""},
                   .data_security = setting});
}

bool LoneMember::WaitForView() {
  auto future = promise_.get_future();
  if (future.wait_for(kPatience) != std::future_status::ready) {
    std::printf("no view\n");
    return false;
  }
  view_ = future.get();
  if (view_.aggregators.empty()) {
    std::printf("no aggregator\n");
    return false;
  }
  seeds_ = view_.aggregators[0].data_address;
  for (view::ViewAggregator& aggregator : view_.aggregators) {
    aggregator.data_address = transport::AddressInEpoch(aggregator.data_address, view_.epoch);
  }
  return true;
}

std::string LoneMember::AddressIn(Epoch epoch) const {
  return transport::AddressInEpoch(seeds_, epoch);
}

void LoneMember::Leave() {
  const absl::Status status =
      client_.Leave(rpc::SchedulerClient::LeaveReason::kFinished, "done", 60'000'000'000);
  if (!status.ok()) std::printf("%s\n", std::string(status.message()).c_str());
}

}  // namespace talweg
