// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace talweg::runtime {
namespace {

// The kernel does not read the last bit of the mask, so the mask has one more.
constexpr unsigned long kMaskBits = kNumaNodesMax + 1;

}  // namespace

PreferNumaNode::PreferNumaNode(std::optional<uint32_t> node) {
  constexpr size_t kWordBits = 8 * sizeof(unsigned long);
  if (!node || *node >= kNumaNodesMax) return;
  if (syscall(SYS_get_mempolicy, &mode_before_, nodes_before_.data(), kMaskBits, nullptr, 0) != 0) {
    return;
  }
  NodeMask nodes = {};
  nodes[*node / kWordBits] = 1UL << (*node % kWordBits);
  changed_ = syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.data(), kMaskBits) == 0;
}

PreferNumaNode::~PreferNumaNode() {
  if (changed_) syscall(SYS_set_mempolicy, mode_before_, nodes_before_.data(), kMaskBits);
}

}  // namespace talweg::runtime
