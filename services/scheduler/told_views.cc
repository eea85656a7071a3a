// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/told_views.h"

#include <algorithm>
#include <string>
#include <utility>

#include "libs/base/shown_address.h"
#include "libs/rpc/conversion.h"
#include "libs/transport/proof/data_key.h"

namespace talweg::scheduler {
namespace {

// Returns an aggregator's data address with what this member needs to connect.
std::string AddressFor(const MemberTold& told, const view::View& view,
                       const std::string& data_address) {
  const transport::PeerIdentity identity = {.job = view.job,
                                            .epoch = view.epoch,
                                            .node = told.member.node,
                                            .incarnation = told.member.incarnation};
  return told.takes_aggregator_changes ? transport::SeedAddressForMember(data_address, identity)
                                       : transport::AddressForMember(data_address, identity);
}

void SetAggregators(const view::View& view, const MemberTold& told, v1::View* message) {
  message->clear_aggregators();
  for (const view::ViewAggregator& aggregator : view.aggregators) {
    v1::ViewAggregator& shown = *message->add_aggregators();
    shown = rpc::ToProto(aggregator);
    shown.set_data_address(AddressFor(told, view, aggregator.data_address));
  }
}

view::View WithoutKeys(view::View view) {
  for (view::ViewAggregator& aggregator : view.aggregators) {
    aggregator.data_address = ShownAddress(aggregator.data_address);
  }
  return view;
}

bool AllHaveSeeds(const view::View& view) {
  return std::all_of(view.aggregators.begin(), view.aggregators.end(),
                     [](const view::ViewAggregator& aggregator) {
                       return transport::HasSeeds(aggregator.data_address);
                     });
}

// An entry's numbers, and the key in an aggregator's address.
constexpr size_t kEntryBytes = 32;
constexpr size_t kKeyBytes = 128;

size_t AggregatorBytesOf(const view::View& view) {
  size_t bytes = 0;
  for (const view::ViewAggregator& aggregator : view.aggregators) {
    bytes += kEntryBytes + kKeyBytes + aggregator.name.size() + aggregator.data_address.size() +
             aggregator.host_id.size() + aggregator.admin_address.size();
  }
  return bytes;
}

}  // namespace

void ToldViews::Write(const ViewPointer& view, MemberTold& told, v1::WatchViewsResponse& response) {
  const ViewPointer base = std::exchange(told.view, view);
  if (!told.takes_changes || base == nullptr) {
    *response.mutable_view() = rpc::ToProto(*view);
    SetAggregators(*view, told, response.mutable_view());
    return;
  }
  const Change& made = ToMembers(base, view);
  v1::WatchViewsResponse::ViewChange& change = *response.mutable_view_change();
  change = made.message;
  if (told.takes_aggregator_changes && made.has_seeds) {
    for (v1::ViewAggregator& entered : *change.mutable_aggregators()->mutable_entered()) {
      entered.set_data_address(AddressFor(told, *view, entered.data_address()));
    }
  } else {
    change.clear_aggregators();
    SetAggregators(*view, told, change.mutable_view());
  }
}

void ToldViews::Write(const membership::JobView& job, AggregatorTold& told,
                      v1::WatchJobsResponse& response) {
  ViewPointer shown = ShownOf(job.view.pointer());
  const ViewPointer base = std::exchange(told.views[job.view->job], shown);
  if (!told.takes_changes || base == nullptr) {
    response.mutable_job_view()->set_job_name(job.job_name);
    *response.mutable_job_view()->mutable_view() = rpc::ToProto(*shown);
    *response.mutable_job_view()->mutable_quota() = rpc::ToProto(job.quota);
    *response.mutable_job_view()->mutable_gone() = rpc::ToProto(job.gone);
    return;
  }
  *response.mutable_job_view_change()->mutable_change() = ToAggregators(base, shown).message;
  *response.mutable_job_view_change()->mutable_quota() = rpc::ToProto(job.quota);
  *response.mutable_job_view_change()->mutable_gone() = rpc::ToProto(job.gone);
}

size_t ToldViews::BytesOf(const ViewPointer& view, const MemberTold& told) {
  if (!told.takes_changes || told.view == nullptr) return BytesOf(*view);
  const Change& change = ToMembers(told.view, view);
  if (told.takes_aggregator_changes && change.has_seeds) return change.bytes;
  return change.bytes + AggregatorBytesOf(*view);
}

size_t ToldViews::BytesOf(const membership::JobView& job, const AggregatorTold& told) {
  const auto base = told.views.find(job.view->job);
  const size_t gone_bytes = kEntryBytes * job.gone.members.size();
  if (!told.takes_changes || base == told.views.end()) return BytesOf(*job.view) + gone_bytes;
  return ToAggregators(base->second, ShownOf(job.view.pointer())).bytes + gone_bytes;
}

size_t ToldViews::BytesOf(const view::View& view) {
  size_t bytes = AggregatorBytesOf(view);
  for (const view::ViewMember& member : view.members) {
    bytes += kEntryBytes + member.name.size() + member.admin_address.size() + member.host_id.size();
  }
  return bytes;
}

const ToldViews::Change& ToldViews::ToMembers(const ViewPointer& base, const ViewPointer& view) {
  if (!to_members_.Is(base, view)) {
    to_members_ = {.base = base,
                   .view = view,
                   .message = rpc::ChangeOf(*base, *view),
                   .has_seeds = AllHaveSeeds(*view)};
    to_members_.bytes = to_members_.message.ByteSizeLong();
  }
  return to_members_;
}

const ToldViews::Change& ToldViews::ToAggregators(const ViewPointer& base,
                                                  const ViewPointer& view) {
  if (!to_aggregators_.Is(base, view)) {
    to_aggregators_ = {.base = base, .view = view, .message = rpc::ChangeOf(*base, *view)};
    to_aggregators_.bytes = to_aggregators_.message.ByteSizeLong();
  }
  return to_aggregators_;
}

ViewPointer ToldViews::ShownOf(const ViewPointer& view) {
  const auto found = shown_.find(view->job);
  if (found != shown_.end() && found->second.whole == view) return found->second.shown;
  std::erase_if(shown_, [](const auto& entry) { return entry.second.shown.use_count() == 1; });
  ViewPointer shown = std::make_shared<const view::View>(WithoutKeys(*view));
  shown_[view->job] = {.whole = view, .shown = shown};
  return shown;
}

}  // namespace talweg::scheduler
