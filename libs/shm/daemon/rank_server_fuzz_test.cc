// SPDX-License-Identifier: Apache-2.0

// A rank does anything: it writes bytes to its socket, entries and tails into its ring, and bytes
// anywhere in its control segment. The server must not crash, nor deliver a push that the rules
// forbid.

#include "libs/shm/daemon/rank_server.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"
#include "libs/base/test_directory.h"
#include "libs/shm/layout/control.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/mapping.h"

namespace talweg::shm {
namespace {

constexpr ControlShape kShape{16, 8};
constexpr uint32_t kRanks = 3;  // In the job.

class Agent final : public RankEventSink {
 public:
  Agent() {
    RankServerConfig config;
    config.socket_path = directory_.Path("a.sock");
    config.ring_capacity = kShape.ring_capacity;
    config.tensors_max = kShape.tensors_max;
    config.contribution_bytes_max = 1 << 20;
    config.result_bytes_max = 1 << 20;
    config.segment_bytes_min = 4096;
    config.takes_devices = true;
    auto created = RankServer::Create(config);
    TALWEG_CHECK(created.ok());
    server_ = std::move(created).value();
  }
  ~Agent() override { server_.reset(); }

  const std::string& path() const { return server_->config().socket_path; }
  void Poll() {
    while (server_->Poll(*this) > 0) {
    }
  }
  void Complete(uint32_t tensor) {
    if (!open_.contains(tensor)) return;
    server_->PublishCompletion(
        {.tensor = TensorIndex(tensor), .round = Round(open_[tensor]), .text = "t"});
    completed_[tensor] = open_[tensor];
    open_.erase(tensor);
  }
  void Sleep() { server_->PrepareToSleep(RankServer::Until::kAwaited); }

  void OnRankHello(RankConnectionId connection, const RankHello&) override {
    open_.clear();
    completed_.clear();
    server_->Welcome(connection, {.size = kRanks, .local_size = 1, .node_count = 1});
  }
  void OnRankDeclare(RankConnectionId connection, RequestId request,
                     const RankDeclaration& declaration) override {
    TALWEG_CHECK(Problem(declaration.collective).empty());
    TALWEG_CHECK(declaration.rank_count == kRanks ||
                 declaration.rank_count == declaration.ranks.size());
    TALWEG_CHECK(declaration.ranks.empty() ||
                 std::find(declaration.ranks.begin(), declaration.ranks.end(), 0) !=
                     declaration.ranks.end());
    const uint32_t tensor = static_cast<uint32_t>(declaration.name.size()) % kShape.tensors_max;
    const uint64_t bytes = declaration.bytes();
    const BufferShape shape = declaration.shape();
    const auto [known, is_new] = shapes_.try_emplace(tensor, shape);
    if (shape.total_bytes() > 4096 || known->second.total_bytes() != shape.total_bytes()) {
      if (is_new) shapes_.erase(known);
      server_->RefuseDeclaration(connection, request, RankStatus::kMismatch, "another shape");
      return;
    }
    if (tensor % 2 == 1) {  // The ranks sum these tensors.
      auto place = shared_.find(tensor);
      if (place == shared_.end()) {
        place =
            shared_.emplace(tensor, server_->PlanContribution(shape, tensor == 1).value()).first;
      }
      const auto location = server_->PlaceContribution(connection, place->second);
      TALWEG_CHECK(location.ok());
      server_->ReplyDeclared(connection, request,
                             {.tensor = TensorIndex(tensor),
                              .tensor_bytes = bytes,
                              .contribution = location.value(),
                              .shared = place->second});
      return;
    }
    const auto contribution = server_->AllocateContribution(connection, shape.total_bytes());
    if (!result_) {
      const auto result = server_->AllocateResult(4096);
      TALWEG_CHECK(result.ok());
      result_ = result.value();
    }
    if (!contribution.ok()) {
      server_->RefuseDeclaration(connection, request, contribution.failure().status,
                                 contribution.failure().text);
      return;
    }
    server_->ReplyDeclared(connection, request,
                           {.tensor = TensorIndex(tensor),
                            .tensor_bytes = bytes,
                            .contribution = contribution.value().location,
                            .result = {result_->location, result_->location}});
  }
  void OnRankPush(RankConnectionId, const PushedRound& push) override {
    const uint32_t tensor = push.tensor.value();
    TALWEG_CHECK(push.local_rank.value() == 0 && tensor < kShape.tensors_max);
    TALWEG_CHECK(!open_.contains(tensor));
    TALWEG_CHECK(push.round.value() == completed_[tensor] + 1);
    TALWEG_CHECK(push.lengths.empty() || push.lengths.size() == shapes_.at(tensor).part_count);
    open_[tensor] = push.round.value();
  }
  void OnRankPushOnDevice(RankConnectionId connection, LocalRank local_rank, TensorIndex tensor,
                          Round round, int32_t priority, const DevicePlace& place) override {
    if (place.buffer != 0) return server_->Garbage(connection, "no such buffer", *this);
    OnRankPush(connection,
               {.local_rank = local_rank, .tensor = tensor, .round = round, .priority = priority});
  }
  void OnRankExport(RankConnectionId connection, RequestId request, const RankExport&) override {
    server_->ReplyExported(connection, request, {.bytes = 64});
  }
  void OnRankUnexport(RankConnectionId connection, RequestId request, uint32_t) override {
    server_->ReplyUnexported(connection, request, {.status = RankStatus::kBusy, .text = "no"});
  }
  void OnRankPlace(RankConnectionId connection, RequestId request, TensorIndex tensor, uint32_t,
                   RoundSignature) override {
    TALWEG_CHECK(tensor.value() < kShape.tensors_max);
    server_->ReplyPlaced(connection, request, {});
  }
  void OnRankGone(RankConnectionId connection, const RankGone&) override {
    server_->Release(connection);
  }

 private:
  TestDirectory directory_;
  std::unique_ptr<RankServer> server_;
  std::optional<ResultBuffer> result_;
  std::map<uint32_t, BufferShape> shapes_;
  std::map<uint32_t, SharedPlace> shared_;
  std::map<uint32_t, uint64_t> open_;
  std::map<uint32_t, uint64_t> completed_;
};

// A connection that has said hello.
class BadRank {
 public:
  explicit BadRank(Agent& agent)
      : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, agent.path().c_str());
    TALWEG_CHECK(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
                 0);
    std::array<std::byte, 64> bytes;
    const size_t count = EncodeMessage({.body = Hello{}}, bytes);
    Send(bytes.data(), count);
    agent.Poll();
    Drain();
    TALWEG_CHECK(control_.valid());
    view_ = ControlView(control_.data(), kShape);
  }

  void Send(const void* bytes, size_t count) {
    [[maybe_unused]] const auto sent = ::send(socket_.get(), bytes, count, MSG_NOSIGNAL);
  }
  void Drain() {
    for (;;) {
      std::array<std::byte, 4096> bytes;
      iovec part{bytes.data(), bytes.size()};
      alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 8)> control;
      msghdr header{};
      header.msg_iov = &part;
      header.msg_iovlen = 1;
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      if (::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC) <= 0) return;
      for (cmsghdr* item = CMSG_FIRSTHDR(&header); item; item = CMSG_NXTHDR(&header, item)) {
        for (size_t i = 0; i < (item->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
          int fd;
          std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
          const Descriptor owned(fd);
          if (control_.valid()) {
            // Maps contributions. If that fails, these are results.
            Mapping mapping = Mapping::Map(fd, kPageBytes, Mapping::Access::kReadWrite);
            if (mapping.valid()) contribution_ = std::move(mapping);
            continue;
          }
          control_ = Mapping::Map(fd, kShape.total_bytes(), Mapping::Access::kReadWrite);
        }
      }
    }
  }
  ControlView& view() { return view_; }
  const Mapping& control() const { return control_; }
  // Returns the beginning of a segment of contributions, if the rank has got one.
  const Mapping& contribution() const { return contribution_; }

 private:
  Descriptor socket_;
  Mapping contribution_;
  Mapping control_;
  ControlView view_;
};

}  // namespace
}  // namespace talweg::shm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace talweg::shm;
  static Agent agent;
  {
    BadRank rank(agent);
    // Each step takes one byte for the kind, one for the length, and that many bytes.
    while (size >= 2) {
      const uint8_t what = data[0];
      const size_t count = std::min<size_t>(data[1], size - 2);
      const uint8_t* bytes = data + 2;
      data += 2 + count;
      size -= 2 + count;
      auto& submitted = rank.view().rank_line().submitted;
      switch (what % 9) {
        case 0: rank.Send(bytes, count); break;
        case 1: {  // A declaration that is valid except for its fuzzed fields.
          std::array<std::byte, 512> out;
          const std::string name(1 + count % 16, 'x');
          Declare declare{.dtype = talweg::DType(count > 0 ? bytes[0] % 10 : 1),
                          .op = talweg::Op(count > 1 ? bytes[1] % 8 : 1),
                          .root_rank = count > 3 ? bytes[3] % 4u : 0u,
                          .element_count = count > 2 ? bytes[2] : 1u,
                          .name = name};
          if (count > 4) declare.gives = talweg::Share(bytes[4] % 7);
          if (count > 5) declare.gets = talweg::Share(bytes[5] % 7);
          std::array<uint32_t, 4> ranks = {};
          const size_t rank_count = count > 6 ? std::min<size_t>(count - 6, ranks.size()) : 0;
          for (size_t i = 0; i < rank_count; ++i) ranks[i] = bytes[6 + i] % 5;
          declare.ranks = RankList(std::span(ranks).first(rank_count));
          rank.Send(out.data(), EncodeMessage({.body = declare}, out));
          break;
        }
        case 2: {  // A push, whole or fuzzed.
          RingEntry entry{.tensor = count > 0 ? bytes[0] : 1u,
                          .priority = 0,
                          .round = count > 1 ? bytes[1] : 1u,
                          .flags = 0,
                          .device_offset = 0};
          if (count > 2) std::memcpy(&entry, bytes, std::min(count, sizeof(entry)));
          const uint64_t tail = submitted.load();
          rank.view().ring_entry(tail) = entry;
          submitted.store(tail + 1);
          break;
        }
        case 3: {
          uint64_t tail = 0;
          std::memcpy(&tail, bytes, std::min<size_t>(count, 8));
          submitted.store(tail);
          break;
        }
        case 4: {  // Writes anywhere in the control segment.
          if (count < 3) break;
          const size_t offset = (bytes[0] | bytes[1] << 8) % (rank.control().bytes() - 256);
          std::memcpy(rank.control().data() + offset, bytes + 2, count - 2);
          break;
        }
        case 5: agent.Complete(static_cast<uint32_t>(count)); break;
        case 6: agent.Sleep(); break;
        case 7: rank.Drain(); break;
        case 8:  // For example the lengths of parts.
          if (!rank.contribution().valid() || count < 1) break;
          std::memcpy(rank.contribution().data() + bytes[0] * 8, bytes + 1, count - 1);
          break;
      }
      agent.Poll();
    }
  }
  agent.Poll();
  return 0;
}
