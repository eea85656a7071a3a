// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LIBFABRIC_PROVIDER_H_
#define TALWEG_LIBS_TRANSPORT_LIBFABRIC_PROVIDER_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "libs/transport/libfabric/handles.h"
#include "libs/transport/socket_address.h"
#include "libs/transport/transport.h"

namespace talweg::transport {

// A provider's limits and demands, as it reports them. Nothing is assumed.
struct ProviderLimits {
  size_t transmit_depth = 0;  // Transfers that may be outstanding on an endpoint.
  size_t receive_depth = 0;
  size_t write_bytes_max = 0;  // For one transfer; longer writes are split.
  size_t write_parts_max = 1;  // Separate parts in one transfer, on either side.
  size_t inject_bytes_max = 0;
  bool local_keys = false;         // FI_MR_LOCAL: sources and receive buffers are registered too.
  bool virtual_addresses = false;  // FI_MR_VIRT_ADDR: targets are named by address, not by offset.
  bool provider_keys = false;      // FI_MR_PROV_KEY: the provider chooses keys.
  int key_bits = 64;
};

// A provider's fabric, domain and event queue, opened. Belongs to one thread.
class Provider {
 public:
  // `device`: the domain's name, e.g. "mlx5_0". "" for the provider's first. `wants_cuda` prefers a
  // domain whose devices reach GPUs' memory.
  static absl::StatusOr<std::unique_ptr<Provider>> Open(const std::string& name,
                                                        const std::string& device, bool wants_cuda);

  const std::string& name() const { return name_; }
  const ProviderLimits& limits() const { return limits_; }
  // Returns OK if RegisterDeviceMemory may succeed, else why not.
  const absl::Status& takes_device_memory() const { return takes_device_memory_; }
  fid_fabric* fabric() const { return fabric_.get(); }
  fid_domain* domain() const { return domain_.get(); }
  fid_eq* event_queue() const { return event_queue_.get(); }
  int event_queue_descriptor() const { return event_queue_descriptor_; }

  // InfoTo is for an endpoint that connects to `destination`, from `source` if that is valid.
  // InfoFrom is for a passive endpoint bound to `source`.
  absl::StatusOr<InfoHandle> InfoTo(const SocketAddress& destination,
                                    const SocketAddress& source) const;
  absl::StatusOr<InfoHandle> InfoFrom(const SocketAddress& source) const;

  // `access`: FI_WRITE, FI_REMOTE_WRITE, FI_SEND, FI_RECV. The provider may ignore `key`.
  absl::StatusOr<MemoryRegionHandle> RegisterMemory(void* bytes, size_t size, uint64_t access,
                                                    uint64_t key) const;
  // Registers an NVIDIA GPU's memory. UNIMPLEMENTED: refused. The text says what the machine may
  // lack.
  absl::StatusOr<MemoryRegionHandle> RegisterDeviceMemory(const DeviceMemory& memory,
                                                          uint64_t access, uint64_t key) const;

 private:
  Provider() = default;
  InfoHandle NewHints() const;
  // Like NewHints, for a provider that reaches GPUs' memory. Returns null if it does not;
  // takes_device_memory() says why.
  InfoHandle AskForDeviceMemory();

  std::string name_;
  std::string device_;
  InfoHandle info_;
  ProviderLimits limits_;
  absl::Status takes_device_memory_;
  FabricHandle fabric_;
  EventQueueHandle event_queue_;
  DomainHandle domain_;
  int event_queue_descriptor_ = -1;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LIBFABRIC_PROVIDER_H_
