// SPDX-License-Identifier: Apache-2.0
#include "services/agent/scheduler_contact.h"

#include <catch2/catch.hpp>

namespace talweg::agent {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST_CASE("SchedulerContact: a silence is reported once, and counts from its beginning") {
  SchedulerContact contact;
  CHECK(contact.answers());
  CHECK_FALSE(contact.OnReachable());
  CHECK(contact.OnUnreachable("scheduler at x: refused", 10 * kSecond));
  CHECK_FALSE(contact.OnUnreachable("scheduler at x: timed out", 12 * kSecond));
  CHECK_FALSE(contact.answers());
  CHECK(contact.text() == "scheduler at x: timed out");
  CHECK(contact.WithSilence("aggregator a is away", 15 * kSecond) ==
        "aggregator a is away; for 5 s the scheduler at x: timed out (start it again, and then "
        "this job)");
  CHECK(contact.OnReachable());
  CHECK(contact.answers());
  CHECK(contact.text().empty());
  CHECK(contact.WithSilence("aggregator a is away", 15 * kSecond) == "aggregator a is away");
  CHECK(contact.OnUnreachable("again", 20 * kSecond));
}

TEST_CASE("SchedulerContact: a text that says why the scheduler is silent does not say it twice") {
  SchedulerContact contact;
  contact.OnUnreachable("scheduler at x: refused", 10 * kSecond);
  CHECK(contact.WithSilence("cannot join: scheduler at x: refused", 19 * kSecond) ==
        "cannot join: scheduler at x: refused (for 9 s; start it again, and then this job)");
}

}  // namespace
}  // namespace talweg::agent
