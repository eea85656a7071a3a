# SPDX-License-Identifier: Apache-2.0
"""The log of ranks of the scenarios `recovery` and `loss_curve`. It has a record for each event."""

from __future__ import annotations

import struct

# A record has the event, the step, its begin and end (monotonic ns), the epoch and the ranks then.
RECORD = struct.Struct("<qqqqqq")
# The events: the process is there; it has the others' state; it has ended a step; the others have
# waited while it took their state.
COMES, BEGINS, STEP, WHOLE = 0, 1, 2, 3
