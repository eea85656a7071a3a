// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/loopback/loopback_transport.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"
#include "libs/base/fingerprint.h"
#include "libs/base/shown_address.h"

namespace talweg::transport {
namespace {

constexpr char kScheme[] = "loopback://";
// Bounds the bytes that have left a sender and that the receiver has not polled. One operation
// always fits.
constexpr size_t kInFlightBytesMax = 1 << 20;
constexpr size_t kOperationBytes = 64;  // Added for each operation, to bound their number, too.

class LoopbackTransport;

// A frame, or a write whose bytes have left their source.
struct Operation {
  bool is_frame = false;
  std::vector<std::byte> bytes;
  wire::RemoteRef target;
};

// A posted frame or write.
struct Post {
  bool is_frame = false;
  std::vector<std::byte> frame;
  RegionSlice source;
  wire::RemoteRef target;
  uint64_t context = 0;

  size_t size() const { return is_frame ? frame.size() : source.length; }
};

// One side of a connection.
struct End {
  ConnectionId id;
  LoopbackTransport* owner = nullptr;
  End* peer = nullptr;  // Null: the other side is gone.
  std::string peer_name;
  bool connecting = false;
  bool told = false;            // The owner was told that the connection exists.
  std::string ending;           // Not empty: over when the inbox is empty.
  std::deque<Post> posts;       // Posts that have not left yet.
  std::deque<Operation> inbox;  // Operations that have left the peer and are not delivered yet.
  size_t inbox_bytes = 0;
  std::deque<uint64_t> done;
};

// One lock guards everything that the transports share.
class Network final : public LoopbackNetwork {
 public:
  explicit Network(LoopbackDevices* reached) : devices(reached) {}

  std::unique_ptr<Transport> NewTransport() override;

  LoopbackDevices* const devices;  // May be null.
  std::mutex mutex;
  std::map<uint64_t, LoopbackTransport*> listening;  // By address.
  uint64_t next_number = 1;
  uint64_t next_key = 1;
};

class LoopbackRegistration final : public Registration {
 public:
  LoopbackRegistration(LoopbackTransport* owner, std::span<std::byte> bytes, wire::RemoteRef base,
                       bool on_device)
      : owner_(owner) {
    bytes_ = bytes;
    on_device_ = on_device;
    base_ = base;
  }
  ~LoopbackRegistration() override;

 private:
  LoopbackTransport* const owner_;
};

class LoopbackTransport final : public Transport {
 public:
  explicit LoopbackTransport(Network* network)
      : network_(network), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    TALWEG_CHECK(wake_.valid());
  }

  ~LoopbackTransport() override {
    const std::lock_guard lock(network_->mutex);
    while (!ends_.empty()) Drop(ends_.begin()->second.get());
    std::erase_if(network_->listening, [&](const auto& entry) { return entry.second == this; });
  }

  absl::StatusOr<std::string> Listen(const ListenSpec&) override {
    const std::lock_guard lock(network_->mutex);
    const uint64_t number = network_->next_number++;
    network_->listening.emplace(number, this);
    return kScheme + std::to_string(number);
  }

  absl::StatusOr<ConnectionId> Connect(const std::string& address) override {
    uint64_t number = 0;
    const size_t scheme_bytes = sizeof(kScheme) - 1;
    const char* const end = address.data() + address.size();
    if (!address.starts_with(kScheme) ||
        std::from_chars(address.data() + scheme_bytes, end, number).ptr != end || number == 0) {
      return absl::InvalidArgumentError("cannot connect to '" + ShownAddress(address) +
                                        "': expected loopback://<number>");
    }
    const std::lock_guard lock(network_->mutex);
    const auto found = network_->listening.find(number);
    End* const ours = NewEnd(address);
    ours->connecting = true;
    if (found == network_->listening.end()) {
      ours->ending = "connect to " + address + ": nobody listens there";
    } else {
      End* const theirs = found->second->NewEnd("a peer of " + address);
      ours->peer = theirs;
      theirs->peer = ours;
      found->second->Wake();
    }
    Wake();
    return ours->id;
  }

  void Close(ConnectionId id) override {
    const std::lock_guard lock(network_->mutex);
    const auto found = ends_.find(id);
    if (found != ends_.end()) Drop(found->second.get());
  }

  absl::StatusOr<Region> Register(std::span<std::byte> bytes) override {
    return Add(bytes, /*on_device=*/false);
  }

  absl::Status TakesDeviceMemory() const override {
    return network_->devices != nullptr ? absl::OkStatus() : Transport::TakesDeviceMemory();
  }

  absl::StatusOr<Region> RegisterDevice(const DeviceMemory& memory) override {
    if (network_->devices == nullptr) return TakesDeviceMemory();
    return Add({reinterpret_cast<std::byte*>(memory.address), memory.bytes}, /*on_device=*/true);
  }

  PostResult PostWrite(ConnectionId id, RegionSlice source, wire::RemoteRef target,
                       uint64_t context) override {
    return Append(id, Post{.source = source, .target = target, .context = context});
  }

  PostResult PostFrame(ConnectionId id, std::vector<std::byte> frame) override {
    TALWEG_CHECK(!frame.empty() && frame.size() <= wire::kFrameBytesMax);
    return Append(id, Post{.is_frame = true, .frame = std::move(frame)});
  }

  int Poll(EventSink& sink, int events_max) override {
    uint64_t ignored;
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &ignored, sizeof(ignored));
    int work = 0;
    std::vector<ConnectionId> ids;
    {
      const std::lock_guard lock(network_->mutex);
      for (const auto& [id, end] : ends_) ids.push_back(id);
    }
    int events = 0;
    for (const ConnectionId id : ids) {
      while (events < events_max) {
        const std::optional<Event> event = NextEvent(id, &work);
        if (!event.has_value()) break;
        ++work;
        if (event->kind == Event::Kind::kWrite) continue;
        ++events;
        Deliver(sink, id, *event);
      }
    }
    return work;
  }

  int WaitDescriptor() const override { return wake_.get(); }

  bool PrepareToSleep() override {
    const std::lock_guard lock(network_->mutex);
    return std::none_of(ends_.begin(), ends_.end(),
                        [](const auto& entry) { return HasWork(*entry.second); });
  }

  uint64_t PendingBytes(ConnectionId id) const override {
    const std::lock_guard lock(network_->mutex);
    const auto found = ends_.find(id);
    uint64_t bytes = 0;
    if (found == ends_.end()) return 0;
    for (const Post& post : found->second->posts) bytes += post.size();
    return bytes;
  }

  // Under the lock, so that no peer still writes to the region when it is gone.
  void Unregister(uint64_t key) {
    const std::lock_guard lock(network_->mutex);
    regions_.erase(key);
  }

 private:
  struct Event {
    enum class Kind { kAccepted, kConnected, kDisconnected, kFrame, kWrite, kWriteDone };
    Kind kind = Kind::kWrite;
    std::string reason;
    std::vector<std::byte> frame;
    uint64_t context = 0;
  };

  static void Deliver(EventSink& sink, ConnectionId id, const Event& event) {
    switch (event.kind) {
      case Event::Kind::kAccepted: return sink.OnAccepted(id);
      case Event::Kind::kConnected: return sink.OnConnected(id);
      case Event::Kind::kDisconnected: return sink.OnDisconnected(id, event.reason);
      case Event::Kind::kFrame: return sink.OnFrame(id, event.frame);
      case Event::Kind::kWriteDone: return sink.OnWriteDone(id, event.context);
      case Event::Kind::kWrite: return;
    }
  }

  absl::StatusOr<Region> Add(std::span<std::byte> bytes, bool on_device) {
    if (bytes.empty()) return absl::InvalidArgumentError("a region of 0 bytes");
    const std::lock_guard lock(network_->mutex);
    // Mixed, so that no test relies on the order of keys.
    const wire::RemoteRef base{.key = Mix64(network_->next_key++), .address = 0};
    auto registration = std::make_unique<LoopbackRegistration>(this, bytes, base, on_device);
    regions_.emplace(base.key, registration.get());
    return Region(std::move(registration));
  }

  // The caller of all functions below holds the network's lock, unless they take it.
  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = write(wake_.get(), &one, sizeof(one));
  }

  End* NewEnd(const std::string& peer_name) {
    auto end = std::make_unique<End>();
    end->id = ConnectionId(next_id_++);
    end->owner = this;
    end->peer_name = peer_name;
    return ends_.emplace(end->id, std::move(end)).first->second.get();
  }

  // This side is gone. The other side is told after it has received all that had left.
  void Drop(End* end) {
    if (End* const peer = end->peer; peer != nullptr) {
      peer->peer = nullptr;
      peer->posts.clear();
      if (peer->ending.empty()) peer->ending = peer->peer_name + " closed the connection";
      peer->owner->Wake();
    }
    ends_.erase(end->id);
  }

  PostResult Append(ConnectionId id, Post post) {
    const std::lock_guard lock(network_->mutex);
    const auto found = ends_.find(id);
    if (found == ends_.end()) return PostResult::kGone;
    found->second->posts.push_back(std::move(post));
    Wake();
    return PostResult::kPosted;
  }

  static bool HasRoom(const End& end) {
    return end.inbox.empty() || end.inbox_bytes < kInFlightBytesMax;
  }
  static bool MaySend(const End& end) {
    return !end.posts.empty() && end.told && end.peer != nullptr && HasRoom(*end.peer);
  }
  static bool HasWork(const End& end) {
    return !end.told || !end.done.empty() || !end.inbox.empty() || !end.ending.empty() ||
           MaySend(end);
  }

  // Lets posts leave: copies their bytes, so that their sources are free.
  void Send(End& end, int* work) const {
    while (MaySend(end)) {
      Post& post = end.posts.front();
      Operation operation{.is_frame = post.is_frame, .target = post.target};
      if (post.is_frame) {
        operation.bytes = std::move(post.frame);
      } else {
        const std::span<std::byte> bytes =
            post.source.registration == nullptr
                ? std::span<std::byte>()
                : post.source.registration->bytes().subspan(post.source.offset, post.source.length);
        if (!bytes.empty() && post.source.registration->on_device()) {
          operation.bytes.resize(bytes.size());
          network_->devices->Read(reinterpret_cast<uint64_t>(bytes.data()), operation.bytes);
        } else {
          operation.bytes.assign(bytes.begin(), bytes.end());
        }
        end.done.push_back(post.context);
      }
      end.peer->inbox_bytes += operation.bytes.size() + kOperationBytes;
      end.peer->inbox.push_back(std::move(operation));
      end.peer->owner->Wake();
      end.posts.pop_front();
      ++*work;
    }
  }

  bool Land(const Operation& operation) {
    if (operation.bytes.empty()) return true;
    const auto found = regions_.find(operation.target.key);
    if (found == regions_.end()) return false;
    const std::span<std::byte> region = found->second->bytes();
    const uint64_t offset = operation.target.address;
    if (offset > region.size() || operation.bytes.size() > region.size() - offset) return false;
    if (found->second->on_device()) {
      network_->devices->Write(reinterpret_cast<uint64_t>(region.data()) + offset, operation.bytes);
    } else {
      memcpy(region.data() + offset, operation.bytes.data(), operation.bytes.size());
    }
    return true;
  }

  std::optional<Event> NextEvent(ConnectionId id, int* work) {
    const std::lock_guard lock(network_->mutex);
    const auto found = ends_.find(id);
    if (found == ends_.end()) return std::nullopt;
    End& end = *found->second;
    if (!end.told &&
        (end.peer != nullptr || end.ending.empty() || !end.connecting || !end.inbox.empty())) {
      end.told = true;
      return Event{.kind = end.connecting ? Event::Kind::kConnected : Event::Kind::kAccepted};
    }
    Send(end, work);
    if (!end.done.empty()) {
      const uint64_t context = end.done.front();
      end.done.pop_front();
      return Event{.kind = Event::Kind::kWriteDone, .context = context};
    }
    if (!end.inbox.empty()) {
      Operation operation = std::move(end.inbox.front());
      end.inbox.pop_front();
      end.inbox_bytes -= operation.bytes.size() + kOperationBytes;
      if (end.peer != nullptr) end.peer->owner->Wake();
      if (operation.is_frame) {
        return Event{.kind = Event::Kind::kFrame, .frame = std::move(operation.bytes)};
      }
      if (Land(operation)) return Event{.kind = Event::Kind::kWrite};
      end.ending = end.peer_name + " has written to a place that was not given to it";
      end.inbox.clear();
    }
    if (end.ending.empty()) return std::nullopt;
    Event event{.kind = Event::Kind::kDisconnected, .reason = end.ending};
    Drop(&end);
    return event;
  }

  Network* const network_;
  const Descriptor wake_;
  uint64_t next_id_ = 1;
  std::map<ConnectionId, std::unique_ptr<End>> ends_;
  std::map<uint64_t, const Registration*> regions_;
};

LoopbackRegistration::~LoopbackRegistration() { owner_->Unregister(base_.key); }

std::unique_ptr<Transport> Network::NewTransport() {
  return std::make_unique<LoopbackTransport>(this);
}

}  // namespace

std::unique_ptr<LoopbackNetwork> NewLoopbackNetwork(LoopbackDevices* devices) {
  return std::make_unique<Network>(devices);
}

}  // namespace talweg::transport
