// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/turn_thread.h"

#include <future>
#include <memory>
#include <optional>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/runtime/private_pages.h"

namespace talweg::runtime {
namespace {

TEST_CASE("TurnThread: work is done in its order, and the idle work when none waits", "[runtime]") {
  std::vector<int> done;  // The thread has it until it has told `idle`.
  std::promise<void> added;
  std::promise<void> idle;
  TurnThread thread("turns");
  thread.Add({[&] {
                added.get_future().wait();
                done.push_back(1);
              },
              [&] { done.push_back(-1); }});  // Other work waits then.
  thread.Add({[&] { done.push_back(2); },
              [&] {
                done.push_back(-2);
                idle.set_value();
              }});
  added.set_value();
  idle.get_future().wait();
  CHECK(done == std::vector<int>{1, 2, -2});
}

TEST_CASE("TurnThread: it ends while work waits, and forgets that work", "[runtime]") {
  std::promise<void> begun;
  std::promise<void> may_end;
  bool second = false;
  const auto kept = std::make_shared<int>();
  std::optional<TurnThread> thread(std::in_place, "turns");
  thread->Add({[&] {
                 begun.set_value();
                 may_end.get_future().wait();
               },
               {}});
  thread->Add({[&second, kept] { second = true; }, {}});
  begun.get_future().wait();
  std::promise<void> ending;
  std::thread ends([&] {
    ending.set_value();
    thread.reset();
  });
  ending.get_future().wait();
  while (kept.use_count() > 1 && !second) std::this_thread::yield();  // Forgotten, or done.
  may_end.set_value();
  ends.join();
  CHECK_FALSE(second);
}

TEST_CASE("PrivatePages: they are zero, and there after they are filled", "[runtime]") {
  PrivatePages pages(5'000'000);
  CHECK(pages.bytes().empty());
  REQUIRE(pages.Fill([] { return true; }).ok());
  REQUIRE(pages.bytes().size() == 5'000'000);
  CHECK(pages.bytes().front() == std::byte{0});
  pages.bytes().back() = std::byte{1};
  CHECK_FALSE(PrivatePages(size_t{1} << 62).Fill([] { return true; }).ok());
}

TEST_CASE("PrivatePages: what nobody wants any more is not filled", "[runtime]") {
  int asked = 0;
  PrivatePages pages(64 << 20);
  REQUIRE(pages.Fill([&asked] { return ++asked < 3; }).ok());
  CHECK(asked == 3);
}

}  // namespace
}  // namespace talweg::runtime
