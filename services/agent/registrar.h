// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_REGISTRAR_H_
#define TALWEG_SERVICES_AGENT_REGISTRAR_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <span>

#include "libs/transport/transport.h"

namespace talweg::agent {

// Makes the memory of this node's tensors known to the network, so that it can travel to
// aggregators. Belongs to a JobLink, but exists before it, because a link reads tensors' memory.
// Owned by the data thread.
class Registrar {
 public:
  virtual ~Registrar() = default;

  // Returns whether tensors travel at all. If not, they need neither send buffers nor arrivals.
  virtual bool travels() const = 0;
  // As transport::Transport. The regions are not valid if nothing travels.
  virtual absl::StatusOr<transport::Region> Register(std::span<std::byte> memory) = 0;
  virtual absl::StatusOr<transport::Region> RegisterDevice(
      const transport::DeviceMemory& memory) = 0;
  // OUT_OF_RANGE: nothing travels.
  virtual absl::Status TakesDeviceMemory() const = 0;
};

// A member's: tensors travel through `transport`, which outlives this object.
class MemberRegistrar final : public Registrar {
 public:
  explicit MemberRegistrar(transport::Transport* transport) : transport_(transport) {}

  bool travels() const override { return true; }
  absl::StatusOr<transport::Region> Register(std::span<std::byte> memory) override {
    return transport_->Register(memory);
  }
  absl::StatusOr<transport::Region> RegisterDevice(const transport::DeviceMemory& memory) override {
    return transport_->RegisterDevice(memory);
  }
  absl::Status TakesDeviceMemory() const override { return transport_->TakesDeviceMemory(); }

 private:
  transport::Transport* const transport_;
};

// That of a node which is the whole job: nothing travels.
class AloneRegistrar final : public Registrar {
 public:
  bool travels() const override { return false; }
  absl::StatusOr<transport::Region> Register(std::span<std::byte> /*memory*/) override {
    return transport::Region();
  }
  absl::StatusOr<transport::Region> RegisterDevice(
      const transport::DeviceMemory& /*memory*/) override {
    return transport::Region();
  }
  absl::Status TakesDeviceMemory() const override {
    return absl::OutOfRangeError("the node is the whole job, so nothing travels");
  }
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_REGISTRAR_H_
