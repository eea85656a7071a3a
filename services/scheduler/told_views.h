// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_TOLD_VIEWS_H_
#define TALWEG_SERVICES_SCHEDULER_TOLD_VIEWS_H_

#include <cstddef>
#include <map>
#include <memory>

#include "libs/base/ids.h"
#include "libs/membership/scheduler_core.h"
#include "libs/view/view.h"
#include "proto/talweg/scheduler/v1/membership.pb.h"
#include "proto/talweg/scheduler/v1/pool.pb.h"

namespace talweg::scheduler {

using ViewPointer = std::shared_ptr<const view::View>;

// What a member's stream can take, and the last view sent on it.
struct MemberTold {
  view::MemberIdentity member;
  bool takes_changes = false;
  bool takes_aggregator_changes = false;
  ViewPointer view = nullptr;  // The last one on this stream.
};

// The same for an aggregator's stream, with the last view of each job.
struct AggregatorTold {
  bool takes_changes = false;
  std::map<JobId, ViewPointer> views = {};
};

// Writes views into messages: whole, or as a change to the last view on the same stream. Nearly all
// streams get the same change, which is made once, so a view costs each stream a few bytes.
class ToldViews {
 public:
  // A member gets the aggregators' addresses with its own keys, or with seeds for its keys. Seeds
  // are good in all epochs, so with seeds a change has only the addresses of new aggregators.
  void Write(const ViewPointer& view, MemberTold& told, v1::WatchViewsResponse& response);
  // An aggregator does not connect, so it gets addresses without keys.
  void Write(const membership::JobView& job, AggregatorTold& told, v1::WatchJobsResponse& response);

  // Return about how long the message would be that Write would make now.
  size_t BytesOf(const ViewPointer& view, const MemberTold& told);
  size_t BytesOf(const membership::JobView& job, const AggregatorTold& told);
  // Returns about how long a message with the whole view is.
  static size_t BytesOf(const view::View& view);

 private:
  // The last change that was made.
  struct Change {
    ViewPointer base;
    ViewPointer view;
    v1::WatchViewsResponse::ViewChange message;
    bool has_seeds = false;  // All aggregators' addresses have seeds.
    size_t bytes = 0;

    bool Is(const ViewPointer& from, const ViewPointer& to) const {
      return base == from && view == to;
    }
  };

  // A view, and the same view without keys for aggregators.
  struct Shown {
    ViewPointer whole;
    ViewPointer shown;
  };

  const Change& ToMembers(const ViewPointer& base, const ViewPointer& view);
  const Change& ToAggregators(const ViewPointer& base, const ViewPointer& view);
  ViewPointer ShownOf(const ViewPointer& view);

  Change to_members_;
  Change to_aggregators_;
  // The last one of each job, as long as an AggregatorTold holds it.
  std::map<JobId, Shown> shown_;
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_TOLD_VIEWS_H_
