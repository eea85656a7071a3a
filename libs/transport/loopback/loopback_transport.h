// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LOOPBACK_LOOPBACK_TRANSPORT_H_
#define TALWEG_LIBS_TRANSPORT_LOOPBACK_LOOPBACK_TRANSPORT_H_

#include <memory>

#include "libs/transport/transport.h"

namespace talweg::transport {

// A network inside one process, for tests of services: transports made from one LoopbackNetwork
// reach each other at "loopback://<number>". Nothing depends on time or threads: the same calls
// give the same events. Each transport may live on its own thread; events then come in an order
// that depends on the threads.
class LoopbackNetwork {
 public:
  virtual ~LoopbackNetwork() = default;

  // The network outlives its transports.
  virtual std::unique_ptr<Transport> NewTransport() = 0;
};

std::unique_ptr<LoopbackNetwork> NewLoopbackNetwork();

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LOOPBACK_LOOPBACK_TRANSPORT_H_
