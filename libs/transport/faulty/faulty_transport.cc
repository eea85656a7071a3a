// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/faulty/faulty_transport.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"
#include "libs/base/random.h"
#include "libs/transport/deadline_timer.h"

namespace talweg::transport {
namespace {

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, const Faults& faults,
                  const runtime::Clock* clock)
      : inner_(std::move(inner)),
        faults_(faults),
        clock_(clock),
        random_(faults.seed),
        epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    TALWEG_CHECK(epoll_.valid() && timer_.Open());
    for (const int fd : {inner_->WaitDescriptor(), timer_.descriptor()}) {
      epoll_event event{};
      event.events = EPOLLIN;
      TALWEG_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
    }
  }

  absl::StatusOr<std::string> Listen(const ListenSpec& spec) override {
    return inner_->Listen(spec);
  }

  absl::StatusOr<ConnectionId> Connect(const std::string& address) override {
    absl::StatusOr<ConnectionId> connection = inner_->Connect(address);
    if (connection.ok()) Add(*connection);
    return connection;
  }

  void Close(ConnectionId connection) override {
    links_.erase(connection);
    inner_->Close(connection);
  }

  absl::StatusOr<Region> Register(std::span<std::byte> bytes) override {
    return inner_->Register(bytes);
  }
  absl::StatusOr<Region> RegisterFor(std::span<std::byte> bytes,
                                     const PeerIdentity& writer) override {
    return inner_->RegisterFor(bytes, writer);
  }
  std::string PeerHost(ConnectionId connection) const override {
    return inner_->PeerHost(connection);
  }
  void SetAdmission(Admission admission) override { inner_->SetAdmission(std::move(admission)); }
  std::optional<PeerIdentity> ProvenIdentity(ConnectionId connection) const override {
    return inner_->ProvenIdentity(connection);
  }
  absl::Status TakesDeviceMemory() const override { return inner_->TakesDeviceMemory(); }
  absl::StatusOr<Region> RegisterDevice(const DeviceMemory& memory) override {
    return inner_->RegisterDevice(memory);
  }

  PostResult PostWrite(ConnectionId connection, RegionSlice source, wire::RemoteRef target,
                       uint64_t context) override {
    return Append(connection, {.source = source, .target = target, .context = context});
  }

  PostResult PostFrame(ConnectionId connection, std::vector<std::byte> frame) override {
    TALWEG_CHECK(!frame.empty() && frame.size() <= wire::kFrameBytesMax);
    Post post{.is_frame = true, .frame = std::move(frame)};
    if (faults_.frame_delay_ns_max > 0) {
      const auto bound = static_cast<uint64_t>(faults_.frame_delay_ns_max);
      post.leave_at_ns = clock_->NowNs() + static_cast<int64_t>(random_.Below(bound));
    }
    return Append(connection, std::move(post));
  }

  int Poll(EventSink& sink, int events_max) override {
    timer_.Quieten();
    int work = Release();
    work += Break(sink);
    InnerSink inner_sink(this, sink);
    return work + inner_->Poll(inner_sink, events_max);
  }

  int WaitDescriptor() const override { return epoll_.get(); }

  bool PrepareToSleep() override {
    int64_t first_ns = 0;
    for (const auto& [id, link] : links_) {
      if (link.Broken()) return false;
      if (link.posts.empty()) continue;
      const int64_t leave_at_ns = std::max<int64_t>(link.posts.front().leave_at_ns, 1);
      if (first_ns == 0 || leave_at_ns < first_ns) first_ns = leave_at_ns;
    }
    std::optional<int64_t> left_ns;
    if (first_ns != 0) {
      left_ns = first_ns - clock_->NowNs();
      if (*left_ns <= 0) return false;
    }
    timer_.RingIn(left_ns);
    return inner_->PrepareToSleep();
  }

  uint64_t PendingBytes(ConnectionId connection) const override {
    uint64_t bytes = inner_->PendingBytes(connection);
    const auto found = links_.find(connection);
    if (found == links_.end()) return bytes;
    for (const Post& post : found->second.posts) {
      bytes += post.is_frame ? post.frame.size() : post.source.length;
    }
    return bytes;
  }

 private:
  struct Post {
    bool is_frame = false;
    std::vector<std::byte> frame;
    RegionSlice source;
    wire::RemoteRef target;
    uint64_t context = 0;
    int64_t leave_at_ns = 0;
  };
  struct Link {
    uint64_t operations_left = 0;  // Until the connection breaks.
    bool breaks = false;
    std::deque<Post> posts;

    bool Broken() const { return breaks && operations_left == 0; }
  };

  class InnerSink final : public EventSink {
   public:
    InnerSink(FaultyTransport* owner, EventSink& sink) : owner_(owner), sink_(sink) {}
    void OnAccepted(ConnectionId connection) override {
      owner_->Add(connection);
      sink_.OnAccepted(connection);
    }
    void OnConnected(ConnectionId connection) override { sink_.OnConnected(connection); }
    void OnDisconnected(ConnectionId connection, const std::string& reason) override {
      owner_->links_.erase(connection);
      sink_.OnDisconnected(connection, reason);
    }
    void OnFrame(ConnectionId connection, std::span<const std::byte> frame) override {
      sink_.OnFrame(connection, frame);
    }
    void OnWriteDone(ConnectionId connection, uint64_t context) override {
      sink_.OnWriteDone(connection, context);
    }

   private:
    FaultyTransport* const owner_;
    EventSink& sink_;
  };

  void Add(ConnectionId connection) {
    Link& link = links_[connection];
    if (faults_.break_after_operations_max > 0) {
      link.breaks = true;
      link.operations_left = 1 + random_.Below(faults_.break_after_operations_max);
    }
  }

  PostResult Append(ConnectionId connection, Post post) {
    const auto found = links_.find(connection);
    if (found == links_.end()) return PostResult::kGone;
    found->second.posts.push_back(std::move(post));
    return PostResult::kPosted;
  }

  // Passes on the posts that are due, in order.
  int Release() {
    const int64_t now_ns = clock_->NowNs();
    int work = 0;
    for (auto& [id, link] : links_) {
      while (!link.posts.empty() && link.posts.front().leave_at_ns <= now_ns && !link.Broken()) {
        Post post = std::move(link.posts.front());
        link.posts.pop_front();
        if (post.is_frame) {
          inner_->PostFrame(id, std::move(post.frame));
        } else {
          inner_->PostWrite(id, post.source, post.target, post.context);
        }
        if (link.breaks) --link.operations_left;
        ++work;
      }
    }
    return work;
  }

  int Break(EventSink& sink) {
    std::vector<ConnectionId> broken;
    for (const auto& [id, link] : links_) {
      if (link.Broken()) broken.push_back(id);
    }
    int work = 0;
    for (const ConnectionId id : broken) {
      // The sink may have closed this connection during another's event.
      if (links_.erase(id) == 0) continue;
      inner_->Close(id);
      ++work;
      sink.OnDisconnected(id, "the faulty transport broke connection " +
                                  std::to_string(id.value()) + " (seed " +
                                  std::to_string(faults_.seed) + ")");
    }
    return work;
  }

  const std::unique_ptr<Transport> inner_;
  const Faults faults_;
  const runtime::Clock* const clock_;
  Random random_;
  const Descriptor epoll_;
  DeadlineTimer timer_;
  std::map<ConnectionId, Link> links_;
};

}  // namespace

std::unique_ptr<Transport> NewFaultyTransport(std::unique_ptr<Transport> inner,
                                              const Faults& faults, const runtime::Clock* clock) {
  return std::make_unique<FaultyTransport>(std::move(inner), faults, clock);
}

}  // namespace talweg::transport
