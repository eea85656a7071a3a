// SPDX-License-Identifier: Apache-2.0

// A rank that does anything: bytes on its socket, entries and tails in its ring, all over its
// control segment. The server must neither crash nor deliver a push that the rules forbid.

#include "libs/shm/daemon/rank_server.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"
#include "libs/base/test_directory.h"
#include "libs/shm/layout/control.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/mapping.h"

namespace talweg::shm {
namespace {

constexpr ControlShape kShape{16, 8};

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
    server_->Welcome(connection, {.size = 1, .local_size = 1, .node_count = 1});
  }
  void OnRankDeclare(RankConnectionId connection, RequestId request,
                     const RankDeclaration& declaration) override {
    TALWEG_CHECK(declaration.bytes() > 0);
    const uint32_t tensor = static_cast<uint32_t>(declaration.name.size()) % kShape.tensors_max;
    const uint64_t bytes = std::min<uint64_t>(declaration.bytes(), 64);
    if (tensor % 2 == 1) {  // The ranks sum it.
      auto [place, is_new] = shared_.try_emplace(tensor);
      if (is_new) place->second = server_->PlanContribution(64, tensor == 1).value();
      const auto location = server_->PlaceContribution(connection, place->second);
      TALWEG_CHECK(location.ok());
      server_->ReplyDeclared(connection, request,
                             {.tensor = TensorIndex(tensor),
                              .tensor_bytes = bytes,
                              .contribution = location.value(),
                              .shared = place->second});
      return;
    }
    const auto contribution = server_->AllocateContribution(connection, bytes);
    if (!result_) {
      const auto result = server_->AllocateResult(64);
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
  void OnRankPush(RankConnectionId, LocalRank local_rank, TensorIndex tensor, Round round,
                  int32_t) override {
    TALWEG_CHECK(local_rank.value() == 0 && tensor.value() < kShape.tensors_max);
    TALWEG_CHECK(!open_.contains(tensor.value()));
    TALWEG_CHECK(round.value() == completed_[tensor.value()] + 1);
    open_[tensor.value()] = round.value();
  }
  void OnRankPushOnDevice(RankConnectionId connection, LocalRank local_rank, TensorIndex tensor,
                          Round round, int32_t priority, const DevicePlace& place) override {
    if (place.buffer != 0) return server_->Garbage(connection, "no such buffer", *this);
    OnRankPush(connection, local_rank, tensor, round, priority);
  }
  void OnRankExport(RankConnectionId connection, RequestId request, const RankExport&) override {
    server_->ReplyExported(connection, request, {.bytes = 64});
  }
  void OnRankUnexport(RankConnectionId connection, RequestId request, uint32_t) override {
    server_->ReplyUnexported(connection, request, {.status = RankStatus::kBusy, .text = "no"});
  }
  void OnRankPlace(RankConnectionId connection, RequestId request, TensorIndex tensor,
                   uint32_t) override {
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
  std::map<uint32_t, SharedPlace> shared_;
  std::map<uint32_t, uint64_t> open_;
  std::map<uint32_t, uint64_t> completed_;
};

// One connection, which has said hello.
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
          if (control_.valid()) continue;
          control_ = Mapping::Map(fd, kShape.total_bytes(), Mapping::Access::kReadWrite);
        }
      }
    }
  }
  ControlView& view() { return view_; }
  const Mapping& control() const { return control_; }

 private:
  Descriptor socket_;
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
    // Each step: one byte that says what, one that says how much, and that many bytes.
    while (size >= 2) {
      const uint8_t what = data[0];
      const size_t count = std::min<size_t>(data[1], size - 2);
      const uint8_t* bytes = data + 2;
      data += 2 + count;
      size -= 2 + count;
      auto& submitted = rank.view().rank_line().submitted;
      switch (what % 8) {
        case 0: rank.Send(bytes, count); break;
        case 1: {  // A declaration that is right but for its fuzzed fields.
          std::array<std::byte, 512> out;
          const std::string name(1 + count % 16, 'x');
          const size_t length =
              EncodeMessage({.body = Declare{.dtype = talweg::DType(count > 0 ? bytes[0] % 10 : 1),
                                             .op = talweg::Op(count > 1 ? bytes[1] % 8 : 1),
                                             .element_count = count > 2 ? bytes[2] : 1u,
                                             .name = name}},
                            out);
          rank.Send(out.data(), length);
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
        case 4: {  // Anywhere in the control segment.
          if (count < 3) break;
          const size_t offset = (bytes[0] | bytes[1] << 8) % (rank.control().bytes() - 256);
          std::memcpy(rank.control().data() + offset, bytes + 2, count - 2);
          break;
        }
        case 5: agent.Complete(static_cast<uint32_t>(count)); break;
        case 6: agent.Sleep(); break;
        case 7: rank.Drain(); break;
      }
      agent.Poll();
    }
  }
  agent.Poll();
  return 0;
}
