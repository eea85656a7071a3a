// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_FIXTURE_H_
#define TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_FIXTURE_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/descriptor.h"
#include "libs/base/test_directory.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/shm/layout/control.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/mapping.h"

// The agent's side against ranks that a test spells out byte by byte.
namespace talweg::shm {

// Admits every rank, agrees to everything, and records it.
class RecordingSink final : public RankEventSink {
 public:
  RankServer* server = nullptr;
  std::vector<RankHello> hellos;
  std::vector<RankConnectionId> connections;
  std::vector<RankDeclaration> declarations;
  std::vector<std::pair<uint32_t, uint64_t>> pushes;  // Tensor, round.
  std::vector<RoundSignature> placed_as;              // The signatures of tensors on GPUs.
  std::vector<RoundSignature> signatures;             // Those of `pushes`, as are `lengths`.
  std::vector<std::vector<uint32_t>> lengths;
  std::vector<DevicePlace> places;
  std::vector<RankGone> gone;
  bool answers = true;                        // Whether declarations get an answer.
  std::map<std::string, SharedPlace> shared;  // Tensors that ranks sum, in order of their index.

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
    if (!answers) return;
    if (const auto it = shared.find(declaration.name); it != shared.end()) {
      const auto location = server->PlaceContribution(connection, it->second);
      REQUIRE(location.ok());
      const auto index = static_cast<uint32_t>(std::distance(shared.begin(), it));
      server->ReplyDeclared(connection, request,
                            {.tensor = TensorIndex(index),
                             .tensor_bytes = declaration.bytes(),
                             .contribution = location.value(),
                             .shared = it->second});
      return;
    }
    const auto contribution =
        declaration.on_device
            ? Outcome<ContributionBuffer>(ContributionBuffer{})
            : server->AllocateContribution(connection, declaration.shape().total_bytes());
    const auto even = server->AllocateResult(declaration.shape().total_bytes());
    const auto odd = server->AllocateResult(declaration.shape().total_bytes());
    REQUIRE((contribution.ok() && even.ok() && odd.ok()));
    server->ReplyDeclared(connection, request,
                          {.tensor = TensorIndex(static_cast<uint32_t>(declarations.size() - 1)),
                           .tensor_bytes = declaration.bytes(),
                           .contribution = contribution.value().location,
                           .result = {even.value().location, odd.value().location}});
  }
  void OnRankPush(RankConnectionId, const PushedRound& push) override {
    pushes.emplace_back(push.tensor.value(), push.round.value());
    signatures.push_back(push.signature);
    lengths.emplace_back(push.lengths.begin(), push.lengths.end());
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
  void OnRankPlace(RankConnectionId connection, RequestId request, TensorIndex, uint32_t buffer,
                   RoundSignature signature) override {
    placed_as.push_back(signature);
    server->ReplyPlaced(connection, request, {.pushed = {static_cast<uint8_t>(buffer)}});
  }
  void OnRankAsk(RankConnectionId connection, RequestId request, TensorIndex tensor,
                 Round round) override {
    const std::string text = std::to_string(pushes.size()) + " pushes, round " +
                             std::to_string(round.value()) + " of tensor " +
                             std::to_string(tensor.value());
    server->ReplyTold(connection, request, {.text = text});
  }
  void OnRankGone(RankConnectionId connection, const RankGone& event) override {
    gone.push_back(event);
    if (shared.empty()) server->Release(connection);
  }
};

struct RankServerFixture {
  explicit RankServerFixture(bool takes_devices = false) {
    RankServerConfig config;
    config.takes_devices = takes_devices;
    config.socket_path = directory.Path("a.sock");
    config.local_rank_count = 4;
    config.ring_capacity = 8;
    config.tensors_max = 64;
    auto created = RankServer::Create(config);
    REQUIRE(created.ok());
    server = std::move(created).value();
    sink.server = server.get();
  }
  // Handles everything that has come.
  void Settle() {
    while (server->Poll(sink) > 0) {
    }
  }

  TestDirectory directory;
  std::unique_ptr<RankServer> server;
  RecordingSink sink;
};

inline constexpr Collective kOneFloat = Collective::Of(DType::kF32, Op::kSum, 1);

// A rank whose every byte the test chooses.
class RawRank {
 public:
  explicit RawRank(RankServerFixture& fixture) : fixture_(fixture) {
    socket_ = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, fixture.directory.Path("a.sock").c_str());
    REQUIRE(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }

  // Whether the server has said anything that has not been read.
  bool IsAnswered() const {
    char byte = 0;
    return ::recv(socket_.get(), &byte, 1, MSG_PEEK) == 1;
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

  // Lets the server handle its input, and reads its next message. Returns nullptr if it has closed
  // the socket.
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

  // Says hello, reads the answer, and maps the control segment.
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
    shm::Declare declare = shm::Declare::Of(kOneFloat, name);
    declare.flags = flags;
    Declare(declare);
  }
  void Declare(const shm::Declare& declare) {
    Send({.request = 5, .body = declare});
    const Message* message = Receive();
    REQUIRE(message != nullptr);
    CHECK(message->request == 5);
    const auto* declared = std::get_if<Declared>(&message->body);
    REQUIRE(declared != nullptr);
    REQUIRE(declared->status == RankStatus::kOk);
    summed_by_ = declared->summed_by;
  }
  // Who sums the last declared tensor.
  SummedBy summed_by() const { return summed_by_; }
  void Push(uint32_t tensor, uint64_t round, uint64_t flags = 0, uint64_t offset = 0) {
    control_.ring_entry(submitted_) = {
        .tensor = tensor, .priority = 0, .round = round, .flags = flags, .device_offset = offset};
    control_.rank_line().submitted.store(++submitted_);
  }
  // Maps the first segment that came after the control segment.
  void MapContribution() {
    REQUIRE(fds_.size() > 1);
    contribution_ = Mapping::Map(fds_[1].get(), kPageBytes, Mapping::Access::kReadWrite);
    REQUIRE(contribution_.valid());
  }
  std::byte* contribution() const { return contribution_.data(); }
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

  RankServerFixture& fixture_;
  Descriptor socket_;
  std::vector<std::byte> input_;
  size_t parsed_ = 0;
  std::vector<Descriptor> fds_;
  Message message_;
  Mapping mapping_;
  Mapping contribution_;
  ControlView control_;
  SummedBy summed_by_ = SummedBy::kAgent;
  uint64_t submitted_ = 0;
};

// Returns the text of the refusal or loss that the server sends before it closes.
inline std::string LastWords(RawRank& rank, RankStatus expected) {
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

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_FIXTURE_H_
