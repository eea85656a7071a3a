// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/topology_command.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <optional>
#include <string>
#include <vector>

#include "libs/base/json.h"
#include "libs/topology/topology.h"

namespace talweg::cli {
namespace {

std::string NumberJson(const std::optional<uint32_t>& number) {
  return number ? absl::StrCat(*number) : "null";
}

std::string TopologyJson(const topology::Topology& topology) {
  std::vector<std::string> cores, gpus, nics;
  for (const topology::Core& core : topology.cores) {
    cores.push_back(absl::StrCat("{\"socket\":", core.socket,
                                 ",\"numa_node\":", NumberJson(core.numa_node), ",\"cpus\":[",
                                 absl::StrJoin(core.cpus, ","), "]}"));
  }
  for (const topology::Gpu& gpu : topology.gpus) {
    gpus.push_back(absl::StrCat("{\"pci_address\":", JsonString(gpu.pci_address), ",\"vendor\":",
                                gpu.vendor, ",\"numa_node\":", NumberJson(gpu.numa_node), "}"));
  }
  for (const topology::Nic& nic : topology.nics) {
    nics.push_back(absl::StrCat("{\"name\":", JsonString(nic.name),
                                ",\"pci_address\":", JsonString(nic.pci_address),
                                ",\"numa_node\":", NumberJson(nic.numa_node), "}"));
  }
  return absl::StrCat("{\"cores\":[", absl::StrJoin(cores, ","), "],\"gpus\":[",
                      absl::StrJoin(gpus, ","), "],\"nics\":[", absl::StrJoin(nics, ","), "]}\n");
}

int RunTopology(const Arguments& arguments) {
  const absl::StatusOr<topology::Topology> topology = topology::ReadTopology();
  if (!topology.ok()) return Fail(topology.status());
  const std::string text =
      arguments.Has("json") ? TopologyJson(*topology) : absl::StrCat(topology->ToString(), "\n");
  return Print(text) ? 0 : kExitFailed;
}

}  // namespace

Command TopologyCommand() {
  Command command;
  command.name = "topology";
  command.summary = "Shows the cores, GPUs and network devices of this machine";
  command.usage = "[--json]";
  command.details =
      "Asks hwloc what this process may use, and on which NUMA node it lies. HWLOC_XMLFILE names\n"
      "another machine's topology, as lstopo writes it.";
  command.options = {{"json", "", "Prints JSON, with each core's CPUs and each GPU's address."}};
  command.run = RunTopology;
  return command;
}

}  // namespace talweg::cli
