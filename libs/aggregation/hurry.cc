// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/hurry.h"

#include <optional>

#include "libs/wire/frames.h"

namespace talweg::aggregation {

void TellToHurry(const AggregatorTensor& tensor, MemberIndex member, const PresentView& view,
                 const Attendance& attendance, Effects& out) {
  const std::optional<ConnectionId>& connection = attendance.ConnectionOf(member);
  if (!connection) return;
  SendEntry(*connection, view.epoch(),
            wire::Waiting{.key = tensor.key,
                          .round = tensor.hurried,
                          .missing_nodes = {view.IdOf(member).node.value()},
                          .absent_ns = {0}},
            out);
}

}  // namespace talweg::aggregation
