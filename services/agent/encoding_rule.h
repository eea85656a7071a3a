// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_ENCODING_RULE_H_
#define TALWEG_SERVICES_AGENT_ENCODING_RULE_H_

#include <cstdint>

#include "libs/base/collective.h"

namespace talweg::agent {

// Which tensors travel encoded although their ranks ask for nothing.
struct EncodingRule {
  Encoding encoding = Encoding::kPlain;
  uint64_t bytes_min = 0;  // A smaller part travels as its ranks ask.

  // Returns the collective as it travels.
  Collective Apply(Collective collective) const {
    // What ranks ask for counts, and joiners take their state as it is.
    if (collective.encodes() || collective.side || collective.part_bytes() < bytes_min) {
      return collective;
    }
    Collective encoded = collective;
    encoded.encoding = encoding;
    return Problem(encoded).empty() ? encoded : collective;
  }
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_ENCODING_RULE_H_
