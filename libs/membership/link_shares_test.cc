// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/link_shares.h"

#include <algorithm>
#include <map>

#include <catch2/catch.hpp>

#include "libs/base/fingerprint.h"
#include "libs/view/placement.h"

namespace talweg::membership {
namespace {

std::string Host(size_t number) { return "host-" + std::to_string(number); }

std::set<std::string> MemberHosts(size_t count) {
  std::set<std::string> hosts;
  for (size_t i = 0; i < count; ++i) hosts.insert(Host(i));
  return hosts;
}

std::vector<view::ViewAggregator> OnHosts(const std::vector<size_t>& hosts) {
  std::vector<view::ViewAggregator> aggregators;
  for (const size_t host : hosts) {
    aggregators.push_back(
        {.name = "aggregator-" + std::to_string(aggregators.size()), .host_id = Host(host)});
  }
  return aggregators;
}

// Returns aggregators on the first `m` of the members' hosts and on `k` other hosts.
std::vector<view::ViewAggregator> Deployed(size_t n, size_t m, size_t k) {
  std::vector<size_t> hosts;
  for (size_t i = 0; i < m; ++i) hosts.push_back(i);
  for (size_t i = 0; i < k; ++i) hosts.push_back(n + i);
  return OnHosts(hosts);
}

std::vector<uint32_t> Weights(const std::vector<view::ViewAggregator>& aggregators) {
  std::vector<uint32_t> weights;
  for (const view::ViewAggregator& aggregator : aggregators) weights.push_back(aggregator.weight);
  return weights;
}

// Returns how many bytes the busiest link sends for a gradient of one byte. It receives as many.
double BusiestLink(size_t n, const std::vector<view::ViewAggregator>& aggregators) {
  double total = 0;
  std::map<std::string, double> shares;
  for (size_t i = 0; i < n; ++i) shares[Host(i)] = 0;
  for (const view::ViewAggregator& aggregator : aggregators) {
    shares[aggregator.host_id] += aggregator.weight;
    total += aggregator.weight;
  }
  double busiest = 0;
  for (const auto& [host, weight] : shares) {
    const double share = weight / total;
    const bool has_member = MemberHosts(n).contains(host);
    const double others = static_cast<double>(n - 1);
    busiest = std::max(busiest, has_member ? 1 - share + share * others : share * (others + 1));
  }
  return busiest;
}

TEST_CASE("WeighByLinks: an aggregator on every member's host gives the paper's optimum",
          "[membership]") {
  for (size_t n = 2; n <= 9; ++n) {
    for (size_t k = 1; k < n; ++k) {
      auto aggregators = Deployed(n, n, k);
      WeighByLinks(MemberHosts(n), aggregators);
      REQUIRE(aggregators.size() == n + k);
      const auto hosts = static_cast<double>(n);
      const auto extra = static_cast<double>(k);
      const double optimum = 2 * hosts * (hosts - 1) / (hosts * hosts + extra * hosts - 2 * extra);
      INFO("n " << n << " k " << k);
      CHECK(BusiestLink(n, aggregators) == Approx(optimum));
    }
  }
}

TEST_CASE("WeighByLinks: slices that are dealt by weight keep every link as busy as the optimum",
          "[membership]") {
  for (size_t n = 2; n <= 5; ++n) {
    for (size_t k = 1; k < n; ++k) {
      view::View view{.job = JobId{1}, .epoch = Epoch{1}, .aggregators = Deployed(n, n, k)};
      WeighByLinks(MemberHosts(n), view.aggregators);
      const double optimum = BusiestLink(n, view.aggregators);
      // As many points as BytePS's mixed mode uses.
      view.dealing = ParseDealing("weighted:101").value();
      std::vector<uint64_t> carried(n + k);
      uint64_t all_beside_members = 0;
      uint64_t all = 0;
      for (uint64_t tensor = 0; tensor < 64; ++tensor) {
        const view::Placement placement(view, TensorKey{Fingerprint64(tensor, 0)},
                                        Collective::Of(DType::kU8, Op::kSum, 64 * kMiB), {});
        for (const view::Slice& slice : placement.slices()) {
          carried[slice.owner.value()] += slice.length_bytes;
          if (slice.owner.value() < n) all_beside_members += slice.length_bytes;
          all += slice.length_bytes;
        }
      }
      INFO("n " << n << " k " << k);
      const auto hosts = static_cast<double>(n);
      const auto extra = static_cast<double>(k);
      const double beside_members = hosts * (hosts - extra) / (hosts * hosts + extra * (hosts - 2));
      CHECK(static_cast<double>(all_beside_members) / static_cast<double>(all) ==
            Approx(beside_members).margin(0.03));
      auto dealt = view.aggregators;
      for (size_t i = 0; i < dealt.size(); ++i) {
        dealt[i].weight = static_cast<uint32_t>(carried[i] / kMiB);
      }
      CHECK(BusiestLink(n, dealt) < 1.1 * optimum);
    }
  }
}

TEST_CASE("WeighByLinks: no other division between the two kinds keeps the busiest link less busy",
          "[membership]") {
  for (size_t n = 2; n <= 6; ++n) {
    for (size_t m = 1; m <= n; ++m) {
      for (size_t k = 1; k <= n + 1; ++k) {
        auto weighed = Deployed(n, m, k);
        WeighByLinks(MemberHosts(n), weighed);
        const double chosen = BusiestLink(n, weighed);
        for (uint32_t part = 1; part < 60; ++part) {
          auto other = Deployed(n, m, k);
          for (size_t i = 0; i < other.size(); ++i) other[i].weight = i < m ? part : 60 - part;
          INFO("n " << n << " m " << m << " k " << k << " part " << part);
          CHECK(chosen <= BusiestLink(n, other) + 1e-9);
        }
      }
    }
  }
}

TEST_CASE("WeighByLinks: weights are small whole numbers", "[membership]") {
  auto aggregators = Deployed(4, 4, 2);  // (4 - 2) : (4 + 4 - 2)
  WeighByLinks(MemberHosts(4), aggregators);
  CHECK(Weights(aggregators) == std::vector<uint32_t>{1, 1, 1, 1, 3, 3});
}

TEST_CASE("WeighByLinks: aggregators of one host divide its share", "[membership]") {
  // Two aggregators are on host 4, which has no member.
  auto aggregators = OnHosts({0, 1, 2, 3, 4, 4, 5});
  WeighByLinks(MemberHosts(4), aggregators);
  CHECK(Weights(aggregators) == std::vector<uint32_t>{2, 2, 2, 2, 3, 3, 6});
}

TEST_CASE("WeighByLinks: as many hosts of their own as there are members carry everything",
          "[membership]") {
  auto aggregators = Deployed(3, 3, 3);
  WeighByLinks(MemberHosts(3), aggregators);
  REQUIRE(aggregators.size() == 3);
  for (const view::ViewAggregator& aggregator : aggregators) {
    CHECK_FALSE(MemberHosts(3).contains(aggregator.host_id));
    CHECK(aggregator.weight == 1);
  }
}

TEST_CASE("WeighByLinks: it leaves alone what it cannot improve or what somebody has set",
          "[membership]") {
  const auto unchanged = [](std::vector<view::ViewAggregator> aggregators, size_t n) {
    const auto before = aggregators;
    WeighByLinks(MemberHosts(n), aggregators);
    return aggregators == before;
  };
  CHECK(unchanged({}, 4));
  CHECK(unchanged(Deployed(4, 4, 0), 4));
  CHECK(unchanged(Deployed(4, 0, 2), 4));
  CHECK(unchanged(Deployed(1, 1, 1), 1));
  auto unknown = Deployed(4, 4, 2);
  WeighByLinks({"host-0", "host-1", ""}, unknown);
  CHECK(unknown == Deployed(4, 4, 2));
  auto set = Deployed(4, 4, 2);
  set[5].weight = 2;
  CHECK(unchanged(set, 4));
}

TEST_CASE("WeighByLinks: an aggregator without a host id counts as a host of its own",
          "[membership]") {
  auto aggregators = OnHosts({0, 1, 2, 3});
  aggregators.push_back({.name = "x"});
  aggregators.push_back({.name = "y"});
  WeighByLinks(MemberHosts(4), aggregators);
  CHECK(Weights(aggregators) == std::vector<uint32_t>{1, 1, 1, 1, 3, 3});
}

}  // namespace
}  // namespace talweg::membership
