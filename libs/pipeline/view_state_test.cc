// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/view_state.h"

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {
namespace {

using testing::MakeView;

const view::MemberIdentity kSelf{NodeRank{1}, Incarnation{101}};

TEST_CASE("ViewState: a view is present when all its aggregators have answered", "[pipeline]") {
  ViewState views(kSelf, 2);
  CHECK(views.phase() == Phase::kForming);
  CHECK(views.newest() == nullptr);
  views.Enter(MakeView(1, {1, 2}, 1));
  CHECK(views.phase() == Phase::kFencing);
  CHECK(views.present() == nullptr);
  CHECK(views.newest()->epoch == Epoch{1});
  views.Freeze();
  CHECK(views.phase() == Phase::kReporting);
  CHECK(views.present()->epoch == Epoch{1});
  CHECK(views.self() == MemberIndex{1});
  views.Activate();
  CHECK(views.phase() == Phase::kActive);

  views.Enter(MakeView(2, {1, 2, 1}, 1));
  CHECK_FALSE(views.is_past_fences());
  CHECK(views.present()->epoch == Epoch{1});  // The data of the present view still counts.
  CHECK(views.newest()->epoch == Epoch{2});
  CHECK_FALSE(views.IsNewer(MakeView(2, {1, 2, 1}, 1)));
  CHECK(views.IsNewer(MakeView(3, {1, 2, 1}, 1)));
  views.Activate();
  CHECK(views.phase() == Phase::kFencing);

  views.Fail("why");
  CHECK(views.has_failed());
  CHECK(views.failed_text() == "why");
}

TEST_CASE("ViewState: ranks keep the numbers of their first view until they follow another",
          "[pipeline]") {
  ViewState views(kSelf, 2);
  CHECK(views.GlobalRank(LocalRank{1}) == Rank{1});
  views.Enter(MakeView(1, {1, 2, 1}, 1));
  views.Freeze();
  CHECK(views.GlobalRank(LocalRank{1}) == Rank{2});
  view::View lost_first = MakeView(2, {1, 2, 1}, 1);
  lost_first.members.erase(lost_first.members.begin());
  views.Enter(lost_first);
  views.Freeze();
  CHECK(views.GlobalRank(LocalRank{1}) == Rank{2});
  CHECK(views.RootInView(3) == 2);
  CHECK(views.RootInView(0) == wire::kNoRank);
  views.Follow(*views.Find(Epoch{2}));
  CHECK(views.GlobalRank(LocalRank{1}) == Rank{1});
  CHECK(views.RootInView(2) == 2);
  CHECK(views.Find(Epoch{3}) == nullptr);
}

TEST_CASE("ViewState: a standby counts its steps from where it enters them", "[pipeline]") {
  ViewState views(kSelf, 1);
  view::View view = MakeView(1, {1, 1}, 1);
  view.members[1].standby = true;
  view.steps = 10;
  views.Enter(view);
  CHECK(views.IsStandby());
  CHECK(views.steps_base() == 10);
  view.epoch = Epoch{2};
  view.steps = 20;
  views.Enter(view);
  CHECK(views.steps_base() == 10);
  view.epoch = Epoch{3};
  view.steps = 30;
  view.members[1].standby = false;
  views.Enter(view);
  CHECK(views.steps_base() == 30);
}

TEST_CASE("ViewState: it says why a view cannot be used", "[pipeline]") {
  ViewState views(kSelf, 2);
  CHECK(views.Problem(MakeView(1, {1, 2}, 1)).empty());
  CHECK(views.Problem(MakeView(1, {1, 2}, 0)).find("no aggregator") != std::string::npos);
  CHECK(views.Problem(MakeView(1, {1, 3}, 1)).find("3 ranks, but it has 2") != std::string::npos);
  views.Enter(MakeView(1, {1, 2}, 1));
  view::View other_job = MakeView(2, {1, 2}, 1);
  other_job.job = JobId{8};
  CHECK(views.Problem(other_job).find("job 8") != std::string::npos);
}

}  // namespace
}  // namespace talweg::pipeline
