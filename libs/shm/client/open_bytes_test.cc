// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/open_bytes.h"

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"

namespace talweg::shm {
namespace {

void Alone(OpenBytes& bytes, uint64_t of) {
  bytes.Begin(of);
  bytes.End(of);
}

TEST_CASE("Rounds that are open together count together") {
  OpenBytes bytes;
  CHECK(bytes.AtOnce() == 0);
  for (uint64_t open = 1; open <= 10; ++open) {
    bytes.Begin(kMiB);
    CHECK(bytes.AtOnce() == open * kMiB);
  }
  for (int i = 0; i < 5; ++i) bytes.End(kMiB);
  bytes.Begin(kMiB);
  CHECK(bytes.AtOnce() == 10 * kMiB);
}

TEST_CASE("Rounds one after the other do not count together") {
  OpenBytes bytes;
  for (int i = 0; i < 100; ++i) {
    Alone(bytes, kMiB);
    CHECK(bytes.AtOnce() == kMiB);
  }
}

TEST_CASE("The next step counts as large as the last one, from its first round on") {
  OpenBytes bytes;
  for (int step = 0; step < 5; ++step) {
    for (int i = 0; i < 100; ++i) {
      bytes.Begin(kMiB);
      CHECK((step == 0 || bytes.AtOnce() == 100 * kMiB));
    }
    for (int i = 0; i < 100; ++i) bytes.End(kMiB);
    // Single values, such as losses, come in between.
    for (int i = 0; i < 20; ++i) Alone(bytes, 4);
    CHECK(bytes.AtOnce() == 100 * kMiB);
  }
}

TEST_CASE("At least the second largest of the bursts that take turns counts") {
  OpenBytes bytes;
  for (int turn = 0; turn < 5; ++turn) {
    for (const uint64_t burst : {100, 70, 30}) {
      bytes.Begin(burst * kMiB);
      CHECK((turn == 0 || bytes.AtOnce() >= 70 * kMiB));
      bytes.End(burst * kMiB);
    }
  }
}

TEST_CASE("A large burst is forgotten after as many bytes") {
  OpenBytes bytes;
  Alone(bytes, 100 * kMiB);
  for (int i = 0; i < 50; ++i) {
    Alone(bytes, 2 * kMiB);
    CHECK(bytes.AtOnce() == 100 * kMiB);
  }
  Alone(bytes, 2 * kMiB);
  CHECK(bytes.AtOnce() == 2 * kMiB);
  Alone(bytes, 3 * kMiB);
  CHECK(bytes.AtOnce() == 3 * kMiB);
}

}  // namespace
}  // namespace talweg::shm
