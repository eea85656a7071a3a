// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_HANDSHAKE_LIFE_H_
#define TALWEG_TESTS_SIM_HANDSHAKE_LIFE_H_

#include <cstdint>
#include <map>
#include <string>

// Members and listeners that prove to each other who they are (docs/protocol.md, sections 9 to 11),
// with somebody between them who has every message: he delivers it to whom he likes, as often as he
// likes, changed or not, and is a member himself.
namespace talweg::sim {

struct HandshakeResult {
  std::string violation;  // "" when every invariant held.
  // How often each of these was done, or came of it.
  std::map<std::string, uint64_t> coverage;
};

// Everything follows from the seed but nonces and keys, which are the kernel's.
HandshakeResult LiveHandshakes(uint64_t seed);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_HANDSHAKE_LIFE_H_
