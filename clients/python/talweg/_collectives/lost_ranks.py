# SPDX-License-Identifier: Apache-2.0
"""Errors of calls that a lost rank has ended, in the words of the program."""

from __future__ import annotations

import re

from talweg.errors import Aborted, TalwegError

# The agent's and the aggregators' texts begin with the tensor's name, which the client may have
# made up (libs/pipeline/rounds.cc, libs/aggregation/recovery.cc).
_TENSOR = re.compile(r"^(tensor '[^']*'(, round \d+)?: )+")


def lost_rank(failure: TalwegError, call: str) -> TalwegError:
    """Returns Aborted with `call` in place of its tensor's name. Returns other errors as they are,
    and all errors if `call` is empty.
    """
    if not call or not isinstance(failure, Aborted):
        return failure
    return Aborted(f"{call}: {_TENSOR.sub('', str(failure))}")


def gone(call: str, rank: int, may_have_joined: bool) -> Aborted:
    """Returns the error of a call that a rank which is gone takes no part in."""
    joined = "" if not may_have_joined else ", or has joined (hvd.join()) and waits for the others"
    return Aborted(
        f"{call}: rank {rank} is gone{joined}; end the step (in Python: end_step()), or use a process "
        "set of ranks that are there"
    )
