// SPDX-License-Identifier: Apache-2.0

// The memory that an agent shares with its ranks, on hosts and on GPUs.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "libs/shm/daemon/arena.h"
#include "libs/shm/daemon/rank_server_fixture.h"

namespace talweg::shm {
namespace {

using Catch::Matchers::Contains;

// Returns how many kB of a mapping lie in huge pages, by the kernel's word.
uint64_t HugeKb(const std::byte* address) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool found = false;
  while (std::getline(maps, line)) {
    uint64_t begin = 0;
    uint64_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      found = begin <= at && at < end;
    }
    uint64_t kb = 0;
    if (found && std::sscanf(line.c_str(), "ShmemPmdMapped: %lu kB", &kb) == 1) return kb;
  }
  return 0;
}

TEST_CASE("Large buffers lie in huge pages, where the kernel gives them") {
  constexpr uint64_t kHuge = Mapping::kHugePageBytes;
  for (const SegmentUse use : {SegmentUse::kContribution, SegmentUse::kResult}) {
    uint32_t next_segment = 1;
    ArenaBudget budget{.bytes_max = 64 * kHuge};
    Arena arena({.use = use, .segment_bytes_min = 8 * kHuge, .owner = "x"}, &budget, &next_segment);
    REQUIRE(arena.Allocate(1000).value().unbacked.Back().ok());
    auto large = arena.Allocate(3 * kHuge);
    REQUIRE(large.ok());
    REQUIRE(large.value().unbacked.Back().ok());
    Arena::Part* part = arena.Find(large.value().location.segment);
    REQUIRE(part != nullptr);
    // The rest of the last huge page belongs to the next buffer.
    CHECK(part->place->backed() == 4 * kHuge);
    for (const std::byte byte : large.value().bytes) REQUIRE(byte == std::byte{0});
    const uint64_t huge_kb = HugeKb(part->segment().mapping.data());
    if (huge_kb == 0) {
      WARN("SKIPPED: this kernel gives no huge pages");
      continue;
    }
    CHECK(huge_kb == 4 * kHuge / 1024);
  }
}

TEST_CASE("Arenas of one owner share its limit, and a tensor in one place has pages of its own") {
  uint32_t next_segment = 1;
  ArenaBudget budget{.bytes_max = 5 * kPageBytes};
  const auto config = [](SegmentUse use) {
    return Arena::Config{.use = use, .segment_bytes_min = 16 * kPageBytes, .owner = "rank 3"};
  };
  Arena apart(config(SegmentUse::kContribution), &budget, &next_segment);
  Arena places(config(SegmentUse::kOnePlace), &budget, &next_segment);
  REQUIRE(apart.Allocate(2 * kPageBytes).ok());
  for (uint64_t i = 0; i < 2; ++i) {
    const auto place = places.Allocate(100);
    REQUIRE(place.ok());
    CHECK(place.value().location.offset == i * kPageBytes);
    place.value().bytes[99] = std::byte{1};
  }
  CHECK(budget.used == 4 * kPageBytes);
  for (Arena* arena : {&apart, &places}) {
    const auto refused = arena->Allocate(2 * kPageBytes);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.failure().status == RankStatus::kOutOfMemory);
    CHECK_THAT(refused.failure().text, Contains("rank 3") && Contains("16 KiB are used"));
  }
  apart.Clear();
  CHECK(budget.used == 2 * kPageBytes);
  CHECK(places.Allocate(2 * kPageBytes).ok());
}

TEST_CASE_METHOD(RankServerFixture, "Control, contribution and result segments are sealed") {
  RawRank rank(*this);
  rank.Join();
  rank.Declare("t");
  REQUIRE(rank.fds().size() == 3);  // The descriptors are for control, contributions and results.
  for (const Descriptor& fd : rank.fds()) {
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    CHECK((seals & F_SEAL_SHRINK) != 0);
    CHECK((seals & F_SEAL_GROW) != 0);
    CHECK((seals & F_SEAL_SEAL) != 0);
    CHECK(::ftruncate(fd.get(), 0) != 0);
  }
  const int result = rank.fds()[2].get();
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, result, 0) == MAP_FAILED);
  CHECK(::pwrite(result, "x", 1, 0) == -1);
  // Opening the file anew does not help either.
  const Descriptor anew(::open(("/proc/self/fd/" + std::to_string(result)).c_str(), O_RDWR));
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, anew.get(), 0) == MAP_FAILED);
  // Another tensor fits into the segments that the rank has.
  rank.Declare("u");
  CHECK(rank.fds().size() == 3);
}

TEST_CASE_METHOD(RankServerFixture, "Ranks that sum in place write each other's contributions") {
  sink.shared["t"] =
      server->PlanContribution(BufferShape::Of(kOneFloat, 4), /*in_place=*/true).value();
  CHECK(sink.shared["t"].offset % kPageBytes == 0);
  std::array<RawRank, 2> ranks = {RawRank(*this), RawRank(*this)};
  for (RawRank& rank : ranks) {
    rank.Join();
    rank.Declare("t");
    CHECK(rank.summed_by() == SummedBy::kRanksInPlace);
    rank.Push(0, 1);
  }
  Settle();
  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(1)});
  for (RawRank& rank : ranks) {
    const Message* message = rank.Receive();
    REQUIRE(message != nullptr);
    REQUIRE(std::holds_alternative<Peer>(message->body));
    CHECK(Mapping::Map(rank.fds().back().get(), 4096, Mapping::Access::kReadWrite).valid());
  }
  // A rank that would misread the tensor gets an error.
  RawRank older(*this);
  older.Join(kInPlaceMinor - 1);
  older.Send(
      {.request = 6,
       .body = Declare{.dtype = DType::kF32, .op = Op::kSum, .element_count = 1, .name = "t"}});
  const Message* message = older.Receive();
  REQUIRE(message != nullptr);
  const auto* declared = std::get_if<Declared>(&message->body);
  REQUIRE(declared != nullptr);
  CHECK(declared->status == RankStatus::kVersionMismatch);
  CHECK_THAT(std::string(declared->text), Contains("in place") && Contains("release"));
}

TEST_CASE_METHOD(RankServerFixture, "A rank that keeps all parts hears that the others do not") {
  const Collective gather = {DType::kF32, Op::kCopy, Share::kOwn, Share::kWhole, 1};
  sink.shared["t"] = server->PlanContribution(BufferShape::Of(gather, 4), false).value();
  for (const uint16_t minor : {kOwnPartsMinor, uint16_t{kOwnPartsMinor - 1}}) {
    RawRank rank(*this);
    rank.Join(minor);
    rank.Send({.request = 6,
               .body = Declare{.dtype = DType::kF32,
                               .op = Op::kCopy,
                               .element_count = 1,
                               .name = "t",
                               .gives = Share::kOwn,
                               .gets = Share::kWhole}});
    const Message* message = rank.Receive();
    REQUIRE(message != nullptr);
    const auto* declared = std::get_if<Declared>(&message->body);
    REQUIRE(declared != nullptr);
    CHECK((declared->status == RankStatus::kOk) == (minor == kOwnPartsMinor));
    if (minor == kOwnPartsMinor) continue;
    CHECK(declared->status == RankStatus::kVersionMismatch);
    CHECK_THAT(std::string(declared->text), Contains("parts") && Contains("release"));
  }
}

TEST_CASE_METHOD(RankServerFixture,
                 "Ranks that sum get each other's contributions, and can only read them") {
  sink.shared["t"] =
      server->PlanContribution(BufferShape::Of(kOneFloat, 4), /*in_place=*/false).value();
  std::vector<std::unique_ptr<RawRank>> ranks;
  for (int i = 0; i < 3; ++i) {
    ranks.push_back(std::make_unique<RawRank>(*this));
    ranks.back()->Join();
    ranks.back()->Declare("t");
    // The descriptors are for control and contributions. There are none for results.
    REQUIRE(ranks.back()->fds().size() == 2);
  }
  // Maps its own contribution, as a client does before it pushes.
  std::vector<Mapping> own;
  for (const auto& rank : ranks) {
    own.push_back(Mapping::Map(rank->fds()[1].get(), 4096, Mapping::Access::kReadWrite));
    REQUIRE(own.back().valid());
    rank->Push(0, 1);
  }
  Settle();
  REQUIRE(sink.pushes.size() == 3);
  ranks[2]->Close();  // A rank that has left still counts.
  Settle();
  for (uint64_t round = 1; round <= 2; ++round) {
    server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(round)});
  }
  for (uint32_t i = 0; i < 2; ++i) {
    CAPTURE(i);
    CHECK(ranks[i]->control().tensor_state(0).completed_round == 2);
    std::set<uint32_t> peers;
    for (int k = 0; k < 2; ++k) {
      const Message* message = ranks[i]->Receive();
      REQUIRE(message != nullptr);
      const auto* peer = std::get_if<Peer>(&message->body);
      REQUIRE(peer != nullptr);
      CHECK(peer->part == 0);
      const int fd = ranks[i]->fds().back().get();
      CHECK(peer->bytes == static_cast<uint64_t>(::lseek(fd, 0, SEEK_END)));
      CHECK(peers.insert(peer->local_rank).second);
      own[peer->local_rank].data()[0] = std::byte(static_cast<unsigned char>(77 + i));
      const Mapping theirs = Mapping::Map(fd, 4096, Mapping::Access::kRead);
      REQUIRE(theirs.valid());
      CHECK(theirs.data()[0] == std::byte(static_cast<unsigned char>(77 + i)));
      CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
      const Descriptor anew(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR));
      CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, anew.get(), 0) == MAP_FAILED);
      CHECK((::fcntl(fd, F_GET_SEALS) & F_SEAL_SEAL) != 0);
    }
    CHECK(!peers.contains(i));
  }
}

template <typename Answer>
Answer Ask(RawRank& rank, const MessageBody& question) {
  rank.Send({.request = 77, .body = question});
  const Message* message = rank.Receive();
  REQUIRE(message != nullptr);
  CHECK(message->request == 77);
  const auto* answer = std::get_if<Answer>(&message->body);
  REQUIRE(answer != nullptr);
  return *answer;
}

constexpr uint64_t OnDevice(uint32_t buffer) {
  return kPushOnDevice | uint64_t{buffer} << kPushBufferShift;
}

TEST_CASE("A rank offers memory of GPUs, names it in pushes, and asks to take it back") {
  RankServerFixture fixture(true);
  RawRank rank(fixture);
  rank.Join();
  const auto exported = Ask<Exported>(rank, Export{.uuid = {3}, .buffer_id = 40});
  CHECK(exported.status == RankStatus::kOk);
  CHECK(exported.buffer == 7);
  CHECK(exported.bytes == 43);
  rank.Declare("t", kDeclareOnDevice);
  CHECK(fixture.sink.declarations[0].on_device);
  CHECK(Ask<Placed>(rank, Place{0, 5}).pushed[0] == 5);
  CHECK(Ask<Placed>(rank, Place{.tensor = 0, .buffer = 5, .signature = 77}).pushed[0] == 5);
  CHECK(fixture.sink.placed_as == std::vector<RoundSignature>{0, 77});
  Declare gather = Declare::Of({DType::kF32, Op::kCopy, Share::kOwn, Share::kWhole, 1}, "g");
  gather.flags = kDeclareOnDevice;
  const auto refused = Ask<Declared>(rank, gather);
  CHECK(refused.status == RankStatus::kUnsupported);
  CHECK_THAT(std::string(refused.text), Contains("f32[1] all_gather of 4 ranks"));
  CHECK(Ask<Unexported>(rank, Unexport{7}).status == RankStatus::kBusy);
  rank.Push(0, 1, OnDevice(7), 64);
  fixture.Settle();
  REQUIRE(fixture.sink.places.size() == 1);
  CHECK(fixture.sink.places[0].buffer == 7);
  CHECK(fixture.sink.places[0].offset == 64);
  CHECK_FALSE(fixture.sink.places[0].again);
  fixture.server->PublishEventsLost(fixture.sink.connections[0]);
  CHECK(rank.control().agent_line().events_lost.load() == 1);
  rank.Push(0, 1, OnDevice(7) | kPushAgain, 128);
  fixture.Settle();
  REQUIRE(fixture.sink.places.size() == 2);
  CHECK(fixture.sink.places[1].again);
  CHECK(fixture.server->counters().pushes == 1);
  fixture.server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(1)});
  rank.Push(0, 1, OnDevice(7) | kPushAgain, 128);  // This comes too late: nobody needs the push.
  fixture.Settle();
  CHECK(fixture.sink.places.size() == 2);
  std::string text;
  SECTION("A rank pushes again for a round that is not the last") {
    rank.Push(0, 2, OnDevice(7) | kPushAgain);
    text = "a push of round 2 of tensor 0, whose last round is 1";
  }
  SECTION("A rank pushes again from host memory") {
    rank.Push(0, 1, kPushAgain);
    text = "unknown flags 2";
  }
  SECTION("A rank pushes from host memory where it has none") {
    rank.Push(0, 2);
    text = "a push from host memory of tensor 0, which it has declared on a GPU";
  }
  SECTION("A rank pushes from a buffer that the agent does not know") {
    rank.Push(0, 2, OnDevice(9));
    text = "there is no buffer 9";
  }
  SECTION("A rank names a buffer without the flag") {
    rank.Push(0, 2, uint64_t{7} << kPushBufferShift);
    text = "unknown flags";
  }
  SECTION("A rank asks for a place for a tensor that it has not declared") {
    rank.Send({.request = 77, .body = Place{1, 5}});
    text = "a place for tensor 1, which it has not declared";
  }
  CHECK_THAT(LastWords(rank, RankStatus::kProtocol), Contains(text));
  CHECK(fixture.sink.gone.size() == 1);
}

TEST_CASE_METHOD(RankServerFixture, "An agent without GPUs says so, and goes on") {
  RawRank rank(*this);
  rank.Join();
  const auto exported = Ask<Exported>(rank, Export{});
  CHECK(exported.status == RankStatus::kUnsupported);
  CHECK_THAT(std::string(exported.text), Contains("--gpu=off"));
  CHECK(Ask<Unexported>(rank, Unexport{}).status == RankStatus::kUnsupported);
  const auto declared = Ask<Declared>(
      rank,
      Declare{.dtype = DType::kF32, .op = Op::kSum, .element_count = 1, .name = "g", .flags = 1});
  CHECK(declared.status == RankStatus::kUnsupported);
  rank.Declare("t");
  CHECK(Ask<Placed>(rank, Place{}).status == RankStatus::kUnsupported);
  rank.Push(0, 1, OnDevice(0));
  CHECK_THAT(LastWords(rank, RankStatus::kProtocol), Contains("unknown flags 1"));
}

}  // namespace
}  // namespace talweg::shm
