// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_SECRET_H_
#define TALWEG_LIBS_RPC_SECRET_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "libs/membership/records.h"

// The secret by which a process proves its identity to the scheduler. A secret is never logged,
// shown or stored; only its hash is stored. docs/security.md says who has which.
namespace talweg::rpc {

inline constexpr size_t kSecretBytes = 32;

// Returns kSecretBytes bytes from the kernel's random generator.
std::string NewSecret();

// SHA-256. Hashes are compared by membership::SameSecret.
membership::SecretHash HashOf(std::string_view secret);

// The same; nullopt if there is no secret ("").
std::optional<membership::SecretHash> HashOfSecret(std::string_view secret);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_SECRET_H_
