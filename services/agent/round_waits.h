// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_ROUND_WAITS_H_
#define TALWEG_SERVICES_AGENT_ROUND_WAITS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "libs/base/ids.h"
#include "libs/pipeline/agent_core.h"
#include "services/agent/tensor_memory.h"

namespace talweg::agent {

// Logs which nodes or ranks rounds wait for. Owned by the data thread.
class RoundWaits {
 public:
  // `notice_ns`: AgentDriverOptions::stall_notice_ns.
  RoundWaits(std::string job_name, NodeRank node, int64_t notice_ns)
      : job_name_(std::move(job_name)), node_(node), notice_ns_(notice_ns) {}

  // Logs the wait, unless it is shorter than `notice_ns`, the round waits only for standbys, or
  // enough waits were logged in this second.
  void OnWaiting(const pipeline::LogWaiting& effect, const pipeline::AgentCore& core,
                 const TensorMemory& memory, int64_t now_ns);

 private:
  // Returns whether this second's log has room for one more wait. Thousands of tensors may wait for
  // one node, so the log counts the rest.
  bool NameWaiting(int64_t now_ns);

  const std::string job_name_;
  const NodeRank node_;
  const int64_t notice_ns_;
  int64_t second_ = 0;
  uint32_t named_ = 0;
  uint32_t unnamed_ = 0;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_ROUND_WAITS_H_
