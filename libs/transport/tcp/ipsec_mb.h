// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_IPSEC_MB_H_
#define TALWEG_LIBS_TRANSPORT_TCP_IPSEC_MB_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "libs/transport/tcp/aes_gcm.h"

// Intel's IPsec Multi-Buffer library, opened once, on first use. A machine may lack it, and so may
// the machine that builds this.
namespace talweg::transport {

// Returns whether the library is installed in the version of this build, passes its own tests, and
// has code for this CPU's VAES.
bool HasIpsecMb();

// Why HasIpsecMb() is false; empty if it is true.
std::string IpsecMbProblem();

// Only if HasIpsecMb().
std::unique_ptr<AesGcm> MakeIpsecMbAesGcm(std::span<const std::byte> key, AesGcm::Use use);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_IPSEC_MB_H_
