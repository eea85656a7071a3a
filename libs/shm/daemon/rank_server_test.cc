// SPDX-License-Identifier: Apache-2.0

// The agent's side against ranks that break the protocol. The tests write their bytes.

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libs/shm/daemon/rank_server_fixture.h"

namespace talweg::shm {
namespace {

using Catch::Matchers::Contains;

// As long as one lives, the process gets no more descriptors.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const Descriptor probe(::dup(0));
    rlimit tight = before_;
    tight.rlim_cur = static_cast<rlim_t>(probe.get());
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
    for (;;) {
      Descriptor filler(::dup(0));
      if (!filler.valid()) break;
      fill_.push_back(std::move(filler));
    }
  }
  ~NoDescriptorsLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptorsLeft(const NoDescriptorsLeft&) = delete;
  NoDescriptorsLeft& operator=(const NoDescriptorsLeft&) = delete;

 private:
  rlimit before_{};
  std::vector<Descriptor> fill_;
};

TEST_CASE_METHOD(RankServerFixture,
                 "Only its owner may use the socket, and the socket's file goes with the server") {
  struct stat status {};
  REQUIRE(::stat(directory.Path("a.sock").c_str(), &status) == 0);
  CHECK(S_ISSOCK(status.st_mode));
  CHECK((status.st_mode & 0777) == 0600);
  server.reset();
  CHECK(::stat(directory.Path("a.sock").c_str(), &status) != 0);
}

TEST_CASE_METHOD(RankServerFixture,
                 "The socket of a living agent is not taken over, and the error names its pid") {
  RankServerConfig config = server->config();
  const auto second = RankServer::Create(config);
  REQUIRE_FALSE(second.ok());
  CHECK_THAT(second.failure().text,
             Contains(directory.Path("a.sock")) && Contains("pid " + std::to_string(::getpid())));
  Settle();
  RawRank(*this).Join();  // The first rank is not affected.
}

TEST_CASE_METHOD(RankServerFixture, "A server leaves a successor's socket alone") {
  ::unlink(directory.Path("a.sock").c_str());
  const auto successor = RankServer::Create(server->config());
  REQUIRE(successor.ok());
  server.reset();
  CHECK(::access(directory.Path("a.sock").c_str(), F_OK) == 0);
}

TEST_CASE("What lies at the socket's path is replaced, or the server refuses to start") {
  const TestDirectory directory;
  RankServerConfig config;
  config.socket_path = directory.Path("a.sock");
  SECTION("A dead agent's socket is replaced") {
    Descriptor dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, config.socket_path.c_str());
    REQUIRE(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    dead.Reset();
    CHECK(RankServer::Create(config).ok());
  }
  SECTION("A file is not replaced") {
    std::ofstream(config.socket_path) << "precious";
    const auto server = RankServer::Create(config);
    REQUIRE_FALSE(server.ok());
    CHECK_THAT(server.failure().text, Contains("not a socket is there"));
    CHECK(::access(config.socket_path.c_str(), R_OK) == 0);
  }
  SECTION("The path's directory does not exist") {
    config.socket_path = directory.Path("a.sock") + "/no/such/a.sock";
    const auto server = RankServer::Create(config);
    REQUIRE_FALSE(server.ok());
    CHECK_THAT(server.failure().text, Contains("create the directory"));
  }
  SECTION("The path is too long") {
    config.socket_path = "/tmp/" + std::string(150, 'x');
    const auto server = RankServer::Create(config);
    REQUIRE_FALSE(server.ok());
    CHECK_THAT(server.failure().text, Contains("155 bytes") && Contains("107"));
  }
}

TEST_CASE_METHOD(RankServerFixture, "A stranger hears why it is dropped, and ranks go on") {
  RawRank good(*this);
  good.Join();
  RawRank bad(*this);
  std::string expected;
  SECTION("It sends other bytes") {
    bad.SendBytes("GET / HTTP/1.1\r\n\r\n", 18);
    CHECK_THAT(LastWords(bad, RankStatus::kProtocol), Contains("magic"));
  }
  SECTION("It sends the length of a gigabyte") {
    std::array<uint32_t, 4> header = {kMessageMagic, 1, 1u << 30, 0};
    bad.SendBytes(header.data(), sizeof(header));
    CHECK_THAT(LastWords(bad, RankStatus::kProtocol), Contains("64 KiB"));
  }
  SECTION("It sends an unknown type") {
    std::array<uint32_t, 4> header = {kMessageMagic, 999, 0, 0};
    bad.SendBytes(header.data(), sizeof(header));
    CHECK_THAT(LastWords(bad, RankStatus::kProtocol), Contains("unknown type"));
  }
  SECTION("It declares before its hello") {
    bad.Send({.body = shm::Declare{
                  .dtype = DType::kF32, .op = Op::kSum, .element_count = 1, .name = "x"}});
    CHECK_THAT(LastWords(bad, RankStatus::kProtocol), Contains("Declare message out of place"));
  }
  SECTION("It sends an agent's message") {
    bad.Send({.body = Wake{}});
    CHECK_THAT(LastWords(bad, RankStatus::kProtocol), Contains("Wake message out of place"));
  }
  SECTION("It has another major version") {
    std::array<std::byte, 200> bytes{};
    const size_t count = EncodeMessage({.body = Hello{.major = 9, .minor = 4}}, bytes);
    bad.SendBytes(bytes.data(), count);
    CHECK_THAT(LastWords(bad, RankStatus::kVersionMismatch), Contains("9.4") && Contains("1.12"));
  }
  SECTION("It sends half a message, then the end") {
    bad.SendBytes(&kMessageMagic, 4);
    Settle();
    bad.Close();
    Settle();
  }
  SECTION("It sends descriptors, which are not wanted") {
    // The kernel drops the descriptors. The test sees only that the server goes on.
    std::array<std::byte, 300> bytes{};
    const size_t count = EncodeMessage({.body = Hello{.client_name = "x"}}, bytes);
    iovec part{bytes.data(), count};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = bad.fd();
    std::memcpy(CMSG_DATA(item), &fd, sizeof(fd));
    REQUIRE(::sendmsg(bad.fd(), &header, 0) == static_cast<ssize_t>(count));
    CHECK(std::holds_alternative<Welcome>(bad.Receive()->body));
  }
  good.Declare("t");
  good.Push(0, 1);
  Settle();
  CHECK(sink.pushes == std::vector<std::pair<uint32_t, uint64_t>>{{0, 1}});
  CHECK(sink.gone.empty());
}

TEST_CASE_METHOD(RankServerFixture, "A rank of another minor version is served like all others") {
  RawRank newer(*this);
  newer.Join(kProtocolMinor + 7);
  newer.Declare("t");
  newer.Push(0, 1);
  Settle();
  CHECK(sink.pushes == std::vector<std::pair<uint32_t, uint64_t>>{{0, 1}});
}

TEST_CASE_METHOD(RankServerFixture, "A rank that knows no tensors in one place gets none") {
  const uint16_t minor = GENERATE(uint16_t{kOnePlaceMinor - 1}, kOnePlaceMinor);
  RawRank rank(*this);
  rank.Join(minor);
  rank.Declare("apart");
  rank.Declare("t", kDeclareInPlace);
  REQUIRE(sink.declarations.size() == 2);
  CHECK_FALSE(sink.declarations[0].one_place);
  CHECK(sink.declarations[1].in_place);
  CHECK(sink.declarations[1].one_place == (minor == kOnePlaceMinor));
}

// Returns an all_gather of three floats from each of ranks 0 and 2.
constexpr std::array<uint32_t, 2> kSomeRanks = {0, 2};
Declare SomeGather() {
  Declare declare =
      Declare::Of({DType::kF32, Op::kCopy, Share::kOwn, Share::kWhole, 3}, "some gather");
  declare.ranks = RankList(kSomeRanks);
  return declare;
}

TEST_CASE_METHOD(RankServerFixture,
                 "A push in parts is delivered with its lengths and its signature") {
  RawRank rank(*this);
  rank.Join();
  rank.Declare(SomeGather());
  REQUIRE(sink.declarations.size() == 1);
  const RankDeclaration& declaration = sink.declarations[0];
  CHECK(declaration.collective.name() == "all_gather");
  CHECK(declaration.ranks == std::vector<uint32_t>{0, 2});
  CHECK(declaration.rank_count == 2);
  CHECK(declaration.bytes() == 2 * 64);
  rank.MapContribution();
  auto* table =
      reinterpret_cast<uint32_t*>(rank.contribution() + declaration.shape().table_offset());
  const auto complete = [&](uint64_t round) {
    Settle();
    server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(round)});
  };
  rank.Push(0, 1);
  complete(1);
  table[0] = 8;
  table[1] = 99;  // This part is not its own.
  rank.Push(0, 2, kPushInParts, 0x1234);
  complete(2);
  table[0] = 0;
  rank.Push(0, 3, kPushInParts);
  complete(3);
  table[0] = 12;  // The part is full.
  rank.Push(0, 4, kPushInParts, 0x1235);
  complete(4);
  CHECK(sink.signatures == std::vector<RoundSignature>{0, 0x1234, 0, 0x1235});
  CHECK(sink.lengths == std::vector<std::vector<uint32_t>>{{}, {8, 0}, {0, 0}, {}});
  std::string text;
  SECTION("A length is past a full part") {
    table[0] = 16;
    rank.Push(0, 5, kPushInParts);
    text = "16 bytes as its part 0";
  }
  SECTION("A length is not a number of whole elements") {
    table[0] = 6;
    rank.Push(0, 5, kPushInParts);
    text = "6 bytes as its part 0";
  }
  SECTION("Parts come in a buffer on a GPU") {
    rank.Push(0, 5, kPushInParts | kPushOnDevice);
    text = "unknown flags 5";
  }
  CHECK_THAT(LastWords(rank, RankStatus::kProtocol), Contains(text));
  CHECK(sink.pushes.size() == 4);
}

TEST_CASE_METHOD(RankServerFixture, "A declaration of an impossible collective is refused") {
  RawRank rank(*this);
  rank.Join();
  Declare declare = SomeGather();
  std::vector<uint32_t> ranks = {0, 2};
  std::string text;
  SECTION("There is no such combination") {
    declare.gets = Share::kColumn;
    text = "there is no collective that gives 3 and gets 5";
  }
  SECTION("A collective that copies has a sum") {
    declare.op = Op::kSum;
    text = "all_gather copies, and has no sum";
  }
  SECTION("Only one of the two shares is given") {
    declare.gives = Share::kUnspecified;
    text = "there is no collective";
  }
  SECTION("There is no such rank") {
    ranks = {0, 4};
    text = "rank 4 of its group does not exist: the job has 4 ranks";
  }
  SECTION("A rank is named twice") {
    ranks = {0, 2, 2};
    text = "ascending order";
  }
  SECTION("The group lacks the rank itself") {
    ranks = {1, 2};
    text = "rank 0 declares it, and is not in its group of 2 ranks";
  }
  SECTION("The root is outside the group") {
    declare.gets = Share::kRoot;
    declare.root_rank = 3;
    text = "root rank 3 is not in its group of 2 ranks";
  }
  SECTION("The root is outside the job") {
    declare.gets = Share::kRoot;
    declare.root_rank = 4;
    text = "root rank 4 does not exist: the job has 4 ranks";
  }
  SECTION("The tensor is too large") {
    declare.element_count = uint64_t{3} << 30;
    text = "of 2 ranks passes the limit of 16 GiB";
  }
  declare.ranks = RankList(ranks);
  rank.Send({.request = 9, .body = declare});
  const Message* message = rank.Receive();
  REQUIRE(message != nullptr);
  const auto* declared = std::get_if<Declared>(&message->body);
  REQUIRE(declared != nullptr);
  CHECK(declared->status == RankStatus::kInvalidArgument);
  CHECK_THAT(std::string(declared->text), Contains("'some gather'") && Contains(text));
  CHECK(sink.declarations.empty());
}

TEST_CASE_METHOD(
    RankServerFixture,
    "A group of all ranks counts as no group, and a root only where the collective has one") {
  RawRank rank(*this);
  rank.Join();
  const std::vector<uint32_t> all = {0, 1, 2, 3};
  Declare declare = Declare::Of({DType::kI8, Op::kMax, Share::kWhole, Share::kOwn, 0}, "t");
  declare.ranks = RankList(all);
  declare.root_rank = 3;  // This collective has no root.
  rank.Declare(declare);
  CHECK(sink.declarations[0].ranks.empty());
  CHECK(sink.declarations[0].rank_count == 4);
  CHECK(sink.declarations[0].root_rank == 0);
  // Each empty part takes a cache line.
  CHECK(sink.declarations[0].bytes() == 4 * kCacheLineBytes);
}

TEST_CASE_METHOD(RankServerFixture, "A question is answered after all pushes so far") {
  RawRank rank(*this);
  rank.Join();
  rank.Declare("t");
  RawRank other(*this);
  other.Join();
  other.Declare("t");  // It is tensor 1.
  SECTION("The question is about a tensor of its own") {
    rank.Push(0, 1);
    other.Push(1, 1);
    rank.Send({.request = 9, .body = Ask{.tensor = 0, .round = 1}});
    const Message* message = rank.Receive();
    REQUIRE(message != nullptr);
    CHECK(message->request == 9);
    REQUIRE(std::holds_alternative<Told>(message->body));
    CHECK(std::get<Told>(message->body).text == "2 pushes, round 1 of tensor 0");
  }
  SECTION("The question is about another rank's tensor") {
    rank.Send({.request = 9, .body = Ask{.tensor = 1, .round = 1}});
    CHECK_THAT(LastWords(rank, RankStatus::kProtocol), Contains("tensor 1, which it has not"));
  }
}

TEST_CASE_METHOD(RankServerFixture, "Two declarations with one number are garbage") {
  sink.answers = false;
  RawRank rank(*this);
  rank.Join();
  rank.Send({.request = 3, .body = Declare::Of(kOneFloat, "a")});
  rank.Send({.request = 4, .body = Declare::Of(kOneFloat, "b")});
  rank.Send({.request = 3, .body = Declare::Of(kOneFloat, "c")});
  CHECK_THAT(LastWords(rank, RankStatus::kProtocol), Contains("not answered yet, 3"));
  CHECK(sink.declarations.size() == 2);
}

TEST_CASE_METHOD(RankServerFixture,
                 "Garbage in a ring ends only its rank, and the text says what it was") {
  RawRank good(*this);
  good.Join();
  good.Declare("t");
  RawRank bad(*this);
  bad.Join();
  bad.Declare("t");  // It is tensor 1.
  std::string text;
  SECTION("There is no such tensor") {
    bad.Push(63, 1);
    text = "tensor 63, which it has not declared";
  }
  SECTION("The tensor's number is far too large") {
    bad.Push(0xffffffff, 1);
    text = "tensor 4294967295, which it has not declared";
  }
  SECTION("The tensor is another rank's") {
    bad.Push(0, 1);
    text = "tensor 0, which it has not declared";
  }
  SECTION("The round has not come yet") {
    bad.Push(1, 2);
    text = "round 2 of tensor 1, whose next round is 1";
  }
  SECTION("A second round would be open") {
    bad.Push(1, 1);
    bad.Push(1, 2);
    text = "while its round 1 is open";
  }
  SECTION("The flags are of another version") {
    bad.Push(1, 1, 8);
    text = "unknown flags 8";
  }
  SECTION("The tail is beyond the ring") {
    bad.control().rank_line().submitted.store(9);
    text = "beyond the ring";
  }
  SECTION("The tail goes back") {
    bad.control().rank_line().submitted.store(uint64_t(-1));
    text = "beyond the ring";
  }
  CHECK_THAT(LastWords(bad, RankStatus::kProtocol), Contains(text));
  CHECK(bad.control().agent_line().state.load() == uint32_t(JobState::kFailed));
  REQUIRE(sink.gone.size() == 1);
  CHECK_FALSE(sink.gone[0].clean);
  CHECK_THAT(sink.gone[0].text, Contains("local rank 1") && Contains(text));
  CHECK(server->counters().protocol_errors == 1);
  good.Push(0, 1);
  Settle();
  CHECK(sink.pushes.back() == std::pair<uint32_t, uint64_t>{0, 1});
  RawRank successor(*this);
  successor.Join();
  CHECK(sink.hellos.back().local_rank == LocalRank(1));
}

TEST_CASE_METHOD(RankServerFixture,
                 "A rank may write all over its control segment without harm to the agent") {
  RawRank bad(*this);
  bad.Join();
  bad.Declare("t");
  std::memset(static_cast<void*>(&bad.control().header()), 0xff, 0x100);
  std::memset(static_cast<void*>(&bad.control().agent_line()), 0xff, 64);
  std::memset(static_cast<void*>(&bad.control().consumed_line()), 0xff, 64);
  std::memset(static_cast<void*>(&bad.control().tensor_state(0)), 0xff, 64 * 64);
  bad.Push(0, 1);
  Settle();
  CHECK(sink.pushes.size() == 1);
  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(1)});
  CHECK(bad.control().tensor_state(0).completed_round.load() == 1);
  CHECK(bad.control().consumed_line().consumed.load() == 1);
}

TEST_CASE_METHOD(RankServerFixture,
                 "A round that is reported over again, for a late rank, opens no round again") {
  RawRank rank(*this);
  rank.Join();
  rank.Declare("t");
  Settle();
  const auto abort = [this](uint64_t round) {
    server->PublishCompletion({.tensor = TensorIndex(0),
                               .round = Round(round),
                               .status = RankStatus::kAborted,
                               .text = "the root of round " + std::to_string(round)});
  };
  for (const uint64_t round : {1, 2}) {
    rank.Push(0, round);
    CHECK(server->PollRings(sink) == 1);
    abort(round);
  }
  abort(1);
  CHECK(rank.control().tensor_state(0).completed_round.load() == 2);
  rank.Push(0, 3);
  CHECK(server->PollRings(sink) == 1);
  CHECK(sink.pushes.size() == 3);
}

TEST_CASE_METHOD(
    RankServerFixture,
    "A goodbye is answered after the pushes before it, and a silent end is not clean") {
  RawRank polite(*this);
  polite.Join();
  polite.Declare("t");
  RawRank silent(*this);
  silent.Join();
  polite.Push(0, 1);
  polite.Send({.body = Goodbye{}});
  const Message* answer = polite.Receive();
  REQUIRE(answer != nullptr);
  CHECK(std::holds_alternative<Goodbye>(answer->body));
  CHECK(sink.pushes.size() == 1);
  REQUIRE(sink.gone.size() == 1);
  CHECK(sink.gone[0].clean);
  silent.Close();
  Settle();
  REQUIRE(sink.gone.size() == 2);
  CHECK_FALSE(sink.gone[1].clean);
  CHECK_THAT(sink.gone[1].text, Contains("local rank 1") && Contains("without saying goodbye"));
}

TEST_CASE_METHOD(RankServerFixture, "Connections that say nothing do not pile up") {
  std::vector<std::unique_ptr<RawRank>> silent;
  for (int i = 0; i < 70; ++i) {
    silent.push_back(std::make_unique<RawRank>(*this));
    Settle();
  }
  CHECK_THAT(LastWords(*silent.front(), RankStatus::kLimit), Contains("not said hello"));
  silent.back()->Join();
}

TEST_CASE_METHOD(RankServerFixture,
                 "Without a free descriptor a rank hears so, and the server does not spin") {
  RawRank unlucky(*this);
  int first = -1;
  int second = -1;
  {
    const NoDescriptorsLeft none;
    first = server->Poll(sink);
    second = server->Poll(sink);
  }
  CHECK(first == 0);
  CHECK(second == 0);
  CHECK_THAT(LastWords(unlucky, RankStatus::kLimit), Contains("ulimit -n"));
  RawRank(*this).Join();
}

TEST_CASE_METHOD(RankServerFixture,
                 "Without a free descriptor a turn refuses some ranks, and ends") {
  std::vector<std::unique_ptr<RawRank>> ranks;
  for (int i = 0; i < 100; ++i) ranks.push_back(std::make_unique<RawRank>(*this));
  const auto answered = [&ranks] {
    return std::count_if(ranks.begin(), ranks.end(), [](auto& rank) { return rank->IsAnswered(); });
  };
  std::array<int64_t, 2> turns{};
  {
    const NoDescriptorsLeft none;
    for (int64_t& turn : turns) {
      server->Poll(sink);
      turn = answered();
    }
  }
  CHECK(turns[0] > 0);
  CHECK(turns[0] < turns[1]);
  CHECK(turns[1] == 100);
}

TEST_CASE("A configuration that makes no sense is refused") {
  const TestDirectory directory;
  RankServerConfig config;
  config.socket_path = directory.Path("a.sock");
  config.ring_capacity = 100;
  const auto odd = RankServer::Create(config);
  REQUIRE_FALSE(odd.ok());
  CHECK_THAT(odd.failure().text, Contains("100") && Contains("power of two"));
}

}  // namespace
}  // namespace talweg::shm
