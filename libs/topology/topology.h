// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TOPOLOGY_TOPOLOGY_H_
#define TALWEG_LIBS_TOPOLOGY_TOPOLOGY_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace talweg::topology {

// The numbers are the system's own ("cpu 5", "node 1"), not places in these vectors.
struct Core {
  uint32_t socket = 0;
  std::optional<uint32_t> numa_node;
  std::vector<uint32_t> cpus;  // Its hardware threads, ascending.

  friend bool operator==(const Core&, const Core&) = default;
};

struct NumaNode {
  uint32_t number = 0;
  uint64_t memory_bytes = 0;

  friend bool operator==(const NumaNode&, const NumaNode&) = default;
};

struct Cache {
  uint32_t level = 0;  // 1: the data cache, 2, 3.
  uint64_t bytes = 0;
  std::vector<uint32_t> cpus;  // The CPUs that share it.

  friend bool operator==(const Cache&, const Cache&) = default;
};

// A network device on the PCI bus.
struct Nic {
  std::string name;                      // Interface or InfiniBand device: "eth0", "mlx5_0".
  std::string pci_address;               // "0000:81:00.0".
  std::optional<uint32_t> numa_node;     // The nearest; none when unknown.
  double link_gigabytes_per_second = 0;  // The PCI link's; 0: unknown.

  friend bool operator==(const Nic&, const Nic&) = default;
};

// A GPU, or another accelerator, on the PCI bus.
struct Gpu {
  std::string pci_address;  // "0000:65:00.0".
  // The bridge at the root above the GPU. GPUs with the same bridge share a PCIe switch. Empty: the
  // GPU lies on the root itself.
  std::string root_port;
  std::optional<uint32_t> numa_node;  // The nearest; none when unknown.
  uint32_t vendor = 0;                // PCI's number: 0x10de is NVIDIA.

  friend bool operator==(const Gpu&, const Gpu&) = default;
};

// This machine's parts, as far as this process may use them. A value.
struct Topology {
  std::string cpu_model;  // May be empty.
  uint32_t socket_count = 0;
  std::vector<NumaNode> numa_nodes;
  std::vector<Core> cores;
  std::vector<Cache> caches;
  std::vector<Nic> nics;
  std::vector<Gpu> gpus;

  uint32_t CpuCount() const;
  // The GPU at this PCI address, in hexadecimal digits of either case. Returns null if there is
  // none.
  const Gpu* FindGpu(std::string_view pci_address) const;
  // "1 socket, 2 cores, 2 cpus, 1 NUMA node, 14.3 GiB".
  std::string ToString() const;

  friend bool operator==(const Topology&, const Topology&) = default;
};

// Asks the system; takes some milliseconds. Reads hwloc's own environment variables.
absl::StatusOr<Topology> ReadTopology();

// Another machine's topology, from the XML that `lstopo machine.xml` writes. INVALID_ARGUMENT if
// the text is not a topology.
absl::StatusOr<Topology> ParseTopology(const std::string& xml);

}  // namespace talweg::topology

#endif  // TALWEG_LIBS_TOPOLOGY_TOPOLOGY_H_
