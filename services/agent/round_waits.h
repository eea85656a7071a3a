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

// Tells people for whom rounds wait. Owned by the data thread.
class RoundWaits {
 public:
  // `notice_ns`: AgentDriverOptions::stall_notice_ns.
  RoundWaits(std::string job_name, NodeRank node, int64_t notice_ns)
      : job_name_(std::move(job_name)), node_(node), notice_ns_(notice_ns) {}

  // Logs it, unless it is too early for that, nobody's step waits for them, or there is too much of
  // this in the same second.
  void OnWaiting(const pipeline::LogWaiting& effect, const pipeline::AgentCore& core,
                 const TensorMemory& memory, int64_t now_ns);

 private:
  // Whether one more wait is named in this second's log. A node may be waited for with thousands of
  // tensors; the others are counted.
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
