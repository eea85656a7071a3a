// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_WIRE_TRAVEL_LENGTHS_H_
#define TALWEG_LIBS_WIRE_TRAVEL_LENGTHS_H_

#include "libs/base/encoding.h"
#include "libs/wire/frames.h"

namespace talweg::wire {

// Whether what an entry says of its bytes agrees. Plain bytes are as many as those of the data.
// Encoded ones are as many as the encoding needs at most, or fewer. Inline ones are all in the
// entry. `Entry` is Contribute or Result, with data. What `length_bytes` may be is the caller's.
template <typename Entry>
bool TravelLengthsAgree(const Entry& entry, Encoding encoding) {
  if (entry.form == Form::kInline && entry.bytes.size() != entry.travel_bytes) return false;
  return encoding == Encoding::kPlain
             ? entry.travel_bytes == entry.length_bytes
             : entry.travel_bytes <= TravelBytesMax(encoding, entry.length_bytes);
}

}  // namespace talweg::wire

#endif  // TALWEG_LIBS_WIRE_TRAVEL_LENGTHS_H_
