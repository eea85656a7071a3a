// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_LINK_LIFE_H_
#define TALWEG_TESTS_SIM_LINK_LIFE_H_

#include <cstdint>
#include <map>
#include <string>

// Jobs of any weights that share the link of one aggregator's lanes (docs/quotas.md). TCP gives
// each connection any share, members' own links may be slow, and jobs pause.
namespace talweg::sim {

struct LinkResult {
  std::string violation;  // "" when every promise held.
  // How often each situation occurred.
  std::map<std::string, uint64_t> coverage;
};

// Everything follows from the seed.
LinkResult LiveOnLink(uint64_t seed);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_LINK_LIFE_H_
