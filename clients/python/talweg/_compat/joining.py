# SPDX-License-Identifier: Apache-2.0
"""Which rank has joined last, as Horovod's join() tells."""

from __future__ import annotations

import talweg


def last_to_join(served: int) -> int:
    """`served`: how many steps this rank has served since it joined. The last one has the fewest.

    If several joined together it is the largest of them.
    """
    told = talweg.all_gather_object(served, "horovod.join")
    return max(place for place, count in enumerate(told) if count == min(told))
