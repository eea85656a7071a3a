// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/event_watcher.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cstdlib>
#include <memory>

#include <catch2/catch.hpp>

#include "libs/base/descriptor.h"

namespace talweg::gpu::fake {
namespace {

constexpr int kPatienceMs = 60'000;  // Ends a hang.

std::shared_ptr<SharedFile> RecordedEvent() {
  auto event = SharedFile::Make(std::getenv("TEST_TMPDIR"), kEventKind, kHeaderBytes);
  REQUIRE(event != nullptr);
  StateOf(*event).recorded.store(1);
  return event;
}

TEST_CASE("EventWatcher: it reports an event that is done while others are not", "[gpu]") {
  const Descriptor wakeups(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  REQUIRE(wakeups.valid());
  const auto is_woken = [&wakeups](int timeout_ms) {
    pollfd wakeup = {.fd = wakeups.get(), .events = POLLIN, .revents = 0};
    return poll(&wakeup, 1, timeout_ms) == 1;
  };
  EventWatcher watcher(wakeups.get());
  const auto never = RecordedEvent();
  watcher.Watch(never);
  for (int i = 0; i < 3; ++i) {
    const auto event = RecordedEvent();
    watcher.Watch(event);
    CHECK_FALSE(is_woken(0));
    StateOf(*event).done.store(1);
    REQUIRE(is_woken(kPatienceMs));
    eventfd_t count = 0;
    REQUIRE(eventfd_read(wakeups.get(), &count) == 0);
    CHECK(count == 1);
  }
}

}  // namespace
}  // namespace talweg::gpu::fake
