// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_SECRET_H_
#define TALWEG_LIBS_RPC_SECRET_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "libs/membership/records.h"

// What a process shows the scheduler to prove who it is. A secret is never logged, shown or stored;
// only its hash is. docs/security.md says who has which.
namespace talweg::rpc {

inline constexpr size_t kSecretBytes = 32;

// kSecretBytes bytes that the kernel has drawn.
std::string NewSecret();

// SHA-256. Hashes are compared by membership::SameSecret.
membership::SecretHash HashOf(std::string_view secret);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_SECRET_H_
