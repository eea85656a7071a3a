// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_HURRY_H_
#define TALWEG_LIBS_AGGREGATION_HURRY_H_

#include "libs/aggregation/aggregator_tensor.h"
#include "libs/aggregation/attendance.h"
#include "libs/aggregation/effects.h"
#include "libs/aggregation/present_view.h"
#include "libs/base/ids.h"

namespace talweg::aggregation {

// Tells a member that round `tensor.hurried` may go on without the member's late ranks. A member
// without a connection is not told.
void TellToHurry(const AggregatorTensor& tensor, MemberIndex member, const PresentView& view,
                 const Attendance& attendance, Effects& out);

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_HURRY_H_
