// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_LINK_SHARES_H_
#define TALWEG_LIBS_MEMBERSHIP_LINK_SHARES_H_

#include <set>
#include <string>
#include <vector>

#include "libs/view/view.h"

namespace talweg::membership {

// Weighs `aggregators` so that every host's link is busy for the same time, all links being alike.
//
// A host of members sends its gradient but for what it sums itself, and, where it sums, the results
// to the other hosts; a host that only sums receives from, and sends to, every host of members.
// With n hosts of members, m of them with aggregators too, and k hosts with aggregators alone,
// the shares of the gradient that make both take equally long are
//
//   on a host of members     (n - k)     / (mn + k(n - 2))
//   on a host of its own     (m + n - 2) / (mn + k(n - 2))
//
// which for m = n is the placement of Jiang et al., "A Unified Architecture for Accelerating
// Distributed DNN Training in Heterogeneous GPU/CPU Clusters" (OSDI 2020), section 4.1. From k = n
// on, the hosts of their own carry everything, and aggregators beside members are left out.
// Aggregators of one host divide its share.
//
// Does nothing where that is no question (one host of members, aggregators of one kind only) or was
// answered: weights that differ were set by somebody who knows the links. An aggregator without a
// host id counts as a host of its own; with a member without one ("") nothing is known.
void WeighByLinks(const std::set<std::string>& member_hosts,
                  std::vector<view::ViewAggregator>& aggregators);

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_LINK_SHARES_H_
