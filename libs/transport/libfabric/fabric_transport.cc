// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/libfabric/fabric_transport.h"

#include <errno.h>
#include <sys/epoll.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/shown_address.h"
#include "libs/status/status.h"
#include "libs/transport/libfabric/fabric_class.h"

namespace talweg::transport {
namespace {

// Splits "host:port/key". Without a key, `key` is one that opens nothing. Returns false if the key
// cannot be parsed.
bool SplitKey(std::string* address, AddressKey* key) {
  const size_t slash = address->rfind('/');
  if (slash == std::string::npos) return true;
  const auto parsed = ParseAddressKey(std::string_view(*address).substr(slash + 1));
  if (!parsed) return false;
  *key = *parsed;
  address->resize(slash);
  return true;
}

}  // namespace

absl::Status FabricTransport::Start() {
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid() || !watch_.timer().Open()) {
    return status::ErrnoStatus(errno, "descriptors of a transport");
  }
  TALWEG_RETURN_IF_ERROR(Watch(provider_->event_queue_descriptor(), kEventQueueTag));
  return Watch(watch_.timer().descriptor(), kTimerTag);
}

absl::Status FabricTransport::Watch(int descriptor, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return absl::OkStatus();
  return status::ErrnoStatus(errno, "epoll_ctl for a transport");
}

absl::Status FabricTransport::WatchHalfOpen(const SocketAddress& listener) {
  // Other providers have no sockets, or sockets of another process or thread.
  if (provider_->name() != "tcp") return absl::OkStatus();
  if (half_open_timer_.descriptor() < 0) {
    if (!half_open_timer_.Open()) return status::ErrnoStatus(errno, "descriptors of a transport");
    TALWEG_RETURN_IF_ERROR(Watch(half_open_timer_.descriptor(), kHalfOpenTag));
  }
  half_open_.AddListener(listener);
  return absl::OkStatus();
}

absl::StatusOr<std::string> FabricTransport::Listen(const ListenSpec& spec) {
  return ListenAtFreePort(spec,
                          [&](const SocketAddress& address) { return ListenAt(spec, address); });
}

absl::StatusOr<std::string> FabricTransport::ListenAt(const ListenSpec& spec,
                                                      const SocketAddress& address) {
  const std::string where = "listen at " + address.ToString();
  TALWEG_ASSIGN_OR_RETURN(InfoHandle info, provider_->InfoFrom(address));
  const auto failed = [&](int64_t error) -> absl::Status {
    const std::string text = where + ": " + FabricErrorText(error);
    if (error == -FI_EADDRINUSE) {
      return absl::AlreadyExistsError(text + "; give another port, or 0 for any free one");
    }
    if (error == -EADDRNOTAVAIL) {
      return absl::InvalidArgumentError(text + ": it is not an address of this host");
    }
    if (error == -EACCES) return absl::PermissionDeniedError(text);
    return absl::UnavailableError(text);
  };
  fid_pep* listener = nullptr;
  int error = fi_passive_ep(provider_->fabric(), info.get(), &listener, nullptr);
  if (error != 0) return failed(error);
  PassiveEndpointHandle handle(listener);
  error = fi_pep_bind(listener, &provider_->event_queue()->fid, 0);
  if (error != 0) return failed(error);
  error = fi_listen(listener);
  if (error != 0) return failed(error);
  sockaddr_storage bound{};
  size_t bound_bytes = sizeof(bound);
  error = fi_getname(&listener->fid, &bound, &bound_bytes);
  if (error != 0) return failed(error);
  const SocketAddress name(&bound, bound_bytes);
  if (!name.valid()) return absl::UnavailableError(where + ": the provider gave no IP address");

  TALWEG_RETURN_IF_ERROR(WatchHalfOpen(name));
  listeners_.push_back(std::move(handle));
  events_armed_ = false;
  return "fi:" + provider_->name() + "://" + AdvertisedHostPort(spec, name) + "/" +
         AddressKey{.identity = std::nullopt, .key = listener_key_, .is_seed = true}.ToString();
}

absl::StatusOr<ConnectionId> FabricTransport::Connect(const std::string& address) {
  const std::string scheme = "fi:" + provider_->name() + "://";
  if (!address.starts_with(scheme)) {
    return absl::InvalidArgumentError("cannot connect to '" + ShownAddress(address) +
                                      "' from provider '" + provider_->name() +
                                      "': expected an address like " + scheme +
                                      "host:port; all processes of a job use one provider");
  }
  std::string host_port = address.substr(scheme.size());
  AddressKey key;
  if (!SplitKey(&host_port, &key)) {
    return absl::InvalidArgumentError(
        "'" + ShownAddress(address) +
        "' is not an address: expected the key of a member after its port, which the scheduler "
        "gives "
        "to members; a scheduler or an aggregator of an older release gives another: install the "
        "same release everywhere");
  }
  absl::StatusOr<SocketAddress> destination = ResolveHostPort(host_port);
  // Names in messages must not show the key.
  const std::string name = scheme + host_port;
  if (!destination.ok()) return status::Annotate(destination.status(), "connect to '" + name + "'");
  SocketAddress source;
  if (!options_.source_interface.empty() && !destination->IsLoopback()) {
    const auto found = AddressOfInterface(options_.source_interface, destination->family());
    if (!found.ok()) return status::Annotate(found.status(), "connect to '" + name + "'");
    source = *found;
  }
  TALWEG_ASSIGN_OR_RETURN(InfoHandle info, provider_->InfoTo(*destination, source));
  const ConnectionId id(next_id_++);
  const auto peer = std::make_shared<Peer>();
  peer->connection = std::make_unique<FabricConnection>(provider_.get(), id, name);
  peer->connecting = true;
  TALWEG_RETURN_IF_ERROR(peer->connection->Open(info.get(), options_.receive_buffers));
  TALWEG_RETURN_IF_ERROR(AddPeer(peer));
  const auto [token, answer] = tokens_.Next(key);
  peer->answer = answer;
  const int error =
      fi_connect(peer->connection->endpoint(), destination->get(), token.data(), token.size());
  if (error != 0) {
    // Reported like any failed attempt, so that callers handle both in one place.
    peer->ending = "connect to " + name + ": " + FabricErrorText(error);
    Forget(*peer);
    broken_.push_back(peer);
  }
  return id;
}

absl::Status FabricTransport::AddPeer(const PeerHandle& peer) {
  const FabricConnection& connection = *peer->connection;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = connection.id().value();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.descriptor(), &event) != 0) {
    return status::ErrnoStatus(errno, "watch the connection with " + connection.peer());
  }
  peer->times.open_by_ns = clock_->NowNs() + options_.connect_timeout_ns;
  peers_.emplace(connection.id(), peer);
  by_endpoint_.emplace(&connection.endpoint()->fid, connection.id());
  events_armed_ = false;
  watch_.Arm(peers_);
  return absl::OkStatus();
}

// Forgets the connection and closes it. The event queue may hold events of its endpoint, which
// would name the next endpoint that the provider makes at the same address. So the queue is read
// before and after, and events that name no connection are dropped.
void FabricTransport::Forget(Peer& peer) {
  FabricConnection& connection = *peer.connection;
  if (connection.closed()) return;
  ReadEvents();
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.descriptor(), nullptr);
  by_endpoint_.erase(&connection.endpoint()->fid);
  peers_.erase(connection.id());
  connection.Close();
  ReadEvents();
}

void FabricTransport::Close(ConnectionId id) {
  const auto found = peers_.find(id);
  if (found != peers_.end()) {
    const PeerHandle peer = found->second;
    Forget(*peer);
    return;
  }
  std::erase_if(broken_, [&](const PeerHandle& peer) { return peer->connection->id() == id; });
}

absl::Status FabricTransport::TakesDeviceMemory() const {
  switch (options_.devices) {
    case FabricOptions::Devices::kNone: return Transport::TakesDeviceMemory();
    case FabricOptions::Devices::kCuda: return provider_->takes_device_memory();
    case FabricOptions::Devices::kFake: break;
  }
  return absl::OkStatus();
}

absl::StatusOr<Region> FabricTransport::Register(std::span<std::byte> bytes) {
  return Register(bytes, nullptr);
}

absl::StatusOr<Region> FabricTransport::RegisterDevice(const DeviceMemory& memory) {
  TALWEG_RETURN_IF_ERROR(TakesDeviceMemory());
  return Register({reinterpret_cast<std::byte*>(memory.address), memory.bytes}, &memory);
}

absl::StatusOr<Region> FabricTransport::Register(std::span<std::byte> bytes,
                                                 const DeviceMemory* memory) {
  if (bytes.empty()) return absl::InvalidArgumentError("a region of 0 bytes");
  const ProviderLimits& limits = provider_->limits();
  const uint64_t access = FI_WRITE | FI_REMOTE_WRITE;
  const bool on_device = memory != nullptr;
  const bool is_cuda = on_device && options_.devices == FabricOptions::Devices::kCuda;
  for (int attempt = 0;; ++attempt) {
    const uint64_t key = keys_.Next(limits.key_bits);
    absl::StatusOr<MemoryRegionHandle> region =
        is_cuda ? provider_->RegisterDeviceMemory(*memory, access, key)
                : provider_->RegisterMemory(bytes.data(), bytes.size(), access, key);
    if (absl::IsAlreadyExists(region.status()) && attempt < 8) continue;
    if (!region.ok()) return region.status();
    const wire::RemoteRef base{
        .key = fi_mr_key(region->get()),
        .address = limits.virtual_addresses ? reinterpret_cast<uint64_t>(bytes.data()) : 0};
    return Region(std::make_unique<FabricRegistration>(*std::move(region), bytes, base, on_device));
  }
}

PostResult FabricTransport::PostWrite(ConnectionId id, RegionSlice source, wire::RemoteRef target,
                                      uint64_t context) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return PostResult::kGone;
  counters_.write_bytes_sent.Add(source.length);
  Peer& peer = *found->second;
  peer.connection->PostWrite(source, target, context);
  // No peer reads a write's bytes before the frame after it. So small writes wait for that frame,
  // or for more writes, and leave in one system call, in full packets. Poll sends the rest.
  if (peer.connection->waiting_bytes() >= FabricConnection::kGatheredBytesMax) {
    Advance(peer);
  } else {
    peer.armed = false;
  }
  return PostResult::kPosted;
}

PostResult FabricTransport::PostFrame(ConnectionId id, std::vector<std::byte> frame) {
  TALWEG_CHECK(!frame.empty() && frame.size() <= wire::kFrameBytesMax);
  const auto found = peers_.find(id);
  if (found == peers_.end()) return PostResult::kGone;
  counters_.frame_bytes_sent.Add(frame.size());
  found->second->connection->PostFrame(std::move(frame));
  Advance(*found->second);
  return PostResult::kPosted;
}

std::string FabricTransport::PeerHost(ConnectionId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? "" : CountedHost(HostOf(found->second->connection->peer()));
}

std::optional<PeerIdentity> FabricTransport::ProvenIdentity(ConnectionId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? std::nullopt : found->second->proven;
}

uint64_t FabricTransport::PendingBytes(ConnectionId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? 0 : found->second->connection->pending_bytes();
}

void FabricTransport::Advance(Peer& peer) {
  // The provider may have used the endpoint, so ask before relying on its descriptor again.
  peer.armed = false;
  const absl::Status status = peer.connection->Advance();
  if (!status.ok() && peer.ending.empty()) peer.ending = std::string(status.message());
}

absl::StatusOr<std::unique_ptr<Transport>> NewFabricTransport(const FabricOptions& options,
                                                              const runtime::Clock* clock,
                                                              telemetry::CounterSet* counters) {
  TALWEG_ASSIGN_OR_RETURN(std::unique_ptr<Provider> provider,
                          Provider::Open(options.provider, options.device,
                                         options.devices == FabricOptions::Devices::kCuda));
  auto transport = std::make_unique<FabricTransport>(options, clock, counters, std::move(provider));
  TALWEG_RETURN_IF_ERROR(transport->Start());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace talweg::transport
