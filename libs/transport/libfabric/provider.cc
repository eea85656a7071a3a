// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/libfabric/provider.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <algorithm>
#include <set>
#include <utility>

#include "libs/base/bytes.h"

namespace talweg::transport {
namespace {

constexpr uint32_t kApiVersion = FI_VERSION(1, 17);

// Returns the names of the providers that offer connected endpoints on this host, for messages.
std::string ProvidersHere() {
  const InfoHandle hints(fi_allocinfo());
  hints->ep_attr->type = FI_EP_MSG;
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  fi_info* found = nullptr;
  if (fi_getinfo(kApiVersion, nullptr, nullptr, 0, hints.get(), &found) != 0) return "none";
  std::set<std::string> names;
  for (const fi_info* each = found; each != nullptr; each = each->next) {
    names.insert(each->fabric_attr->prov_name);
  }
  fi_freeinfo(found);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

ProviderLimits LimitsOf(const fi_info& info) {
  ProviderLimits limits;
  limits.transmit_depth = info.tx_attr->size;
  limits.receive_depth = info.rx_attr->size;
  // Long writes are cut, so that they do not overrun the provider, nor make another operation's
  // frame wait for gigabytes.
  limits.write_bytes_max = std::min<size_t>(info.ep_attr->max_msg_size, 64 * kMiB);
  limits.write_parts_max = std::min(info.tx_attr->iov_limit, info.tx_attr->rma_iov_limit);
  limits.inject_bytes_max = info.tx_attr->inject_size;
  const int mr_mode = info.domain_attr->mr_mode;
  // FI_MR_BASIC is how older versions spell three of them at once.
  const bool basic = mr_mode == FI_MR_BASIC;
  limits.local_keys = (mr_mode & FI_MR_LOCAL) != 0;
  limits.virtual_addresses = basic || (mr_mode & FI_MR_VIRT_ADDR) != 0;
  limits.provider_keys = basic || (mr_mode & FI_MR_PROV_KEY) != 0;
  limits.key_bits = static_cast<int>(std::min<size_t>(info.domain_attr->mr_key_size, 8) * 8);
  return limits;
}

// Whoever owns `info` frees the copy, by fi_freeinfo.
void SetSource(const SocketAddress& source, fi_info* info) {
  free(info->src_addr);
  info->src_addr = malloc(source.length());
  memcpy(info->src_addr, source.get(), source.length());
  info->src_addrlen = source.length();
}

std::string LockedMemoryLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "unlimited";
  }
  return FormatBytes(limit.rlim_cur);
}

}  // namespace

InfoHandle Provider::NewHints() const {
  InfoHandle hints(fi_allocinfo());
  hints->ep_attr->type = FI_EP_MSG;
  hints->caps = FI_MSG | FI_RMA;
  // The modes that this transport supports: contexts carry the provider's scratch space. No
  // completion has remote data, because none is ever sent.
  hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  // One thread polls. A progress thread of the provider would only compete with it.
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->tx_attr->msg_order = FI_ORDER_SAW;
  hints->rx_attr->msg_order = FI_ORDER_SAW;
  if (takes_device_memory_.ok()) {
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  hints->fabric_attr->prov_name = strdup(name_.c_str());
  if (!device_.empty()) hints->domain_attr->name = strdup(device_.c_str());
  return hints;
}

InfoHandle Provider::AskForDeviceMemory() {
  const std::string provider = "libfabric's provider '" + name_ + "'";
  fi_info* found = nullptr;
  const int error = fi_getinfo(kApiVersion, nullptr, nullptr, 0, NewHints().get(), &found);
  if (error != 0) {
    takes_device_memory_ = absl::UnimplementedError(
        provider + " reaches no GPU's memory here (FI_HMEM: " + FabricErrorText(error) +
        "); it takes RDMA devices, and a libfabric that was built with CUDA");
    return nullptr;
  }
  InfoHandle info(found);
  // A provider that need not be told of GPUs' memory beforehand has the CPU copy it.
  if ((info->domain_attr->mr_mode & FI_MR_HMEM) == 0) {
    takes_device_memory_ = absl::UnimplementedError(
        provider + " would copy GPUs' memory with the CPU (no FI_MR_HMEM)");
    return nullptr;
  }
  return info;
}

absl::StatusOr<std::unique_ptr<Provider>> Provider::Open(const std::string& name,
                                                         const std::string& device,
                                                         bool wants_cuda) {
  std::unique_ptr<Provider> provider(new Provider());
  provider->name_ = name;
  provider->device_ = device;
  InfoHandle with_devices;
  if (wants_cuda) {
    with_devices = provider->AskForDeviceMemory();
  } else {
    provider->takes_device_memory_ = absl::UnimplementedError("it was not asked to");
  }

  const InfoHandle hints = provider->NewHints();
  fi_info* found = with_devices.release();
  int error = 0;
  if (found == nullptr) {
    error = fi_getinfo(kApiVersion, nullptr, nullptr, 0, hints.get(), &found);
  }
  if (error == -FI_ENODATA) {
    hints->tx_attr->msg_order = 0;
    hints->rx_attr->msg_order = 0;
    if (fi_getinfo(kApiVersion, nullptr, nullptr, 0, hints.get(), &found) == 0) {
      fi_freeinfo(found);
      return absl::UnavailableError(
          "libfabric provider '" + name +
          "' does not keep sends after writes (FI_ORDER_SAW), which frames rely on; use tcp or "
          "verbs");
    }
    return absl::UnavailableError(
        "libfabric provider '" + name + "'" +
        (device.empty() ? "" : " with device '" + device + "'") +
        " offers no connected endpoints with writes (FI_EP_MSG, FI_RMA) here; providers that do: " +
        ProvidersHere());
  }
  if (error != 0) {
    return absl::UnavailableError("fi_getinfo for libfabric provider '" + name +
                                  "': " + FabricErrorText(error));
  }
  provider->info_.reset(found);
  provider->limits_ = LimitsOf(*found);

  const auto failed = [&](const char* call, int code) {
    return absl::UnavailableError(std::string(call) + " for libfabric provider '" + name +
                                  "': " + FabricErrorText(code));
  };
  fid_fabric* fabric = nullptr;
  error = fi_fabric(found->fabric_attr, &fabric, nullptr);
  if (error != 0) return failed("fi_fabric", error);
  provider->fabric_.reset(fabric);

  fi_eq_attr queue_attr{};
  queue_attr.wait_obj = FI_WAIT_FD;
  fid_eq* queue = nullptr;
  error = fi_eq_open(fabric, &queue_attr, &queue, nullptr);
  if (error != 0) return failed("fi_eq_open", error);
  provider->event_queue_.reset(queue);
  error = fi_control(&queue->fid, FI_GETWAIT, &provider->event_queue_descriptor_);
  if (error != 0) return failed("fi_control(FI_GETWAIT)", error);

  fid_domain* domain = nullptr;
  error = fi_domain(fabric, found, &domain, nullptr);
  if (error != 0) return failed("fi_domain", error);
  provider->domain_.reset(domain);
  return provider;
}

absl::StatusOr<InfoHandle> Provider::InfoTo(const SocketAddress& destination,
                                            const SocketAddress& source) const {
  const InfoHandle hints = NewHints();
  hints->addr_format = FI_SOCKADDR;
  if (source.valid()) SetSource(source, hints.get());
  // fi_freeinfo frees it.
  hints->dest_addr = malloc(destination.length());
  memcpy(hints->dest_addr, destination.get(), destination.length());
  hints->dest_addrlen = destination.length();
  fi_info* found = nullptr;
  const int error = fi_getinfo(kApiVersion, nullptr, nullptr, 0, hints.get(), &found);
  if (error != 0) {
    return absl::UnavailableError("libfabric provider '" + name_ + "' has no way to " +
                                  destination.ToString() + ": " + FabricErrorText(error));
  }
  return InfoHandle(found);
}

absl::StatusOr<InfoHandle> Provider::InfoFrom(const SocketAddress& source) const {
  const InfoHandle hints = NewHints();
  hints->addr_format = FI_SOCKADDR;
  SetSource(source, hints.get());
  fi_info* found = nullptr;
  const int error = fi_getinfo(kApiVersion, nullptr, nullptr, 0, hints.get(), &found);
  if (error != 0) {
    return absl::InvalidArgumentError("libfabric provider '" + name_ + "' cannot bind to " +
                                      source.ToString() + ": " + FabricErrorText(error));
  }
  // For all addresses (0.0.0.0, ::) the tcp provider answers without the port.
  SetSource(source, found);
  return InfoHandle(found);
}

absl::StatusOr<MemoryRegionHandle> Provider::RegisterMemory(void* bytes, size_t size,
                                                            uint64_t access, uint64_t key) const {
  fid_mr* region = nullptr;
  const int error = fi_mr_reg(domain_.get(), bytes, size, access, 0, key, 0, &region, nullptr);
  if (error == 0) return MemoryRegionHandle(region);
  const std::string what = "register " + FormatBytes(size) + " with libfabric provider '" + name_ +
                           "': " + FabricErrorText(error);
  if (error == -FI_ENOMEM || error == -FI_EAGAIN || error == -FI_EPERM) {
    return absl::ResourceExhaustedError(
        what + "; the locked-memory limit is " + LockedMemoryLimit() +
        ": raise it (ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, --ulimit "
        "memlock=-1 for a container)");
  }
  if (error == -FI_ENOKEY) return absl::AlreadyExistsError(what);
  return absl::InvalidArgumentError(what);
}

absl::StatusOr<MemoryRegionHandle> Provider::RegisterDeviceMemory(const DeviceMemory& memory,
                                                                  uint64_t access,
                                                                  uint64_t key) const {
  const iovec bytes = {.iov_base = reinterpret_cast<void*>(memory.address),
                       .iov_len = memory.bytes};
  fi_mr_attr attributes{};
  attributes.mr_iov = &bytes;
  attributes.iov_count = 1;
  attributes.access = access;
  attributes.requested_key = key;
  attributes.iface = FI_HMEM_CUDA;
  attributes.device.cuda = memory.device;
  fid_mr* region = nullptr;
#if defined(FI_MR_DMABUF)  // libfabric 1.20
  if (memory.dma_buf >= 0) {
    const fi_mr_dmabuf buffer = {.fd = memory.dma_buf,
                                 .offset = 0,
                                 .len = memory.bytes,
                                 .base_addr = reinterpret_cast<void*>(memory.address)};
    fi_mr_attr by_buffer = attributes;
    by_buffer.dmabuf = &buffer;
    if (fi_mr_regattr(domain_.get(), &by_buffer, FI_MR_DMABUF, &region) == 0) {
      return MemoryRegionHandle(region);
    }
    // If that fails, registers by address, which older providers know, too.
  }
#endif
  const int error = fi_mr_regattr(domain_.get(), &attributes, 0, &region);
  if (error == 0) return MemoryRegionHandle(region);
  const std::string what = "register " + FormatBytes(memory.bytes) +
                           " of a GPU with libfabric provider '" + name_ +
                           "': " + FabricErrorText(error);
  if (error == -FI_ENOKEY) return absl::AlreadyExistsError(what);
  return absl::UnimplementedError(
      what +
      "; it takes the kernel's nvidia-peermem (modprobe nvidia-peermem) or dma-buf, and room "
      "in the GPU's BAR1 (nvidia-smi -q -d MEMORY)");
}

}  // namespace talweg::transport
