// SPDX-License-Identifier: Apache-2.0
#include "libs/wire/round_kind.h"

namespace talweg::wire {

Encoding EncodingOf(RoundKind kind, const Collective& collective) {
  return kind == RoundKind::kFinish ? Encoding::kPlain : collective.encoding;
}

}  // namespace talweg::wire
