// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/next_view.h"

#include <algorithm>
#include <set>

#include "libs/membership/link_shares.h"

namespace talweg::membership {
namespace {

void WeighFor(const LiveJob& job, const std::vector<view::ViewMember>& members,
              std::vector<view::ViewAggregator>& aggregators) {
  std::set<std::string> hosts;
  for (const view::ViewMember& member : members) {
    const auto known = job.members.find(member.id.node);
    if (known != job.members.end()) hosts.insert(known->second.record.member.host_id);
  }
  WeighByLinks(hosts, aggregators);
}

// A member or aggregator that does not know standbys would take one for a full member.
bool AllKnowStandbys(const LiveJob& job, const AggregatorPool& pool) {
  for (const auto& [node, member] : job.members) {
    if (!job.Pending(member) && !member.ranks.ready) return false;
  }
  const std::vector<view::ViewAggregator> aggregators = AggregatorsFor(job, pool);
  return std::all_of(aggregators.begin(), aggregators.end(), [&](const view::ViewAggregator& each) {
    return pool.all().at(each.incarnation).knows_standbys;
  });
}

}  // namespace

std::vector<view::ViewAggregator> AggregatorsFor(const LiveJob& job, const AggregatorPool& pool) {
  std::vector<view::ViewAggregator> chosen;
  const bool has_standby = job.view && job.view->HasStandby();
  for (const auto& [id, aggregator] : pool.all()) {
    const bool in_view = job.view && job.view->IndexOfAggregator(id);
    const bool fits = in_view || (aggregator.stream && (aggregator.knows_standbys || !has_standby));
    if (aggregator.record.state == AggregatorState::kLive && fits) {
      chosen.push_back(aggregator.record.aggregator);
    }
  }
  std::sort(
      chosen.begin(), chosen.end(),
      [](const view::ViewAggregator& a, const view::ViewAggregator& b) { return a.name < b.name; });
  return chosen;
}

std::vector<SpareAggregator> SparesOf(const LiveJob& job, const AggregatorPool& pool) {
  std::vector<SpareAggregator> spares;
  if (job.state != JobState::kRunning) return spares;
  const std::vector<view::ViewAggregator> could = AggregatorsFor(job, pool);
  std::vector<view::ViewAggregator> would = could;
  WeighFor(job, job.view->members, would);
  for (const view::ViewAggregator& aggregator : could) {
    if (job.view->IndexOfAggregator(aggregator.incarnation)) continue;
    const bool enters =
        std::any_of(would.begin(), would.end(), [&](const view::ViewAggregator& other) {
          return other.incarnation == aggregator.incarnation;
        });
    spares.push_back({.name = aggregator.name, .enters_next_view = enters});
  }
  return spares;
}

std::optional<view::View> NextView(const LiveJob& job, const AggregatorPool& pool,
                                   bool with_joiners) {
  const Epoch epoch = std::max(job.epoch_floor, job.epoch_start).Next();
  view::View view{.job = job.id,
                  .epoch = epoch,
                  .slice_bytes_max = job.spec.slice_bytes_max,
                  .dealing = job.spec.dealing,
                  .steps = job.view ? job.view->steps : 0,
                  .aggregators = AggregatorsFor(job, pool)};
  const bool in_two_stages =
      job.view && job.spec.loss_policy == LossPolicy::kContinue && AllKnowStandbys(job, pool);
  for (const auto& [node, member] : job.members) {
    const bool in_view = job.view && job.view->IndexOf(member.record.member.id);
    if (!in_view && !(with_joiners && job.MayEnter(member))) continue;
    view::ViewMember& entry = view.members.emplace_back(member.record.member);
    entry.standby = in_view ? job.IsStandby(member) && !(with_joiners && job.MayEnterSteps(member))
                            : in_two_stages && !member.ranks.ready.value_or(true);
  }
  if (view.RankCount() == 0) return std::nullopt;
  if (view.aggregators.empty() && view.members.size() > 1) {
    // A draining aggregator is better than none.
    if (!job.view) return std::nullopt;
    for (const view::ViewAggregator& aggregator : job.view->aggregators) {
      const LiveAggregator* known = pool.Find(aggregator.incarnation);
      if (known != nullptr && known->record.state == AggregatorState::kDraining) {
        view.aggregators.push_back(aggregator);
      }
    }
    if (view.aggregators.empty()) return std::nullopt;
  }
  WeighFor(job, view.members, view.aggregators);
  // Members that enter count their steps from here.
  if (with_joiners && job.quiesce) view.steps = std::max(view.steps, job.quiesce->step);
  return view;
}

}  // namespace talweg::membership
