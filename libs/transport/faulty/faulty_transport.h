// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_FAULTY_FAULTY_TRANSPORT_H_
#define TALWEG_LIBS_TRANSPORT_FAULTY_FAULTY_TRANSPORT_H_

#include <cstdint>
#include <memory>

#include "libs/runtime/clock.h"
#include "libs/transport/transport.h"

namespace talweg::transport {

struct Faults {
  uint64_t seed = 1;
  // Every frame, and what is posted after it, waits a random time up to this. So the world may
  // change between a write and the frame that announces it.
  int64_t frame_delay_ns_max = 0;
  // A connection breaks after a random number of posted operations up to this; 0: it does not.
  uint64_t break_after_operations_max = 0;
};

// Wraps `inner` for tests. It keeps every promise of a Transport and adds bad luck. `clock`
// outlives the transport.
std::unique_ptr<Transport> NewFaultyTransport(std::unique_ptr<Transport> inner,
                                              const Faults& faults, const runtime::Clock* clock);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_FAULTY_FAULTY_TRANSPORT_H_
