# SPDX-License-Identifier: Apache-2.0
"""The log that ranks of the scenarios `recovery` and `loss_curve` keep: a record for each event."""

from __future__ import annotations

import struct

# What happened, the step, when it began and ended (monotonic ns), the epoch and the ranks then.
RECORD = struct.Struct("<qqqqqq")
# The process is there; it has the others' state; it has ended a step; the others have waited while it
# took their state.
COMES, BEGINS, STEP, WHOLE = 0, 1, 2, 3
