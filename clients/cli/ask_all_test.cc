// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/ask_all.h"

#include <future>

#include <catch2/catch.hpp>

namespace talweg::cli {
namespace {

TEST_CASE("AskAll: each is asked once, and no more than allowed at the same time", "[cli]") {
  constexpr size_t kCount = 100, kAtOnce = 4;
  std::vector<std::atomic<int>> asked(kCount);
  std::atomic<size_t> open{0}, most{0};
  AskAll(kCount, kAtOnce, [&](size_t i) {
    const size_t now = ++open;
    for (size_t seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    ++asked[i];
    --open;
  });
  CHECK(std::all_of(asked.begin(), asked.end(), [](const auto& times) { return times == 1; }));
  CHECK(most <= kAtOnce);
  AskAll(0, kAtOnce, [](size_t) { FAIL("nobody is to be asked"); });
}

TEST_CASE("AskAll: one that does not answer holds up no other", "[cli]") {
  constexpr size_t kCount = 10;
  std::promise<void> last;
  AskAll(kCount, 2, [&](size_t i) {
    if (i == 0) last.get_future().wait();
    if (i == kCount - 1) last.set_value();
  });
}

}  // namespace
}  // namespace talweg::cli
