// SPDX-License-Identifier: Apache-2.0
// Where the buffer of a tensor that is summed in place lies. It may also appear at a place of the
// caller's. It moves elsewhere when somebody keeps the old one.
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/in_place_testing.h"
#include "clients/c/rank_sums_testing.h"
#include "clients/c/talweg.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;

// Memory of a framework in a file that others may map too.
class Allocation {
 public:
  explicit Allocation(size_t count) : count_(count), file_(::memfd_create("allocation", 0)) {
    REQUIRE(file_ >= 0);
    REQUIRE(::ftruncate(file_, static_cast<off_t>(bytes())) == 0);
    data_ = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    REQUIRE(data_ != MAP_FAILED);
  }
  ~Allocation() {
    ::munmap(data_, bytes());
    ::close(file_);
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  std::span<int32_t> values() const { return {static_cast<int32_t*>(data_), count_}; }
  void* data() const { return data_; }
  std::vector<int32_t> FromTheFile() const {
    std::vector<int32_t> values(count_);
    CHECK(::pread(file_, values.data(), bytes(), 0) == static_cast<ssize_t>(bytes()));
    return values;
  }
  int64_t PagesOfTheFile() const {
    struct stat status {};
    CHECK(::fstat(file_, &status) == 0);
    return status.st_blocks;
  }

 private:
  size_t bytes() const { return count_ * sizeof(int32_t); }

  size_t count_;
  int file_;
  void* data_ = nullptr;
};

bool AllAre(std::span<const int32_t> values, int32_t value) {
  return std::all_of(values.begin(), values.end(), [&](int32_t each) { return each == value; });
}

void Wait(const TestClient& client, talweg_tensor tensor, talweg_round round) {
  REQUIRE(talweg_wait(client.get(), tensor, round, nullptr, kGenerousNs) == TALWEG_OK);
}

TEST_CASE("Attached: gradients at a place of the caller's are summed there") {
  const size_t count = GENERATE(size_t{1}, size_t{1024}, size_t{300'001});
  const Node node(2, count);
  const TestClient& zero = node.clients[0];
  const TestClient& one = node.clients[1];
  const Allocation allocation(count);
  const std::span<int32_t> place = allocation.values();
  std::fill(place.begin(), place.end(), 3);
  REQUIRE(talweg_attach(zero.get(), node.tensor, allocation.data()) == TALWEG_OK);
  CHECK(AllAre(Buffer(zero, node.tensor), 3));  // What stood there is the first contribution.
  CHECK(allocation.PagesOfTheFile() == 0);
  int32_t sum = 0;
  for (int32_t round = 1; round <= 3; ++round) {
    if (round > 1) std::fill(place.begin(), place.end(), 10 * round);
    Push(zero, node.tensor, nullptr);
    Push(one, node.tensor, std::vector<int32_t>(count, round).data());
    CHECK(talweg_attach(zero.get(), node.tensor, allocation.data()) == TALWEG_BUSY);
    CHECK(talweg_detach(zero.get(), node.tensor) == TALWEG_BUSY);
    Wait(zero, node.tensor, static_cast<talweg_round>(round));
    Wait(one, node.tensor, static_cast<talweg_round>(round));
    sum = (round == 1 ? 3 : 10 * round) + round;
    CHECK(AllAre(place, sum));
    CHECK(AllAre(Buffer(one, node.tensor), sum));
  }
  REQUIRE(talweg_detach(zero.get(), node.tensor) == TALWEG_OK);
  CHECK(AllAre(place, sum));
  CHECK(AllAre(allocation.FromTheFile(), sum));
  // Rounds go on without the place.
  Push(zero, node.tensor, std::vector<int32_t>(count, 100).data());
  Push(one, node.tensor, std::vector<int32_t>(count, 1).data());
  Wait(zero, node.tensor, 4);
  Wait(one, node.tensor, 4);
  CHECK(AllAre(Buffer(zero, node.tensor), 101));
  CHECK(AllAre(place, sum));
  std::fill(place.begin(), place.end(), -1);
  CHECK(AllAre(Buffer(zero, node.tensor), 101));
  CHECK(AllAre(allocation.FromTheFile(), -1));
}

TEST_CASE("Attached: results from other nodes come to a place of the caller's") {
  const size_t count = GENERATE(size_t{1}, size_t{1025}, size_t{300'001});
  LonelyRank rank(count);
  const Allocation allocation(count);
  const std::span<int32_t> place = allocation.values();
  REQUIRE(talweg_attach(rank.client.get(), rank.tensor, allocation.data()) == TALWEG_OK);
  for (uint8_t round = 1; round <= 3; ++round) {
    std::fill(place.begin(), place.end(), -1);
    CHECK(AllAre(Buffer(rank.client, rank.tensor), -1));
    rank.Round(std::byte{round});
    CHECK(AllAre(place, round * 0x01010101));
  }
  REQUIRE(talweg_detach(rank.client.get(), rank.tensor) == TALWEG_OK);
  CHECK(AllAre(allocation.FromTheFile(), 3 * 0x01010101));
  rank.Round(std::byte{5});
  CHECK(AllAre(place, 3 * 0x01010101));
  CHECK(AllAre(Buffer(rank.client, rank.tensor), 5 * 0x01010101));
}

TEST_CASE("Attached: one place follows the other, and the last one outlives its client") {
  constexpr size_t kCount = 5000;
  const Allocation first(kCount), second(kCount);
  {
    const Node node(1, kCount);
    const TestClient& client = node.clients[0];
    std::fill(first.values().begin(), first.values().end(), 1);
    std::fill(second.values().begin(), second.values().end(), 2);
    REQUIRE(talweg_attach(client.get(), node.tensor, first.data()) == TALWEG_OK);
    CHECK(talweg_attach(client.get(), node.tensor, second.data()) == TALWEG_BUSY);
    CHECK_THAT(talweg_last_error(), Contains("'t'") && Contains("detach"));
    REQUIRE(talweg_detach(client.get(), node.tensor) == TALWEG_OK);
    REQUIRE(talweg_attach(client.get(), node.tensor, second.data()) == TALWEG_OK);
    CHECK(AllAre(first.values(), 1));
    CHECK(AllAre(Buffer(client, node.tensor), 2));
  }
  CHECK(AllAre(second.values(), 2));
  std::fill(second.values().begin(), second.values().end(), 9);
  CHECK(AllAre(second.values(), 9));
}

TEST_CASE("Attached: a place that has been unmapped is forgotten") {
  const Node node(1, 5000);
  const TestClient& client = node.clients[0];
  {
    const Allocation allocation(5000);
    REQUIRE(talweg_attach(client.get(), node.tensor, allocation.data()) == TALWEG_OK);
  }
  const Allocation next(5000);  // It most likely has the address of the other.
  std::fill(next.values().begin(), next.values().end(), 5);
  CHECK(talweg_attach(client.get(), node.tensor, next.data()) == TALWEG_BUSY);
  REQUIRE(talweg_attach(client.get(), node.tensor, nullptr) == TALWEG_OK);
  REQUIRE(talweg_detach(client.get(), node.tensor) == TALWEG_OK);  // The buffer itself is detached.
  CHECK(AllAre(next.values(), 5));
  REQUIRE(talweg_attach(client.get(), node.tensor, next.data()) == TALWEG_OK);
  CHECK(AllAre(Buffer(client, node.tensor), 5));
}

TEST_CASE("Attached: bytes that are written there after a goodbye are in no sum") {
  constexpr size_t kCount = 300'000;
  Node node(2, kCount);
  const TestClient& leaver = node.clients[1];
  const Allocation allocation(kCount);
  const std::span<int32_t> place = allocation.values();
  std::fill(place.begin(), place.end(), 1);
  REQUIRE(talweg_attach(leaver.get(), node.tensor, allocation.data()) == TALWEG_OK);
  Push(leaver, node.tensor, nullptr);
  Push(node.clients[0], node.tensor, std::vector<int32_t>(kCount, 4).data());
  while (talweg_poll(node.clients[0].get(), node.tensor, 1) == TALWEG_PENDING) {
    std::this_thread::yield();
  }
  REQUIRE(talweg_shutdown(leaver.get(), kGenerousNs) == TALWEG_OK);
  REQUIRE(talweg_detach(leaver.get(), node.tensor) == TALWEG_OK);
  std::fill(place.begin(), place.end(), 1000);
  CHECK(AllAre(Take<int32_t>(node.clients[0], node.tensor, 1, kCount), 5));
  CHECK(AllAre(place, 1000));
}

TEST_CASE("Attached: a place that cannot be attached is refused") {
  const Node node(1, 5000);
  const TestClient& client = node.clients[0];
  const Allocation allocation(5000);
  CHECK(talweg_attach(nullptr, node.tensor, allocation.data()) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_attach(client.get(), 77, allocation.data()) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_attach(client.get(), node.tensor, allocation.values().data() + 16) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("'t'") && Contains("begins a page"));

  void* const alone = ::mmap(nullptr, 5000 * sizeof(int32_t), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(alone != MAP_FAILED);
  const std::span<int32_t> values(static_cast<int32_t*>(alone), 5000);
  std::fill(values.begin(), values.end(), 6);
  CHECK(talweg_attach(client.get(), node.tensor, alone) == TALWEG_UNSUPPORTED);
  CHECK_THAT(talweg_last_error(), Contains("'t'") && Contains("MAP_SHARED"));
  CHECK(AllAre(values, 6));
  ::munmap(alone, values.size_bytes());
  CHECK(talweg_attach(client.get(), node.tensor, alone) == TALWEG_UNSUPPORTED);

  const talweg_tensor copied = Declare(client, 5000, TALWEG_I32, TALWEG_SUM, 0, "copied");
  CHECK(talweg_attach(client.get(), copied, allocation.data()) == TALWEG_UNSUPPORTED);
  CHECK_THAT(talweg_last_error(), Contains("'copied'") && Contains("in place"));
}

TEST_CASE("Detached: a result that is detached stays, and rounds go on elsewhere") {
  constexpr size_t kCount = 300'001;
  const Node node(2, kCount);
  std::vector<std::span<int32_t>> kept;
  for (int32_t round = 1; round <= 4; ++round) {
    for (const TestClient& client : node.clients) {
      const std::span<int32_t> own = Buffer(client, node.tensor);
      std::fill(own.begin(), own.end(), round);
      Push(client, node.tensor, nullptr);
    }
    CHECK(talweg_detach(node.clients[0].get(), node.tensor) == TALWEG_BUSY);
    for (const TestClient& client : node.clients) {
      REQUIRE(talweg_wait(client.get(), node.tensor, static_cast<talweg_round>(round), nullptr,
                          kGenerousNs) == TALWEG_OK);
      const std::span<int32_t> own = Buffer(client, node.tensor);
      CHECK(own[0] == 2 * round);
      CHECK(own[kCount - 1] == 2 * round);
    }
    // Rank 0 detaches in each round, and the other rank once.
    for (uint32_t i = 0; i < 2; ++i) {
      if (i == 1 && round != 2) continue;
      kept.push_back(Buffer(node.clients[i], node.tensor));
      REQUIRE(talweg_detach(node.clients[i].get(), node.tensor) == TALWEG_OK);
      CHECK(Buffer(node.clients[i], node.tensor).data() != kept.back().data());
    }
  }
  const std::vector<int32_t> rounds = {1, 2, 2, 3, 4};
  for (size_t i = 0; i < kept.size(); ++i) {
    CHECK((std::vector<int32_t>(kept[i].begin(), kept[i].end()) ==
           std::vector<int32_t>(kCount, 2 * rounds[i])));
    std::fill(kept[i].begin(), kept[i].end(), -1);  // The caller may write to it.
  }
  CHECK(Buffer(node.clients[0], node.tensor)[0] == 8);
  CHECK(Buffer(node.clients[1], node.tensor)[0] == 8);
}

TEST_CASE("Attached, in place: a forked child sees zeros of its own") {
  const Node node(1, 5000);
  const Allocation allocation(5000);
  REQUIRE(talweg_attach(node.clients[0].get(), node.tensor, allocation.data()) == TALWEG_OK);
  const std::span<int32_t> own = Buffer(node.clients[0], node.tensor);
  const std::span<int32_t> place = allocation.values();
  std::fill(own.begin(), own.end(), 7);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool zeros = talweg_health(node.clients[0].get()) == TALWEG_FORKED;
    for (const std::span<int32_t> values : {own, place}) {
      for (int32_t& value : values) zeros = std::exchange(value, 1) == 0 && zeros;
    }
    ::_exit(zeros ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(AllAre(place, 7));
}

}  // namespace
}  // namespace talweg::c
