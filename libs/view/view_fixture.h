// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_VIEW_VIEW_FIXTURE_H_
#define TALWEG_LIBS_VIEW_VIEW_FIXTURE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libs/base/collective.h"
#include "libs/view/participation.h"
#include "libs/view/view.h"

namespace talweg::view::testing {

inline View MakeView(std::vector<uint32_t> rank_counts, std::vector<uint32_t> weights) {
  View view{.job = JobId{1}, .epoch = Epoch{1}};
  for (uint32_t i = 0; i < rank_counts.size(); ++i) {
    view.members.push_back(
        {.id = {NodeRank{i}, Incarnation{100 + i}}, .rank_count = rank_counts[i], .name = "n"});
  }
  for (uint32_t i = 0; i < weights.size(); ++i) {
    view.aggregators.push_back({.incarnation = Incarnation{200 + i},
                                .name = "a" + std::to_string(i),
                                .weight = weights[i]});
  }
  return view;
}

// The same view, with its members and aggregators on these hosts.
inline View OnHosts(View view, const std::vector<std::string>& members,
                    const std::vector<std::string>& aggregators) {
  for (size_t i = 0; i < members.size(); ++i) view.members[i].host_id = members[i];
  for (size_t i = 0; i < aggregators.size(); ++i) view.aggregators[i].host_id = aggregators[i];
  return view;
}

// All ranks of the view.
inline Group AllRanks(const View& view) {
  Group group;
  for (const ViewMember& member : view.members) {
    for (uint32_t i = 0; i < member.rank_count; ++i)
      group.push_back({member.id.node, LocalRank{i}});
  }
  return group;
}

// The collective of that name with bytes as elements.
inline Collective CollectiveOf(std::string_view name, uint64_t element_count) {
  for (const CollectiveRow& row : kCollectives) {
    if (row.name != name) continue;
    return {.dtype = DType::kU8,
            .op = row.gives == Share::kWhole ? Op::kSum : Op::kCopy,
            .gives = row.gives,
            .gets = row.gets,
            .element_count = element_count};
  }
  return {};
}

}  // namespace talweg::view::testing

#endif  // TALWEG_LIBS_VIEW_VIEW_FIXTURE_H_
