// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_WIRE_ROUND_KIND_H_
#define TALWEG_LIBS_WIRE_ROUND_KIND_H_

#include <cstdint>

#include "libs/base/collective.h"
#include "libs/base/encoding.h"
#include "libs/base/ids.h"
#include "libs/wire/frames.h"

namespace talweg::wire {

// How a round's result comes from its contributions. The kind does not travel: it follows from a
// contribution's mode and from the epoch of the sum that it names.
enum class RoundKind : uint8_t {
  kSum = 1,     // The tensor's op combines the contributions.
  kCopy = 2,    // One member's contribution is the result.
  kFinish = 3,  // One member's contribution is the result, and was summed before (docs/protocol.md,
                // section 6).
};

constexpr RoundKind KindOf(const Contribute& entry) {
  if (entry.mode == Mode::kSum) return RoundKind::kSum;
  return entry.sum_epoch == Epoch{0} ? RoundKind::kCopy : RoundKind::kFinish;
}

// The kind of a tensor's rounds, except of those that a Finish completes.
constexpr RoundKind KindOf(const Collective& collective) {
  return collective.copies() ? RoundKind::kCopy : RoundKind::kSum;
}

// Whether the result is one member's contribution. The others' contributions are then empty.
constexpr bool Copies(RoundKind kind) { return kind != RoundKind::kSum; }

constexpr Mode ModeOf(RoundKind kind) { return Copies(kind) ? Mode::kCopy : Mode::kSum; }

// How the slices of such a round travel. A Finish travels plain: its source holds the decoded
// result, and to encode that again could give other bytes.
Encoding EncodingOf(RoundKind kind, const Collective& collective);

}  // namespace talweg::wire

#endif  // TALWEG_LIBS_WIRE_ROUND_KIND_H_
