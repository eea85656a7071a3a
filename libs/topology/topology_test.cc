// SPDX-License-Identifier: Apache-2.0
#include "libs/topology/topology.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"

namespace talweg::topology {
namespace {

// Returns the size of the largest cache of that level.
uint64_t CacheBytes(const Topology& topology, uint32_t level) {
  uint64_t bytes = 0;
  for (const Cache& cache : topology.caches) {
    if (cache.level == level) bytes = std::max(bytes, cache.bytes);
  }
  return bytes;
}

TEST_CASE("ParseTopology: it finds two sockets with a NIC each", "[topology]") {
  std::ifstream file("libs/topology/testdata/two_sockets_two_nics.xml");
  REQUIRE(file);
  const std::string xml(std::istreambuf_iterator<char>(file), {});
  const Topology topology = ParseTopology(xml).value();
  CHECK(topology.cpu_model == "AMD EPYC 9124 16-Core Processor");
  CHECK(topology.socket_count == 2);
  CHECK(topology.numa_nodes == std::vector<NumaNode>{{0, 128 * kGiB}, {1, 128 * kGiB}});
  REQUIRE(topology.cores.size() == 8);
  CHECK(topology.cores[0] == Core{0, 0, {0, 1}});
  CHECK(topology.cores[7] == Core{1, 1, {14, 15}});
  CHECK(topology.CpuCount() == 16);
  CHECK(CacheBytes(topology, 1) == 32 * kKiB);
  CHECK(CacheBytes(topology, 2) == kMiB);
  CHECK(CacheBytes(topology, 3) == 32 * kMiB);
  CHECK(CacheBytes(topology, 4) == 0);
  CHECK(topology.caches.size() == 8 + 8 + 2);
  REQUIRE(topology.nics.size() == 4);
  CHECK(topology.nics[0].name == "ens1f0np0");
  CHECK(topology.nics[1].name == "mlx5_0");
  CHECK(topology.nics[1].numa_node == 0);
  CHECK(topology.nics[2].pci_address == "0000:81:00.0");
  CHECK(topology.nics[2].numa_node == 1);
  CHECK(topology.nics[3].link_gigabytes_per_second == Approx(31.5).epsilon(0.01));
  CHECK(topology.ToString() == "2 sockets, 8 cores, 16 cpus, 2 NUMA nodes, 256 GiB");
}

TEST_CASE("ParseTopology: it finds two switches with two GPUs each", "[topology]") {
  std::ifstream file("libs/topology/testdata/two_switches_four_gpus.xml");
  REQUIRE(file);
  const std::string xml(std::istreambuf_iterator<char>(file), {});
  const Topology topology = ParseTopology(xml).value();
  CHECK(topology.gpus == std::vector<Gpu>{{"0000:01:00.0", "0000:00:01.1", 0, 0x10de},
                                          {"0000:02:00.0", "0000:00:01.1", 0, 0x10de},
                                          {"0000:03:00.0", "0000:80:01.1", 1, 0x10de},
                                          {"0000:04:00.0", "0000:80:01.1", 1, 0x10de}});
  CHECK(topology.FindGpu("0000:03:00.0") == &topology.gpus[2]);
  CHECK(topology.FindGpu("0000:05:00.0") == nullptr);
  CHECK(topology.nics.empty());
}

TEST_CASE("ParseTopology: a text that is no topology is an error", "[topology]") {
  CHECK(ParseTopology("").status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(ParseTopology("<topology version=\"2.0\">").status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("ReadTopology: it finds on this machine what the kernel reports", "[topology]") {
  const Topology topology = ReadTopology().value();
  CHECK(topology.CpuCount() >= 1);
  CHECK(topology.cores.size() >= 1);
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    CHECK(topology.CpuCount() >= static_cast<uint32_t>(CPU_COUNT(&allowed)));
  }
}

}  // namespace
}  // namespace talweg::topology
