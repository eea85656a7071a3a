// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/told_views.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/rpc/conversion.h"
#include "libs/transport/proof/data_key.h"

namespace talweg::scheduler {
namespace {

using membership::SharedView;

const std::string kPlace = "fi:tcp://127.0.0.1:2/";
const std::string kListener = "s" + std::string(64, 'b');
const std::string kOlderListener(64, 'c');

// Returns a view with members 0 up to `members`, and aggregators 1 up to `aggregators`, with equal
// weights.
ViewPointer MakeView(uint64_t epoch, uint32_t members, uint64_t aggregators,
                     const std::string& first_listener = kListener) {
  view::View view{.job = JobId{4}, .epoch = Epoch{epoch}};
  for (uint32_t node = 0; node < members; ++node) {
    view.members.push_back(
        {.id = {NodeRank{node}, Incarnation{100 + node}}, .rank_count = 1, .name = "host"});
  }
  for (uint64_t i = 1; i <= aggregators; ++i) {
    view.aggregators.push_back({.incarnation = Incarnation{i},
                                .name = "a" + std::to_string(i),
                                .weight = members,
                                .data_address = kPlace + (i == 1 ? first_listener : kListener)});
  }
  return std::make_shared<const view::View>(std::move(view));
}

transport::AddressKey KeyIn(const view::ViewAggregator& aggregator) {
  const auto key = transport::ParseAddressKey(aggregator.data_address.substr(kPlace.size()));
  REQUIRE(key);
  REQUIRE(key->identity);
  return *key;
}

// A member that hears of views.
struct Listener {
  MemberTold told;
  std::optional<view::View> view;

  v1::WatchViewsResponse Hear(ToldViews& views, const ViewPointer& next) {
    v1::WatchViewsResponse response;
    views.Write(next, told, response);
    const absl::StatusOr<view::View> heard = response.has_view_change()
                                                 ? rpc::Changed(*view, response.view_change())
                                                 : rpc::FromProto(response.view());
    INFO(heard.status().ToString());
    REQUIRE(heard.ok());
    view = *heard;
    CHECK(view->Digest() == next->Digest());
    return response;
  }
};

MemberTold Member(uint32_t node) {
  return {.member = {NodeRank{node}, Incarnation{100 + node}},
          .takes_changes = true,
          .takes_aggregator_changes = true};
}

TEST_CASE("ToldViews: aggregators that stay are not sent again", "[scheduler]") {
  ToldViews views;
  Listener first{.told = Member(0)};
  Listener second{.told = Member(1)};
  for (Listener* member : {&first, &second}) {
    CHECK(member->Hear(views, MakeView(1, 3, 2)).view().aggregators_size() == 2);
  }
  const ViewPointer next = MakeView(5, 2, 3);
  const auto listener = transport::ParseAddressKey(kListener);
  for (Listener* member : {&first, &second}) {
    const auto response = member->Hear(views, next);
    CHECK(response.view_change().view().aggregators_size() == 0);
    CHECK(response.view_change().aggregators().entered_size() == 1);
    REQUIRE(member->view->aggregators.size() == 3);
    for (const view::ViewAggregator& aggregator : member->view->aggregators) {
      const transport::AddressKey key = KeyIn(aggregator);
      CHECK(key.is_seed);
      CHECK(key.identity->node == member->told.member.node);
      CHECK(key.key == transport::MemberSeed(listener->key, *key.identity));
    }
  }
  CHECK(first.view->aggregators[2].data_address != second.view->aggregators[2].data_address);
}

TEST_CASE("ToldViews: all keys are sent anew where one side is older", "[scheduler]") {
  ToldViews views;
  Listener member{.told = Member(0)};
  std::string first_listener = kListener;
  SECTION("An aggregator is older") { first_listener = kOlderListener; }
  SECTION("The member is older") { member.told.takes_aggregator_changes = false; }
  SECTION("The member takes only whole views") {
    member.told.takes_changes = false;
    member.told.takes_aggregator_changes = false;
  }
  member.Hear(views, MakeView(1, 3, 2, first_listener));
  member.Hear(views, MakeView(5, 2, 2, first_listener));
  for (const view::ViewAggregator& aggregator : member.view->aggregators) {
    const transport::AddressKey key = KeyIn(aggregator);
    CHECK(key.identity->epoch == Epoch{5});
    const bool seed = member.told.takes_aggregator_changes && aggregator.name == "a2";
    CHECK(key.is_seed == seed);
  }
}

TEST_CASE("ToldViews: an aggregator gets changes of each job, and no keys", "[scheduler]") {
  ToldViews views;
  const bool takes_changes = GENERATE(true, false);
  AggregatorTold told{.takes_changes = takes_changes};
  v1::WatchJobsResponse whole;
  const ViewPointer before = MakeView(1, 3, 2);
  views.Write({.job_name = "mnist", .view = SharedView(before)}, told, whole);
  CHECK(whole.job_view().job_name() == "mnist");
  const absl::StatusOr<view::View> base = rpc::FromProto(whole.job_view().view());
  REQUIRE(base.ok());
  CHECK(rpc::FromProto(whole.job_view().gone()) == view::Gone{});
  const ViewPointer after = MakeView(2, 2, 3);
  v1::WatchJobsResponse response;
  const view::Gone gone{.members = {{NodeRank{8}, Incarnation{9}}}, .is_everybody = true};
  views.Write(
      {.job_name = "mnist", .view = SharedView(after), .quota = {.tenant = "blue"}, .gone = gone},
      told, response);
  CHECK(rpc::FromProto(takes_changes ? response.job_view_change().gone()
                                     : response.job_view().gone()) == gone);
  REQUIRE(response.has_job_view_change() == takes_changes);
  const absl::StatusOr<view::View> view =
      takes_changes ? rpc::Changed(*base, response.job_view_change().change())
                    : rpc::FromProto(response.job_view().view());
  REQUIRE(view.ok());
  CHECK(view->Digest() == after->Digest());
  REQUIRE(view->aggregators.size() == 3);
  for (const view::ViewAggregator& each : view->aggregators) {
    CHECK(each.data_address == "fi:tcp://127.0.0.1:2");
  }
  if (takes_changes) CHECK(response.job_view_change().quota().tenant() == "blue");
  // The first view of another job comes whole.
  view::View other = *after;
  other.job = JobId{5};
  const SharedView bert(std::make_shared<const view::View>(other));
  v1::WatchJobsResponse first;
  views.Write({.job_name = "bert", .view = bert}, told, first);
  CHECK(first.job_view().job_name() == "bert");
}

}  // namespace
}  // namespace talweg::scheduler
