// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LOOPBACK_LOOPBACK_TRANSPORT_H_
#define TALWEG_LIBS_TRANSPORT_LOOPBACK_LOOPBACK_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "libs/transport/transport.h"

namespace talweg::transport {

// Reads and writes accelerators' memory, as network devices do. A test implements it. It outlives
// the network, and is called by the thread that polls.
class LoopbackDevices {
 public:
  virtual ~LoopbackDevices() = default;
  virtual void Read(uint64_t address, std::span<std::byte> target) = 0;
  virtual void Write(uint64_t address, std::span<const std::byte> source) = 0;
};

// A network inside one process, for tests of services. Transports made from one LoopbackNetwork
// reach each other at "loopback://<number>". Nothing depends on time or threads: the same calls
// give the same events. Each transport may live on its own thread. The order of events then depends
// on the threads.
class LoopbackNetwork {
 public:
  virtual ~LoopbackNetwork() = default;

  // The network outlives its transports.
  virtual std::unique_ptr<Transport> NewTransport() = 0;
};

// Without `devices` it carries host memory only.
std::unique_ptr<LoopbackNetwork> NewLoopbackNetwork(LoopbackDevices* devices = nullptr);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LOOPBACK_LOOPBACK_TRANSPORT_H_
