// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_VIEW_NUMBERS_H_
#define TALWEG_LIBS_VIEW_NUMBERS_H_

#include <cstdint>

#include "libs/base/ids.h"

// Which numbers schedulers give to epochs and jobs, and which ones others believe.
namespace talweg::view {

inline constexpr Epoch kEpochMax{uint64_t{1} << 62};

// A scheduler that starts at this time gives jobs and quiesces only ids above the returned number,
// and jobs from its store only epochs above it. The store may have been restored from a copy, and
// only others know which numbers were given since. The number is therefore the time in
// milliseconds, with room for a million numbers in each.
uint64_t NumbersFrom(int64_t start_unix_ns);

// Returns the largest number that any scheduler can have given, for one who knows that `known` was
// given. A day above `known` and above the present time: clocks differ. `unix_ns`: 0, if the time
// is unknown.
uint64_t BelievedTo(uint64_t known, int64_t unix_ns);

}  // namespace talweg::view

#endif  // TALWEG_LIBS_VIEW_NUMBERS_H_
