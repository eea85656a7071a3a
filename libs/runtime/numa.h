// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_NUMA_H_
#define TALWEG_LIBS_RUNTIME_NUMA_H_

#include <array>
#include <cstdint>
#include <optional>

namespace talweg::runtime {

inline constexpr uint32_t kNumaNodesMax = 1024;

// While it lives, pages that this thread makes come from the node's memory while it has some, then
// from other nodes' memory. It changes nothing without a node, if the kernel has no such policy, or
// if the policy is not permitted (containers). One thread makes and destroys it, and nests it in
// order.
class PreferNumaNode {
 public:
  explicit PreferNumaNode(std::optional<uint32_t> node);
  ~PreferNumaNode();
  PreferNumaNode(const PreferNumaNode&) = delete;
  PreferNumaNode& operator=(const PreferNumaNode&) = delete;

 private:
  using NodeMask = std::array<unsigned long, kNumaNodesMax / (8 * sizeof(unsigned long))>;

  bool changed_ = false;
  int mode_before_ = 0;
  NodeMask nodes_before_ = {};
};

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_NUMA_H_
