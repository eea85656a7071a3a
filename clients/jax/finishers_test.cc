// SPDX-License-Identifier: Apache-2.0
#include "clients/jax/finishers.h"

#include <atomic>
#include <future>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::jax {

TEST_CASE("Finishers: a task that blocks does not stop the next one", "[jax]") {
  constexpr int kBlocked = 5;
  Finishers& finishers = Finishers::Shared();
  std::promise<void> released;
  const std::shared_future<void> release = released.get_future().share();
  std::atomic<int> ended{0};
  std::vector<std::promise<void>> ends(kBlocked);
  for (std::promise<void>& end : ends) {
    finishers.Run([&] {
      release.wait();
      ++ended;
      end.set_value();
    });
  }
  // This task releases the blocked ones. If it had to wait for them, it would never run.
  finishers.Run([&] { released.set_value(); });

  for (std::promise<void>& end : ends) {
    end.get_future().wait();
  }
  CHECK(ended == kBlocked);
}

TEST_CASE("Finishers: every task runs once", "[jax]") {
  constexpr int kTasks = 1000;
  std::atomic<int> runs{0};
  std::promise<void> all;
  for (int i = 0; i < kTasks; ++i) {
    Finishers::Shared().Run([&] {
      if (++runs == kTasks) {
        all.set_value();
      }
    });
  }
  all.get_future().wait();
  CHECK(runs == kTasks);
}

}  // namespace talweg::jax
