// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_COMPOSITE_COMPOSITE_TRANSPORT_H_
#define TALWEG_LIBS_TRANSPORT_COMPOSITE_COMPOSITE_TRANSPORT_H_

#include <absl/status/statusor.h>

#include <memory>

#include "libs/transport/local/local_transport.h"
#include "libs/transport/transport.h"

namespace talweg::transport {

// Joins a network and a local transport. The result listens on both
// ("fi:tcp://10.0.0.7:20000,local:@talweg-3f..."), and connects by the address's scheme. It
// registers host memory with both, under one Ref for all writers, and a device's memory with the
// network only. RESOURCE_EXHAUSTED: the process has no descriptors left.
absl::StatusOr<std::unique_ptr<Transport>> NewCompositeTransport(
    std::unique_ptr<Transport> network, std::unique_ptr<LocalTransport> local);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_COMPOSITE_COMPOSITE_TRANSPORT_H_
