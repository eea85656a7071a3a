// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_LINK_SHARES_H_
#define TALWEG_LIBS_MEMBERSHIP_LINK_SHARES_H_

#include <set>
#include <string>
#include <vector>

#include "libs/view/view.h"

namespace talweg::membership {

// Weighs `aggregators` so that every host's link is busy for the same time, if all links are alike.
//
// A host of members sends its gradient, except for the part that it sums itself; if it sums, it
// also sends results to the other hosts. A host that only sums receives from, and sends to, every
// host of members. With n hosts of members, m of them with aggregators too, and k hosts with
// aggregators alone, these shares of the gradient make both take equally long:
//
//   on a host of members     (n - k)     / (mn + k(n - 2))
//   on a host of its own     (m + n - 2) / (mn + k(n - 2))
//
// For m = n this is the placement of Jiang et al., "A Unified Architecture for Accelerating
// Distributed DNN Training in Heterogeneous GPU/CPU Clusters" (OSDI 2020), section 4.1. From k = n
// on, the hosts with aggregators alone carry everything, and aggregators beside members are left
// out. Aggregators of one host divide its share.
//
// Does nothing if there is nothing to choose (one host of members, or aggregators of one kind
// only), or if weights already differ: somebody who knows the links has set them. An aggregator
// without a host id counts as a host of its own. If any member has none (""), nothing is known.
void WeighByLinks(const std::set<std::string>& member_hosts,
                  std::vector<view::ViewAggregator>& aggregators);

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_LINK_SHARES_H_
