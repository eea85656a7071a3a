// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_NEXT_VIEW_H_
#define TALWEG_LIBS_MEMBERSHIP_NEXT_VIEW_H_

#include <optional>
#include <string>
#include <vector>

#include "libs/membership/aggregator_pool.h"
#include "libs/membership/live_job.h"
#include "libs/view/view.h"

// These functions say whom a job's next view has. They change nothing.
namespace talweg::membership {

struct SpareAggregator {
  std::string name;
  // The aggregator came too late for this view; otherwise the other aggregators' links carry
  // everything.
  bool enters_next_view = false;
};

// The aggregators that can be trusted with bytes: heard of in this run of the scheduler, or in the
// view already. By name.
std::vector<view::ViewAggregator> AggregatorsFor(const LiveJob& job, const AggregatorPool& pool);
// The aggregators that could serve a running job but are not in its view, by name.
std::vector<SpareAggregator> SparesOf(const LiveJob& job, const AggregatorPool& pool);

// `with_joiners`: the view admits all members that may enter. Returns nullopt if there is no member
// or no aggregator to make a view of.
std::optional<view::View> NextView(const LiveJob& job, const AggregatorPool& pool,
                                   bool with_joiners);

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_NEXT_VIEW_H_
