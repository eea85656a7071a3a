// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/agent_link.h"

#include <cerrno>
#include <cstring>

#include "libs/shm/client/segment_error.h"

namespace talweg::shm {

RankStatus AgentLink::Connect(const char* path, const Deadline& agent_wait, ErrorText& error) {
  if (RankStatus status = socket_.Connect(path, agent_wait, error); status != RankStatus::kOk) {
    return status;
  }
  std::strncpy(path_, path, sizeof(path_) - 1);
  return RankStatus::kOk;
}

RankStatus AgentLink::MapControl(const Welcome& welcome, ErrorText& error) {
  const ControlShape shape{welcome.ring_capacity, welcome.tensors_max};
  const Descriptor fd = socket_.TakeDescriptor();
  const char* wrong = nullptr;
  if (!fd.valid()) {
    wrong = "no control segment came with its Welcome";
  } else if (!shape.Valid() || shape.total_bytes() != welcome.control_bytes) {
    wrong = "the control segment's limits make no sense";
  } else {
    wrong = SegmentError(fd.get(), welcome.control_bytes);
  }
  if (wrong != nullptr) {
    return error.Fail(RankStatus::kProtocol, "the agent at '%s': %s", path_, wrong);
  }
  mapping_ = Mapping::Map(fd.get(), welcome.control_bytes, Mapping::Access::kReadWrite);
  if (!mapping_.valid()) {
    return error.Fail(RankStatus::kOutOfMemory, "the control segment cannot be mapped: %s",
                      std::strerror(errno));
  }
  control_ = ControlView(mapping_.data(), shape);
  const ControlHeader& header = control_.header();
  if (header.magic.load(std::memory_order_acquire) != kControlMagic ||
      header.major != kLayoutMajor || header.total_bytes != welcome.control_bytes) {
    return error.Fail(
        RankStatus::kVersionMismatch,
        "this libtalweg knows version %u.%u of the control segment, the agent at '%s' made "
        "version %u.%u; install the same release of both",
        kLayoutMajor, kLayoutMinor, path_, header.major, header.minor);
  }
  minor_ = welcome.minor;
  is_admitted_ = true;
  return RankStatus::kOk;
}

}  // namespace talweg::shm
