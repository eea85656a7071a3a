// SPDX-License-Identifier: Apache-2.0

// The agent's side against ranks that do not keep to the protocol, spoken by hand.

#include "libs/shm/daemon/rank_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/shm/descriptor.h"
#include "libs/shm/layout/control.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/mapping.h"

namespace talweg::shm {
namespace {

using Catch::Matchers::Contains;

class Directory {
 public:
  Directory() {
    const char* root = std::getenv("TEST_TMPDIR");
    path_ = (root != nullptr && std::string(root).size() < 60 ? std::string(root) : "/tmp") +
            "/talweg-XXXXXX";
    REQUIRE(::mkdtemp(path_.data()) != nullptr);
  }
  ~Directory() {
    ::unlink(socket().c_str());
    ::rmdir(path_.c_str());
  }
  std::string socket() const { return path_ + "/a.sock"; }

 private:
  std::string path_;
};

// Admits everybody, agrees to everything, remembers.
class RecordingSink final : public RankEventSink {
 public:
  RankServer* server = nullptr;
  std::vector<RankHello> hellos;
  std::vector<RankConnectionId> connections;
  std::vector<RankDeclaration> declarations;
  std::vector<std::pair<uint32_t, uint64_t>> pushes;  // Tensor, round.
  std::vector<DevicePlace> places;
  std::vector<RankGone> gone;
  std::optional<SharedPlace> shared;  // Of the one tensor of ranks that sum.

  void OnRankHello(RankConnectionId connection, const RankHello& hello) override {
    hellos.push_back(hello);
    connections.push_back(connection);
    server->Welcome(connection, {.rank = Rank(hello.local_rank.value()),
                                 .size = 4,
                                 .local_size = 4,
                                 .node_rank = NodeRank(0),
                                 .node_count = 1,
                                 .job_name = "job"});
  }
  void OnRankDeclare(RankConnectionId connection, RequestId request,
                     const RankDeclaration& declaration) override {
    declarations.push_back(declaration);
    if (shared) {
      const auto location = server->PlaceContribution(connection, *shared);
      REQUIRE(location.ok());
      server->ReplyDeclared(connection, request,
                            {.tensor = TensorIndex(0),
                             .tensor_bytes = declaration.bytes(),
                             .contribution = location.value(),
                             .shared = shared});
      return;
    }
    const auto contribution = declaration.on_device
                                  ? Outcome<ContributionBuffer>(ContributionBuffer{})
                                  : server->AllocateContribution(connection, declaration.bytes());
    const auto even = server->AllocateResult(declaration.bytes());
    const auto odd = server->AllocateResult(declaration.bytes());
    REQUIRE((contribution.ok() && even.ok() && odd.ok()));
    server->ReplyDeclared(connection, request,
                          {.tensor = TensorIndex(static_cast<uint32_t>(declarations.size() - 1)),
                           .tensor_bytes = declaration.bytes(),
                           .contribution = contribution.value().location,
                           .result = {even.value().location, odd.value().location}});
  }
  void OnRankPush(RankConnectionId, LocalRank, TensorIndex tensor, Round round, int32_t) override {
    pushes.emplace_back(tensor.value(), round.value());
  }
  void OnRankPushOnDevice(RankConnectionId connection, LocalRank, TensorIndex tensor, Round round,
                          int32_t, const DevicePlace& place) override {
    if (place.buffer == 9) return server->Garbage(connection, "there is no buffer 9", *this);
    pushes.emplace_back(tensor.value(), round.value());
    places.push_back(place);
  }
  void OnRankExport(RankConnectionId connection, RequestId request,
                    const RankExport& exported) override {
    server->ReplyExported(connection, request,
                          {.buffer = 7, .bytes = exported.buffer_id + exported.uuid[0]});
  }
  void OnRankUnexport(RankConnectionId connection, RequestId request, uint32_t buffer) override {
    server->ReplyUnexported(
        connection, request,
        {.status = buffer == 7 ? RankStatus::kBusy : RankStatus::kOk, .text = "in use"});
  }
  void OnRankPlace(RankConnectionId connection, RequestId request, TensorIndex,
                   uint32_t buffer) override {
    server->ReplyPlaced(connection, request, {.pushed = {static_cast<uint8_t>(buffer)}});
  }
  void OnRankGone(RankConnectionId connection, const RankGone& event) override {
    gone.push_back(event);
    if (!shared) server->Release(connection);
  }
};

struct Fixture {
  explicit Fixture(bool takes_devices = false) {
    RankServerConfig config;
    config.takes_devices = takes_devices;
    config.socket_path = directory.socket();
    config.local_rank_count = 4;
    config.ring_capacity = 8;
    config.tensors_max = 64;
    auto created = RankServer::Create(config);
    REQUIRE(created.ok());
    server = std::move(created).value();
    sink.server = server.get();
  }
  // Everything that has come is handled.
  void Settle() {
    while (server->Poll(sink) > 0) {
    }
  }

  Directory directory;
  std::unique_ptr<RankServer> server;
  RecordingSink sink;
};

// A rank whose every byte the test decides.
class RawRank {
 public:
  explicit RawRank(Fixture& fixture) : fixture_(fixture) {
    socket_ = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, fixture.directory.socket().c_str());
    REQUIRE(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }

  void SendBytes(const void* bytes, size_t count) {
    REQUIRE(::send(socket_.get(), bytes, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count));
  }
  void Send(const Message& message) {
    std::array<std::byte, kEncodedBytesMax> bytes;
    const size_t count = EncodeMessage(message, bytes);
    REQUIRE(count > 0);
    SendBytes(bytes.data(), count);
  }

  // Lets the server handle what was sent, and reads its next message. nullptr: it has closed the
  // socket.
  const Message* Receive() {
    for (int turns = 0; turns < 1000; ++turns) {
      fixture_.Settle();
      const ParseResult result = ParseMessage(std::span<const std::byte>(input_).subspan(parsed_));
      REQUIRE(result.outcome != ParseOutcome::kInvalid);
      if (result.outcome == ParseOutcome::kMessage) {
        parsed_ += result.bytes_used;
        message_ = result.message;
        return &message_;
      }
      if (!ReadSome()) return nullptr;
    }
    FAIL("the server says nothing");
    return nullptr;
  }

  // A hello and what comes of it: the control segment mapped.
  void Join(uint16_t minor = kProtocolMinor) {
    Send({.body = Hello{.minor = minor, .client_name = "raw"}});
    const Message* message = Receive();
    REQUIRE(message != nullptr);
    const auto* welcome = std::get_if<Welcome>(&message->body);
    REQUIRE(welcome != nullptr);
    REQUIRE(welcome->status == RankStatus::kOk);
    REQUIRE(fds_.size() == 1);
    mapping_ = Mapping::Map(fds_[0].get(), welcome->control_bytes, Mapping::Access::kReadWrite);
    REQUIRE(mapping_.valid());
    control_ = ControlView(mapping_.data(), {welcome->ring_capacity, welcome->tensors_max});
  }
  void Declare(const std::string& name, uint32_t flags = 0) {
    Send({.request = 5,
          .body = shm::Declare{.dtype = DType::kF32,
                               .op = Op::kSum,
                               .element_count = 1,
                               .name = name,
                               .flags = flags}});
    const Message* message = Receive();
    REQUIRE(message != nullptr);
    CHECK(message->request == 5);
    const auto* declared = std::get_if<Declared>(&message->body);
    REQUIRE(declared != nullptr);
    REQUIRE(declared->status == RankStatus::kOk);
  }
  void Push(uint32_t tensor, uint64_t round, uint64_t flags = 0, uint64_t offset = 0) {
    control_.ring_entry(submitted_) = {
        .tensor = tensor, .priority = 0, .round = round, .flags = flags, .device_offset = offset};
    control_.rank_line().submitted.store(++submitted_);
  }
  const ControlView& control() const { return control_; }
  int fd() const { return socket_.get(); }
  const std::vector<Descriptor>& fds() const { return fds_; }
  void Close() { socket_.Reset(); }

 private:
  bool ReadSome() {
    std::array<std::byte, 4096> bytes;
    iovec part{bytes.data(), bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 8)> control;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t count = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    if (count < 0) return errno == EAGAIN;
    for (cmsghdr* item = CMSG_FIRSTHDR(&header); item; item = CMSG_NXTHDR(&header, item)) {
      for (size_t i = 0; i < (item->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
        fds_.emplace_back(fd);
      }
    }
    input_.insert(input_.end(), bytes.begin(), bytes.begin() + count);
    return count > 0;
  }

  Fixture& fixture_;
  Descriptor socket_;
  std::vector<std::byte> input_;
  size_t parsed_ = 0;
  std::vector<Descriptor> fds_;
  Message message_;
  Mapping mapping_;
  ControlView control_;
  uint64_t submitted_ = 0;
};

// The text of the refusal or loss that the server sends, after which it closes.
std::string LastWords(RawRank& rank, RankStatus expected) {
  const Message* message = rank.Receive();
  if (message == nullptr) return "nothing";
  std::string text = "something else";
  if (const auto* welcome = std::get_if<Welcome>(&message->body)) {
    CHECK(welcome->status == expected);
    text = welcome->text;
  } else if (const auto* lost = std::get_if<Lost>(&message->body)) {
    CHECK(lost->status == expected);
    text = lost->text;
  }
  CHECK(rank.Receive() == nullptr);
  return text;
}

TEST_CASE_METHOD(Fixture, "The socket is the owner's alone, and its file goes with the server") {
  struct stat status {};
  REQUIRE(::stat(directory.socket().c_str(), &status) == 0);
  CHECK(S_ISSOCK(status.st_mode));
  CHECK((status.st_mode & 0777) == 0600);
  server.reset();
  CHECK(::stat(directory.socket().c_str(), &status) != 0);
}

TEST_CASE_METHOD(Fixture, "A living agent's socket is not taken over, and its pid is named") {
  RankServerConfig config = server->config();
  const auto second = RankServer::Create(config);
  REQUIRE_FALSE(second.ok());
  CHECK_THAT(second.failure().text,
             Contains(directory.socket()) && Contains("pid " + std::to_string(::getpid())));
  Settle();
  RawRank(*this).Join();  // The first is unharmed.
}

TEST_CASE_METHOD(Fixture, "A server leaves a successor's socket alone") {
  ::unlink(directory.socket().c_str());
  const auto successor = RankServer::Create(server->config());
  REQUIRE(successor.ok());
  server.reset();
  CHECK(::access(directory.socket().c_str(), F_OK) == 0);
}

TEST_CASE("What lies at the socket's path") {
  const Directory directory;
  RankServerConfig config;
  config.socket_path = directory.socket();
  SECTION("a dead agent's socket is replaced") {
    Descriptor dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, config.socket_path.c_str());
    REQUIRE(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    dead.Reset();
    CHECK(RankServer::Create(config).ok());
  }
  SECTION("a file is not") {
    std::ofstream(config.socket_path) << "precious";
    const auto server = RankServer::Create(config);
    REQUIRE_FALSE(server.ok());
    CHECK_THAT(server.failure().text, Contains("no socket is there"));
    CHECK(::access(config.socket_path.c_str(), R_OK) == 0);
  }
  SECTION("nothing, nor a directory") {
    config.socket_path = directory.socket() + "/no/such/a.sock";
    const auto server = RankServer::Create(config);
    REQUIRE_FALSE(server.ok());
    CHECK_THAT(server.failure().text, Contains("create the directory"));
  }
  SECTION("a path that is too long") {
    config.socket_path = "/tmp/" + std::string(150, 'x');
    const auto server = RankServer::Create(config);
    REQUIRE_FALSE(server.ok());
    CHECK_THAT(server.failure().text, Contains("155 bytes") && Contains("107"));
  }
}

TEST_CASE_METHOD(Fixture, "Strangers are told why and dropped; ranks go on") {
  RawRank good(*this);
  good.Join();
  RawRank bad(*this);
  std::string expected;
  SECTION("other bytes") {
    bad.SendBytes("GET / HTTP/1.1\r\n\r\n", 18);
    CHECK_THAT(LastWords(bad, RankStatus::kProtocol), Contains("magic"));
  }
  SECTION("a gigabyte's length") {
    std::array<uint32_t, 4> header = {kMessageMagic, 1, 1u << 30, 0};
    bad.SendBytes(header.data(), sizeof(header));
    CHECK_THAT(LastWords(bad, RankStatus::kProtocol), Contains("64 KiB"));
  }
  SECTION("an unknown type") {
    std::array<uint32_t, 4> header = {kMessageMagic, 999, 0, 0};
    bad.SendBytes(header.data(), sizeof(header));
    CHECK_THAT(LastWords(bad, RankStatus::kProtocol), Contains("unknown type"));
  }
  SECTION("a declaration before hello") {
    bad.Send({.body = shm::Declare{
                  .dtype = DType::kF32, .op = Op::kSum, .element_count = 1, .name = "x"}});
    CHECK_THAT(LastWords(bad, RankStatus::kProtocol), Contains("Declare message out of place"));
  }
  SECTION("an agent's message") {
    bad.Send({.body = Wake{}});
    CHECK_THAT(LastWords(bad, RankStatus::kProtocol), Contains("Wake message out of place"));
  }
  SECTION("another major version, and what it brings") {
    std::array<std::byte, 200> bytes{};
    const size_t count = EncodeMessage({.body = Hello{.major = 9, .minor = 4}}, bytes);
    bad.SendBytes(bytes.data(), count);
    CHECK_THAT(LastWords(bad, RankStatus::kVersionMismatch), Contains("9.4") && Contains("1.0"));
  }
  SECTION("half a message, then the end") {
    bad.SendBytes(&kMessageMagic, 4);
    Settle();
    bad.Close();
    Settle();
  }
  SECTION("descriptors, which are not wanted") {
    // The kernel drops them: nothing to see but that the server goes on.
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

TEST_CASE_METHOD(Fixture, "A rank of another minor version is served like all others") {
  RawRank newer(*this);
  newer.Join(kProtocolMinor + 7);
  newer.Declare("t");
  newer.Push(0, 1);
  Settle();
  CHECK(sink.pushes == std::vector<std::pair<uint32_t, uint64_t>>{{0, 1}});
}

TEST_CASE_METHOD(Fixture, "Garbage in a ring ends that rank only, and says what it was") {
  RawRank good(*this);
  good.Join();
  good.Declare("t");
  RawRank bad(*this);
  bad.Join();
  bad.Declare("t");  // Tensor 1.
  std::string text;
  SECTION("a tensor that is none") {
    bad.Push(63, 1);
    text = "tensor 63, which it has not declared";
  }
  SECTION("a tensor far away") {
    bad.Push(0xffffffff, 1);
    text = "tensor 4294967295, which it has not declared";
  }
  SECTION("another rank's tensor") {
    bad.Push(0, 1);
    text = "tensor 0, which it has not declared";
  }
  SECTION("a round to come") {
    bad.Push(1, 2);
    text = "round 2 of tensor 1, whose next round is 1";
  }
  SECTION("a second open round") {
    bad.Push(1, 1);
    bad.Push(1, 2);
    text = "while its round 1 is open";
  }
  SECTION("flags of another version") {
    bad.Push(1, 1, 8);
    text = "unknown flags 8";
  }
  SECTION("a tail beyond the ring") {
    bad.control().rank_line().submitted.store(9);
    text = "beyond the ring";
  }
  SECTION("a tail that goes back") {
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

TEST_CASE_METHOD(Fixture,
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

TEST_CASE_METHOD(Fixture, "The doorbell: a push before the sleep forbids it, one after it rings") {
  RawRank rank(*this);
  rank.Join();
  rank.Declare("t");
  Settle();
  rank.Push(0, 1);
  CHECK_FALSE(server->PrepareToSleep());
  CHECK(server->PollRings(sink) == 1);
  CHECK(rank.control().agent_line().sleep_sequence.load() % 2 == 0);
  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(1)});
  CHECK(server->PrepareToSleep());
  CHECK(rank.control().agent_line().sleep_sequence.load() % 2 == 1);
  pollfd polled{server->WaitDescriptor(), POLLIN, 0};
  CHECK(::poll(&polled, 1, 0) == 0);
  rank.Push(0, 2);
  rank.Send({.body = Doorbell{}});
  CHECK(::poll(&polled, 1, -1) == 1);
  Settle();
  CHECK(sink.pushes.size() == 2);
  CHECK(server->counters().doorbells_received == 1);
  CHECK(rank.control().agent_line().sleep_sequence.load() % 2 == 0);
}

TEST_CASE_METHOD(Fixture, "One Wake is under way at a time, and none when nobody sleeps") {
  RawRank rank(*this);
  rank.Join();
  rank.Declare("a");
  rank.Declare("b");
  rank.Push(0, 1);
  rank.Push(1, 1);
  Settle();
  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(1)});
  CHECK(server->counters().wakes_sent == 0);
  rank.control().rank_line().waiters.store(1);
  server->PublishCompletion({.tensor = TensorIndex(1), .round = Round(1)});
  CHECK(server->counters().wakes_sent == 1);
  rank.Push(0, 2);
  Settle();
  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(2)});
  CHECK(server->counters().wakes_sent == 1);  // The first has not been read.
  rank.control().rank_line().wakes_seen.store(1);
  rank.Push(0, 3);
  Settle();
  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(3)});
  CHECK(server->counters().wakes_sent == 2);
}

TEST_CASE_METHOD(Fixture, "Segments are sealed: control, contribution and result") {
  RawRank rank(*this);
  rank.Join();
  rank.Declare("t");
  REQUIRE(rank.fds().size() == 3);  // Control, contributions, results.
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
  // Not by opening it anew either.
  const Descriptor anew(::open(("/proc/self/fd/" + std::to_string(result)).c_str(), O_RDWR));
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, anew.get(), 0) == MAP_FAILED);
  // Another tensor fits into the segments that the rank has.
  rank.Declare("u");
  CHECK(rank.fds().size() == 3);
}

TEST_CASE_METHOD(Fixture, "Ranks that sum get each other's contributions, to be read only") {
  sink.shared = server->PlanContribution(4).value();
  std::vector<std::unique_ptr<RawRank>> ranks;
  for (int i = 0; i < 3; ++i) {
    ranks.push_back(std::make_unique<RawRank>(*this));
    ranks.back()->Join();
    ranks.back()->Declare("t");
    REQUIRE(ranks.back()->fds().size() == 2);  // Control, contributions: no results.
  }
  // As a client does before it pushes.
  std::vector<Mapping> own;
  for (const auto& rank : ranks) {
    own.push_back(Mapping::Map(rank->fds()[1].get(), 4096, Mapping::Access::kReadWrite));
    REQUIRE(own.back().valid());
    rank->Push(0, 1);
  }
  Settle();
  REQUIRE(sink.pushes.size() == 3);
  ranks[2]->Close();  // It has left, and counts all the same.
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

TEST_CASE_METHOD(Fixture,
                 "A goodbye is answered after the pushes before it; a silent end is not clean") {
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

TEST_CASE_METHOD(Fixture, "Connections that say nothing do not pile up") {
  std::vector<std::unique_ptr<RawRank>> silent;
  for (int i = 0; i < 70; ++i) {
    silent.push_back(std::make_unique<RawRank>(*this));
    Settle();
  }
  CHECK_THAT(LastWords(*silent.front(), RankStatus::kLimit), Contains("not said hello"));
  silent.back()->Join();
}

TEST_CASE_METHOD(Fixture,
                 "Without descriptors left a rank is told so, and the server does not spin") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  RawRank unlucky(*this);
  const Descriptor probe(::dup(0));
  // No descriptor above those that are open: accept finds none.
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(probe.get());
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
  std::vector<Descriptor> fill;
  for (;;) {
    Descriptor filler(::dup(0));
    if (!filler.valid()) break;
    fill.push_back(std::move(filler));
  }
  const int first = server->Poll(sink);
  const int second = server->Poll(sink);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  fill.clear();
  CHECK(first == 0);
  CHECK(second == 0);
  CHECK_THAT(LastWords(unlucky, RankStatus::kLimit), Contains("ulimit -n"));
  RawRank(*this).Join();
}

TEST_CASE("A configuration that makes no sense is refused") {
  const Directory directory;
  RankServerConfig config;
  config.socket_path = directory.socket();
  config.ring_capacity = 100;
  const auto odd = RankServer::Create(config);
  REQUIRE_FALSE(odd.ok());
  CHECK_THAT(odd.failure().text, Contains("100") && Contains("power of two"));
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

TEST_CASE("Memory of GPUs is offered, named in pushes, and taken back") {
  Fixture fixture(true);
  RawRank rank(fixture);
  rank.Join();
  const auto exported = Ask<Exported>(rank, Export{.uuid = {3}, .buffer_id = 40});
  CHECK(exported.status == RankStatus::kOk);
  CHECK(exported.buffer == 7);
  CHECK(exported.bytes == 43);
  rank.Declare("t", kDeclareOnDevice);
  CHECK(fixture.sink.declarations[0].on_device);
  CHECK(Ask<Placed>(rank, Place{0, 5}).pushed[0] == 5);
  CHECK(Ask<Unexported>(rank, Unexport{7}).status == RankStatus::kBusy);
  rank.Push(0, 1, OnDevice(7), 64);
  fixture.Settle();
  REQUIRE(fixture.sink.places.size() == 1);
  CHECK(fixture.sink.places[0].buffer == 7);
  CHECK(fixture.sink.places[0].offset == 64);
  fixture.server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(1)});
  std::string text;
  SECTION("from host memory, of which it has none") {
    rank.Push(0, 2);
    text = "a push from host memory of tensor 0, which it has declared on a GPU";
  }
  SECTION("from a buffer that the agent does not know") {
    rank.Push(0, 2, OnDevice(9));
    text = "there is no buffer 9";
  }
  SECTION("a buffer without the flag") {
    rank.Push(0, 2, uint64_t{7} << kPushBufferShift);
    text = "unknown flags";
  }
  SECTION("a place for a tensor that it has not declared") {
    rank.Send({.request = 77, .body = Place{1, 5}});
    text = "a place for tensor 1, which it has not declared";
  }
  CHECK_THAT(LastWords(rank, RankStatus::kProtocol), Contains(text));
  CHECK(fixture.sink.gone.size() == 1);
}

TEST_CASE_METHOD(Fixture, "An agent without GPUs says so, and goes on") {
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
