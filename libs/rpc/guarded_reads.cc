// SPDX-License-Identifier: Apache-2.0
// Puts a FrameGuard before each connection of this process's gRPC servers: on ports, with and
// without TLS, and on Unix sockets. Adds each TLS connection, of servers and clients, to the
// TlsPeers that watch its peer's certificate.
//
// gRPC 1.51 has no hook for that. It is linked from an archive, so the linker can redirect calls
// from one of gRPC's files to another to this file (--wrap, in BUILD.bazel). The names of these
// functions are those of gRPC 1.51: a version with other names does not link. If gRPC is a shared
// library (--config=tsan), this file's functions are not called.
#include <grpc/grpc_security.h>
#include <grpc/slice.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "libs/rpc/frame_guard.h"
#include "libs/rpc/steady_time.h"
#include "libs/rpc/tls_peers.h"
#include "libs/rpc/tls_peers_argument.h"

// Declared as in gRPC.
struct grpc_chttp2_transport;
struct grpc_endpoint;
struct grpc_transport;
namespace grpc_core {
class ChannelArgs;
}

namespace talweg::rpc {

// An HTTP/2 setting in gRPC 1.51's layout.
struct Setting {
  const char* name;
  uint32_t default_value;
  uint32_t min_value;
  uint32_t max_value;
  uint32_t invalid_value_behavior;
  uint32_t error_value;
};
static_assert(sizeof(Setting) == 32);
using Settings = std::array<Setting, 7>;

// gRPC's functions and table, and their replacements for gRPC's other files.
#define TALWEG_CREATE "_Z28grpc_create_chttp2_transportRKN9grpc_core11ChannelArgsEP13grpc_endpointb"
#define TALWEG_READ "_Z24grpc_chttp2_perform_readP21grpc_chttp2_transportRK10grpc_slice"
#define TALWEG_DESTROY "_Z21grpc_endpoint_destroyP13grpc_endpoint"
#define TALWEG_SETTINGS "grpc_chttp2_settings_parameters"

grpc_transport* RealCreate(const grpc_core::ChannelArgs& args, grpc_endpoint* endpoint,
                           bool is_client) asm("__real_" TALWEG_CREATE);
grpc_transport* Create(const grpc_core::ChannelArgs& args, grpc_endpoint* endpoint,
                       bool is_client) asm("__wrap_" TALWEG_CREATE);
absl::Status RealRead(grpc_chttp2_transport* transport,
                      const grpc_slice& slice) asm("__real_" TALWEG_READ);
absl::Status Read(grpc_chttp2_transport* transport,
                  const grpc_slice& slice) asm("__wrap_" TALWEG_READ);
void RealDestroy(grpc_endpoint* endpoint) asm("__real_" TALWEG_DESTROY);
void Destroy(grpc_endpoint* endpoint) asm("__wrap_" TALWEG_DESTROY);
// The next two are only called, not replaced.
void* PointerOf(const grpc_core::ChannelArgs* args, absl::string_view name) asm(
    "_ZNK9grpc_core11ChannelArgs14GetVoidPointerEN4absl7debian311string_viewE");
int SocketOf(grpc_endpoint* endpoint) asm("_Z20grpc_endpoint_get_fdP13grpc_endpoint");
extern const Settings kRealSettings asm("__real_" TALWEG_SETTINGS);
extern Settings settings asm("__wrap_" TALWEG_SETTINGS);

namespace {

// The limits that gRPC assumes for a client before the client has acknowledged the server's
// settings. They differ by one from the server's own (kCallsOfConnectionMax in server.cc, and
// gRPC's 8 KiB of metadata), because gRPC sends only settings that differ from the default.
constexpr uint32_t kStreamsBeforeMax = 129;
constexpr uint32_t kMetadataBytesBeforeMax = 8193;

Settings WithBounds(Settings settings) {
  for (Setting& setting : settings) {
    if (std::strcmp(setting.name, "MAX_CONCURRENT_STREAMS") == 0) {
      setting.default_value = kStreamsBeforeMax;
    }
    if (std::strcmp(setting.name, "MAX_HEADER_LIST_SIZE") == 0) {
      setting.default_value = kMetadataBytesBeforeMax;
    }
  }
  return settings;
}

// GRPC_AUTH_CONTEXT_ARG, which is in no public header of gRPC.
constexpr char kAuthContextArgument[] = "grpc.auth_context";

std::string PropertyOf(const grpc_auth_context* context, const char* name) {
  grpc_auth_property_iterator found = grpc_auth_context_find_properties_by_name(context, name);
  const grpc_auth_property* const property = grpc_auth_property_iterator_next(&found);
  return property == nullptr ? "" : std::string(property->value, property->value_length);
}

// Watches the certificate of a new connection's peer. Returns null if the peer has shown none, or
// if there are no TlsPeers.
TlsPeersHolder WatchPeer(const grpc_core::ChannelArgs& args, grpc_endpoint* endpoint,
                         bool is_client) {
  const auto* const holder = static_cast<TlsPeersHolder*>(PointerOf(&args, kTlsPeersArgument));
  const auto* const context =
      static_cast<const grpc_auth_context*>(PointerOf(&args, kAuthContextArgument));
  if (holder == nullptr || context == nullptr) return nullptr;
  PeerCertificate peer = {
      .certificate = PropertyOf(context, GRPC_X509_PEM_CERT_PROPERTY_NAME),
      .chain = PropertyOf(context, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME),
  };
  if (peer.certificate.empty()) return nullptr;
  const TlsPeers::End end = is_client ? TlsPeers::End::kClient : TlsPeers::End::kServer;
  (*holder)->Add(endpoint, SocketOf(endpoint), end, std::move(peer), std::time(nullptr));
  return *holder;
}

// The state of all connections of this process. gRPC reads one connection on one thread at a time,
// and several connections at once.
class Guards {
 public:
  void Add(const void* transport, const grpc_endpoint* endpoint) {
    const std::lock_guard lock(mutex_);
    guards_[transport] = std::make_shared<FrameGuard>(&limits_, &half_bytes_);
    transports_[endpoint] = transport;
  }
  void AddWatched(const grpc_endpoint* endpoint, TlsPeersHolder peers) {
    const std::lock_guard lock(mutex_);
    watched_[endpoint] = std::move(peers);
  }

  void Remove(const grpc_endpoint* endpoint) {
    const std::lock_guard lock(mutex_);
    if (const auto watched = watched_.find(endpoint); watched != watched_.end()) {
      watched->second->Remove(endpoint);
      watched_.erase(watched);
    }
    const auto found = transports_.find(endpoint);
    if (found == transports_.end()) return;
    guards_.erase(found->second);
    transports_.erase(found);
  }

  // Null if this process is the client.
  std::shared_ptr<FrameGuard> Find(const void* transport) {
    const std::lock_guard lock(mutex_);
    const auto found = guards_.find(transport);
    return found == guards_.end() ? nullptr : found->second;
  }

 private:
  const FrameLimits limits_;
  HalfBytes half_bytes_ = 0;
  std::mutex mutex_;
  std::map<const void*, std::shared_ptr<FrameGuard>> guards_;
  std::map<const grpc_endpoint*, const void*> transports_;
  std::map<const grpc_endpoint*, TlsPeersHolder> watched_;
};

Guards& AllGuards() {
  // Never destroyed: gRPC's threads may outlive main.
  static auto* const guards = new Guards;
  return *guards;
}

}  // namespace

// Set before main, and read by gRPC from its first connection on.
Settings settings = WithBounds(kRealSettings);

grpc_transport* Create(const grpc_core::ChannelArgs& args, grpc_endpoint* endpoint,
                       bool is_client) {
  if (TlsPeersHolder peers = WatchPeer(args, endpoint, is_client); peers != nullptr) {
    AllGuards().AddWatched(endpoint, std::move(peers));
  }
  grpc_transport* const transport = RealCreate(args, endpoint, is_client);
  // gRPC reads from the connection only after this.
  if (!is_client) AllGuards().Add(transport, endpoint);
  return transport;
}

absl::Status Read(grpc_chttp2_transport* transport, const grpc_slice& slice) {
  if (const auto guard = AllGuards().Find(transport); guard != nullptr) {
    const std::span bytes(GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
    const auto verdict = guard->OnBytes(bytes, SteadyNs());
    if (verdict != FrameGuard::Verdict::kGood) {
      return absl::ResourceExhaustedError(std::string("the connection ends: ") + Text(verdict));
    }
  }
  return RealRead(transport, slice);
}

void Destroy(grpc_endpoint* endpoint) {
  AllGuards().Remove(endpoint);
  RealDestroy(endpoint);
}

}  // namespace talweg::rpc
