// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_HANDSHAKE_LIFE_H_
#define TALWEG_TESTS_SIM_HANDSHAKE_LIFE_H_

#include <cstdint>
#include <map>
#include <string>

// Members and listeners that prove their identity to each other (docs/protocol.md, sections 9 to
// 11), with an attacker between them. The attacker sees every message, delivers it to any peer, any
// number of times, changed or not, and is a member, too.
namespace talweg::sim {

struct HandshakeResult {
  std::string violation;  // "" when every invariant held.
  // How often each action or outcome occurred.
  std::map<std::string, uint64_t> coverage;
};

// Everything follows from the seed, except for nonces and keys, which come from the kernel.
HandshakeResult LiveHandshakes(uint64_t seed);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_HANDSHAKE_LIFE_H_
