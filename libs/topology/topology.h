// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TOPOLOGY_TOPOLOGY_H_
#define TALWEG_LIBS_TOPOLOGY_TOPOLOGY_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace talweg {

// The numbers are the system's own ("cpu 5", "node 1"), not places in these vectors.
struct TopologyCore {
  uint32_t socket = 0;
  std::optional<uint32_t> numa_node;
  std::vector<uint32_t> cpus;  // Its hardware threads, ascending.

  friend bool operator==(const TopologyCore&, const TopologyCore&) = default;
};

struct TopologyNumaNode {
  uint32_t number = 0;
  uint64_t memory_bytes = 0;

  friend bool operator==(const TopologyNumaNode&, const TopologyNumaNode&) = default;
};

struct TopologyCache {
  uint32_t level = 0;  // 1: the data cache, 2, 3.
  uint64_t bytes = 0;
  std::vector<uint32_t> cpus;  // The CPUs that share it.

  friend bool operator==(const TopologyCache&, const TopologyCache&) = default;
};

// A network device on the PCI bus.
struct TopologyNic {
  std::string name;                      // Interface or InfiniBand device: "eth0", "mlx5_0".
  std::string pci_address;               // "0000:81:00.0".
  std::optional<uint32_t> numa_node;     // The nearest; none when unknown.
  double link_gigabytes_per_second = 0;  // The PCI link's; 0: unknown.

  friend bool operator==(const TopologyNic&, const TopologyNic&) = default;
};

// A GPU, or another accelerator, on the PCI bus.
struct TopologyGpu {
  std::string pci_address;  // "0000:65:00.0".
  // The bridge at the root that the GPU lies behind. GPUs with the same bridge share a PCIe switch.
  // Empty: the GPU lies on the root itself.
  std::string root_port;
  std::optional<uint32_t> numa_node;  // The nearest; none when unknown.

  friend bool operator==(const TopologyGpu&, const TopologyGpu&) = default;
};

// What this machine is made of, as far as this process may use it. A value.
struct Topology {
  std::string cpu_model;  // May be empty.
  uint32_t socket_count = 0;
  std::vector<TopologyNumaNode> numa_nodes;
  std::vector<TopologyCore> cores;
  std::vector<TopologyCache> caches;
  std::vector<TopologyNic> nics;
  std::vector<TopologyGpu> gpus;

  uint32_t CpuCount() const;
  // The GPU at this PCI address, in hexadecimal digits of either case. Null: there is none.
  const TopologyGpu* FindGpu(std::string_view pci_address) const;
  // "1 socket, 2 cores, 2 cpus, 1 NUMA node, 14.3 GiB".
  std::string ToString() const;

  friend bool operator==(const Topology&, const Topology&) = default;
};

// Asks the system; takes some milliseconds. Reads hwloc's own variables of the environment.
absl::StatusOr<Topology> ReadTopology();

// Another machine's topology, from the XML that `lstopo machine.xml` writes. INVALID_ARGUMENT when
// the text is none.
absl::StatusOr<Topology> ParseTopology(const std::string& xml);

}  // namespace talweg

#endif  // TALWEG_LIBS_TOPOLOGY_TOPOLOGY_H_
