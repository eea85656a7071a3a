// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/link_shares.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>

namespace talweg::membership {

void WeighByLinks(const std::set<std::string>& member_hosts,
                  std::vector<view::ViewAggregator>& aggregators) {
  const bool differ = std::any_of(aggregators.begin(), aggregators.end(), [&](const auto& each) {
    return each.weight != aggregators.front().weight;
  });
  if (differ || member_hosts.size() < 2 || member_hosts.contains("")) return;

  const auto is_shared = [&](const view::ViewAggregator& aggregator) {
    return member_hosts.contains(aggregator.host_id);
  };
  // An aggregator without a host id is identified by its name.
  const auto host_of = [](const view::ViewAggregator& aggregator) {
    return aggregator.host_id.empty() ? "?" + aggregator.name : aggregator.host_id;
  };
  std::map<std::string, uint64_t> on_shared_host;
  std::map<std::string, uint64_t> on_own_host;
  for (const view::ViewAggregator& aggregator : aggregators) {
    ++(is_shared(aggregator) ? on_shared_host : on_own_host)[host_of(aggregator)];
  }
  const uint64_t n = member_hosts.size();
  const uint64_t m = on_shared_host.size();
  const uint64_t k = on_own_host.size();
  if (m == 0 || k == 0) return;
  if (k >= n) {
    std::erase_if(aggregators, is_shared);
    return;
  }

  // The weights are whole numbers: shares, times a number that every host's count of aggregators
  // divides.
  uint64_t divisible = 1;
  for (const auto* hosts : {&on_shared_host, &on_own_host}) {
    for (const auto& [host, count] : *hosts) divisible = std::lcm(divisible, count);
  }
  uint64_t common = 0;
  std::vector<uint64_t> weights;
  for (const view::ViewAggregator& aggregator : aggregators) {
    const uint64_t host_share = is_shared(aggregator) ? n - k : m + n - 2;
    const auto& hosts = is_shared(aggregator) ? on_shared_host : on_own_host;
    weights.push_back(host_share * divisible / hosts.at(host_of(aggregator)));
    common = std::gcd(common, weights.back());
  }
  const bool fits = *std::max_element(weights.begin(), weights.end()) / common <= UINT32_MAX;
  if (!fits) return;  // With dozens of different counts of aggregators on a host, the weights stay.
  for (size_t i = 0; i < aggregators.size(); ++i) {
    aggregators[i].weight = static_cast<uint32_t>(weights[i] / common);
  }
}

}  // namespace talweg::membership
