// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/composite/composite_transport.h"

#include <errno.h>
#include <sys/epoll.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"
#include "libs/status/status.h"

namespace talweg::transport {
namespace {

// The lowest bit of a composite's connection id says which transport has the connection.
enum class Part : uint64_t { kNetwork = 0, kLocal = 1 };

ConnectionId Outer(ConnectionId inner, Part part) {
  return ConnectionId(inner.value() * 2 + static_cast<uint64_t>(part));
}
ConnectionId Inner(ConnectionId outer) { return ConnectionId(outer.value() / 2); }
Part PartOf(ConnectionId outer) { return static_cast<Part>(outer.value() & 1); }

class CompositeRegistration final : public Registration {
 public:
  CompositeRegistration(Region network, Region local)
      : network_(std::move(network)), local_(std::move(local)) {
    bytes_ = network_.bytes();
    base_ = network_.Ref();
  }
  // A device's memory is registered with the network only, because shared memory cannot carry it.
  explicit CompositeRegistration(Region network) : network_(std::move(network)) {
    bytes_ = network_.bytes();
    base_ = network_.Ref();
    on_device_ = true;
  }

  const Registration* Of(Part part) const {
    return part == Part::kLocal ? local_.registration() : network_.registration();
  }

 private:
  Region network_;
  Region local_;
};

class CompositeTransport final : public Transport {
 public:
  CompositeTransport(std::unique_ptr<Transport> network, std::unique_ptr<LocalTransport> local)
      : network_(std::move(network)), local_(std::move(local)) {}

  absl::Status Start() {
    epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_.valid())
      return status::ErrnoStatus(errno, "epoll_create1 for a composite transport");
    for (const int fd : {network_->WaitDescriptor(), local_->WaitDescriptor()}) {
      epoll_event event{};
      event.events = EPOLLIN;
      if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
        return status::ErrnoStatus(errno, "epoll_ctl for a composite transport");
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Listen(const ListenSpec& spec) override {
    TALWEG_ASSIGN_OR_RETURN(const std::string network, network_->Listen(spec));
    TALWEG_ASSIGN_OR_RETURN(const std::string local, local_->Listen(spec));
    return network + "," + local;
  }

  absl::StatusOr<ConnectionId> Connect(const std::string& address) override {
    const bool is_local = address.starts_with("local:");
    // Had the caller been able to reach the local address, it would have selected it.
    absl::StatusOr<ConnectionId> connection =
        is_local ? local_->Connect(address) : network_->Connect(SelectAddress(address, false));
    if (!connection.ok()) return connection.status();
    return Outer(*connection, is_local ? Part::kLocal : Part::kNetwork);
  }

  void Close(ConnectionId connection) override { Of(connection).Close(Inner(connection)); }

  absl::StatusOr<Region> Register(std::span<std::byte> bytes) override {
    TALWEG_ASSIGN_OR_RETURN(Region network, network_->Register(bytes));
    return WithLocal(bytes, std::move(network), std::nullopt);
  }

  absl::StatusOr<Region> RegisterFor(std::span<std::byte> bytes,
                                     const PeerIdentity& writer) override {
    TALWEG_ASSIGN_OR_RETURN(Region network, network_->RegisterFor(bytes, writer));
    return WithLocal(bytes, std::move(network), writer);
  }

  void SetAdmission(Admission admission) override {
    local_->SetAdmission(admission);
    network_->SetAdmission(std::move(admission));
  }

  std::optional<PeerIdentity> ProvenIdentity(ConnectionId connection) const override {
    return PartOf(connection) == Part::kLocal ? local_->ProvenIdentity(Inner(connection))
                                              : network_->ProvenIdentity(Inner(connection));
  }

  std::string PeerHost(ConnectionId connection) const override {
    return PartOf(connection) == Part::kLocal ? "" : network_->PeerHost(Inner(connection));
  }

  absl::Status TakesDeviceMemory() const override { return network_->TakesDeviceMemory(); }

  // For connections over the network only.
  absl::StatusOr<Region> RegisterDevice(const DeviceMemory& memory) override {
    TALWEG_ASSIGN_OR_RETURN(Region network, network_->RegisterDevice(memory));
    return Region(std::make_unique<CompositeRegistration>(std::move(network)));
  }

  PostResult PostWrite(ConnectionId connection, RegionSlice source, wire::RemoteRef target,
                       uint64_t context) override {
    const auto* both = static_cast<const CompositeRegistration*>(source.registration);
    TALWEG_CHECK(!both->on_device() || PartOf(connection) == Part::kNetwork);
    source.registration = both->Of(PartOf(connection));
    return Of(connection).PostWrite(Inner(connection), source, target, context);
  }

  PostResult PostFrame(ConnectionId connection, std::vector<std::byte> frame) override {
    return Of(connection).PostFrame(Inner(connection), std::move(frame));
  }

  int Poll(EventSink& sink, int events_max) override {
    // The two transports take turns at having the whole budget first.
    local_first_ = !local_first_;
    const Part first = local_first_ ? Part::kLocal : Part::kNetwork;
    const Part second = local_first_ ? Part::kNetwork : Part::kLocal;
    int events = 0;
    int work = PollPart(first, sink, events_max, &events);
    if (events < events_max) work += PollPart(second, sink, events_max - events, &events);
    return work;
  }

  int WaitDescriptor() const override { return epoll_.get(); }

  bool PrepareToSleep() override { return local_->PrepareToSleep() && network_->PrepareToSleep(); }

  uint64_t PendingBytes(ConnectionId connection) const override {
    return PartOf(connection) == Part::kLocal ? local_->PendingBytes(Inner(connection))
                                              : network_->PendingBytes(Inner(connection));
  }

 private:
  // Passes events on under the composite's ids, and counts them.
  class PartSink final : public EventSink {
   public:
    PartSink(EventSink& sink, Part part, int* events) : sink_(sink), part_(part), events_(events) {}

    void OnAccepted(ConnectionId connection) override {
      ++*events_;
      sink_.OnAccepted(Outer(connection, part_));
    }
    void OnConnected(ConnectionId connection) override {
      ++*events_;
      sink_.OnConnected(Outer(connection, part_));
    }
    void OnDisconnected(ConnectionId connection, const std::string& reason) override {
      ++*events_;
      sink_.OnDisconnected(Outer(connection, part_), reason);
    }
    void OnFrame(ConnectionId connection, std::span<const std::byte> frame) override {
      ++*events_;
      sink_.OnFrame(Outer(connection, part_), frame);
    }
    void OnWriteDone(ConnectionId connection, uint64_t context) override {
      ++*events_;
      sink_.OnWriteDone(Outer(connection, part_), context);
    }

   private:
    EventSink& sink_;
    const Part part_;
    int* const events_;
  };

  absl::StatusOr<Region> WithLocal(std::span<std::byte> bytes, Region network,
                                   const std::optional<PeerIdentity>& writer) {
    TALWEG_ASSIGN_OR_RETURN(Region local, local_->RegisterAs(bytes, network.Ref(), writer));
    return Region(std::make_unique<CompositeRegistration>(std::move(network), std::move(local)));
  }

  Transport& Of(Part part) {
    return part == Part::kLocal ? static_cast<Transport&>(*local_) : *network_;
  }
  Transport& Of(ConnectionId connection) { return Of(PartOf(connection)); }

  int PollPart(Part part, EventSink& sink, int events_max, int* events) {
    PartSink part_sink(sink, part, events);
    return Of(part).Poll(part_sink, events_max);
  }

  Descriptor epoll_;
  const std::unique_ptr<Transport> network_;
  const std::unique_ptr<LocalTransport> local_;
  bool local_first_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> NewCompositeTransport(
    std::unique_ptr<Transport> network, std::unique_ptr<LocalTransport> local) {
  auto transport = std::make_unique<CompositeTransport>(std::move(network), std::move(local));
  TALWEG_RETURN_IF_ERROR(transport->Start());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace talweg::transport
