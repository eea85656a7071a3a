// SPDX-License-Identifier: Apache-2.0
#include "libs/topology/topology.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "libs/base/bytes.h"
#include "libs/base/counted.h"

namespace talweg::topology {
namespace {

constexpr unsigned kPciDisplay = 0x03;
constexpr unsigned kPciAccelerator = 0x12;

struct Destroy {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Handle = std::unique_ptr<hwloc_topology, Destroy>;

absl::StatusOr<Handle> Prepare() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return absl::ResourceExhaustedError("hwloc: no memory for a topology");
  }
  Handle handle(raw);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  return handle;
}

std::vector<uint32_t> CpusOf(hwloc_const_cpuset_t set) {
  std::vector<uint32_t> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) {
    cpus.push_back(static_cast<uint32_t>(cpu));
  }
  return cpus;
}

// The NUMA node of an object that belongs to exactly one.
std::optional<uint32_t> NumaNodeOf(hwloc_obj_t object) {
  if (object == nullptr || object->nodeset == nullptr) return std::nullopt;
  if (hwloc_bitmap_weight(object->nodeset) != 1) return std::nullopt;
  return static_cast<uint32_t>(hwloc_bitmap_first(object->nodeset));
}

template <typename Visit>
void ForEach(hwloc_topology_t topology, hwloc_obj_type_t type, const Visit& visit) {
  for (hwloc_obj_t object = hwloc_get_next_obj_by_type(topology, type, nullptr); object != nullptr;
       object = hwloc_get_next_obj_by_type(topology, type, object)) {
    visit(object);
  }
}

std::string AddressOf(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& bus) {
  char address[32];
  std::snprintf(address, sizeof address, "%04x:%02x:%02x.%01x", static_cast<unsigned>(bus.domain),
                bus.bus, bus.dev, bus.func);
  return address;
}

// The bridge above the device that is nearest to the host.
std::string RootPortOf(hwloc_obj_t device) {
  std::string port;
  for (hwloc_obj_t at = device->parent; at != nullptr && at->type == HWLOC_OBJ_BRIDGE;
       at = at->parent) {
    if (at->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) {
      port = AddressOf(at->attr->bridge.upstream.pci);
    }
  }
  return port;
}

Topology ValueOf(hwloc_topology_t handle) {
  Topology topology;
  ForEach(handle, HWLOC_OBJ_PACKAGE, [&](hwloc_obj_t package) {
    ++topology.socket_count;
    const char* model = hwloc_obj_get_info_by_name(package, "CPUModel");
    if (model != nullptr && topology.cpu_model.empty()) topology.cpu_model = model;
  });
  ForEach(handle, HWLOC_OBJ_NUMANODE, [&](hwloc_obj_t node) {
    topology.numa_nodes.push_back({node->os_index, node->attr->numanode.local_memory});
  });
  ForEach(handle, HWLOC_OBJ_CORE, [&](hwloc_obj_t core) {
    hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(handle, HWLOC_OBJ_PACKAGE, core);
    topology.cores.push_back(
        {package == nullptr ? 0 : package->os_index, NumaNodeOf(core), CpusOf(core->cpuset)});
  });
  for (const auto& [type, level] :
       {std::pair{HWLOC_OBJ_L1CACHE, 1u}, {HWLOC_OBJ_L2CACHE, 2u}, {HWLOC_OBJ_L3CACHE, 3u}}) {
    ForEach(handle, type, [&, level = level](hwloc_obj_t cache) {
      topology.caches.push_back({level, cache->attr->cache.size, CpusOf(cache->cpuset)});
    });
  }
  ForEach(handle, HWLOC_OBJ_OS_DEVICE, [&](hwloc_obj_t device) {
    const hwloc_obj_osdev_type_t type = device->attr->osdev.type;
    if (type != HWLOC_OBJ_OSDEV_NETWORK && type != HWLOC_OBJ_OSDEV_OPENFABRICS) return;
    hwloc_obj_t pci = hwloc_get_ancestor_obj_by_type(handle, HWLOC_OBJ_PCI_DEVICE, device);
    if (pci == nullptr) return;
    const auto& bus = pci->attr->pcidev;
    // On a machine with one node, every device is near it.
    topology.nics.push_back({device->name, AddressOf(bus),
                             NumaNodeOf(hwloc_get_non_io_ancestor_obj(handle, device)),
                             bus.linkspeed});
  });
  ForEach(handle, HWLOC_OBJ_PCI_DEVICE, [&](hwloc_obj_t device) {
    const auto& bus = device->attr->pcidev;
    const unsigned base_class = bus.class_id >> 8;
    if (base_class != kPciDisplay && base_class != kPciAccelerator) return;
    topology.gpus.push_back({AddressOf(bus), RootPortOf(device),
                             NumaNodeOf(hwloc_get_non_io_ancestor_obj(handle, device)),
                             bus.vendor_id});
  });
  return topology;
}

}  // namespace

uint32_t Topology::CpuCount() const {
  size_t count = 0;
  for (const Core& core : cores) count += core.cpus.size();
  return static_cast<uint32_t>(count);
}

const Gpu* Topology::FindGpu(std::string_view pci_address) const {
  for (const Gpu& gpu : gpus) {
    if (absl::EqualsIgnoreCase(gpu.pci_address, {pci_address.data(), pci_address.size()}))
      return &gpu;
  }
  return nullptr;
}

std::string Topology::ToString() const {
  uint64_t memory_bytes = 0;
  for (const NumaNode& node : numa_nodes) memory_bytes += node.memory_bytes;
  return absl::StrCat(Counted(socket_count, "socket"), ", ", Counted(cores.size(), "core"), ", ",
                      Counted(CpuCount(), "cpu"), ", ", Counted(numa_nodes.size(), "NUMA node"),
                      ", ", FormatBytes(memory_bytes));
}

absl::StatusOr<Topology> ReadTopology() {
  absl::StatusOr<Handle> handle = Prepare();
  if (!handle.ok()) return handle.status();
  if (hwloc_topology_load(handle->get()) != 0) {
    return absl::InternalError("hwloc cannot read this machine's topology (/proc, /sys)");
  }
  return ValueOf(handle->get());
}

absl::StatusOr<Topology> ParseTopology(const std::string& xml) {
  absl::StatusOr<Handle> handle = Prepare();
  if (!handle.ok()) return handle.status();
  // The length includes the nul.
  if (hwloc_topology_set_xmlbuffer(handle->get(), xml.c_str(), static_cast<int>(xml.size() + 1)) !=
          0 ||
      hwloc_topology_load(handle->get()) != 0) {
    return absl::InvalidArgumentError(
        "this is not a topology in hwloc's XML; write one with lstopo");
  }
  return ValueOf(handle->get());
}

}  // namespace talweg::topology
