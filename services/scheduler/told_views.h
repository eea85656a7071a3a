// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_TOLD_VIEWS_H_
#define TALWEG_SERVICES_SCHEDULER_TOLD_VIEWS_H_

#include <map>
#include <memory>

#include "libs/base/ids.h"
#include "libs/membership/scheduler_core.h"
#include "libs/view/view.h"
#include "proto/talweg/scheduler/v1/membership.pb.h"
#include "proto/talweg/scheduler/v1/pool.pb.h"

namespace talweg::scheduler {

using ViewPointer = std::shared_ptr<const view::View>;

// What a member's stream can take, and has been told.
struct MemberTold {
  view::MemberIdentity member;
  bool takes_changes = false;
  bool takes_aggregator_changes = false;
  ViewPointer view = nullptr;  // The last one on this stream.
};

// Likewise an aggregator's, of each job.
struct AggregatorTold {
  bool takes_changes = false;
  std::map<JobId, ViewPointer> views = {};
};

// Writes views into messages: whole, or as what differs from the view that came before on the same
// stream. Nearly all streams are told the same change, which is worked out once, so a view costs
// each of them a few bytes.
class ToldViews {
 public:
  // A member gets the addresses of aggregators with what it needs for keys of its own. Of an
  // aggregator that stays it has that already, if that is good in all epochs.
  void Write(const ViewPointer& view, MemberTold& told, v1::WatchViewsResponse& response);
  // An aggregator connects to nobody, and gets addresses without keys.
  void Write(const membership::JobView& job, AggregatorTold& told, v1::WatchJobsResponse& response);

 private:
  // The last change that was told.
  struct Change {
    ViewPointer base;
    ViewPointer view;
    v1::WatchViewsResponse::ViewChange message;
    bool has_seeds = false;  // Members' keys of all aggregators are made of seeds.

    bool Is(const ViewPointer& from, const ViewPointer& to) const {
      return base == from && view == to;
    }
  };

  // A view as aggregators may have it.
  struct Shown {
    ViewPointer whole;
    ViewPointer shown;
  };

  ViewPointer ShownOf(const ViewPointer& view);

  Change to_members_;
  Change to_aggregators_;
  // The last one of each job, while a stream's AggregatorTold has it.
  std::map<JobId, Shown> shown_;
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_TOLD_VIEWS_H_
