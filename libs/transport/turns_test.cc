// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/turns.h"

#include <map>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::transport {
namespace {

// Peers by name, and how many events each still has.
struct Site {
  std::map<char, int> events;
  std::vector<char> due;
  std::vector<char> order;
  Turns turns;

  void Take(int events_max) {
    order.clear();
    turns.Take(due, events_max, [this](char peer, int* left) {
      order.push_back(peer);
      while (*left > 0 && events[peer] > 0) {
        --*left;
        --events[peer];
      }
    });
  }
};

TEST_CASE("Turns: a peer that sends without end gets its turn, and no more", "[transport]") {
  Site site{.events = {{'a', 1000}, {'b', 3}}, .due = {'a', 'b'}};
  site.Take(64);
  CHECK(site.order == std::vector<char>{'a', 'b'});
  CHECK(site.events == std::map<char, int>{{'a', 1000 - Turns::kEventsMax}, {'b', 0}});
}

TEST_CASE("Turns: a peer that is alone gets all that may be delivered", "[transport]") {
  Site site{.events = {{'a', 1000}}, .due = {'a'}};
  site.Take(64);
  CHECK(site.events['a'] == 1000 - 64);
}

TEST_CASE("Turns: another peer is first each time, and all come when there is no room for all",
          "[transport]") {
  Site site{.events = {{'a', 100}, {'b', 100}, {'c', 100}}, .due = {'a', 'b', 'c'}};
  for (const char first : {'a', 'b', 'c', 'a'}) {
    site.Take(Turns::kEventsMax);
    CHECK(site.order == std::vector<char>{first});
  }
  CHECK(site.events['b'] == 100 - Turns::kEventsMax);
}

TEST_CASE("Turns: nothing happens when nobody is due", "[transport]") {
  Site site;
  site.Take(64);
  CHECK(site.order.empty());
}

}  // namespace
}  // namespace talweg::transport
