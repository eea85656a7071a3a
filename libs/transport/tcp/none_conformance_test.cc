// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/tcp_harness.h"

namespace talweg::transport {

std::unique_ptr<Harness> NewHarness() { return std::make_unique<TcpHarness>(DataSecurity::kNone); }

}  // namespace talweg::transport
