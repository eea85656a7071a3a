# SPDX-License-Identifier: Apache-2.0
"""One rank of run_goes_on_test.py: the last rank dies in a step of which the others have no State.

    lost_early.py STEP

Each survivor prints the change that end_step() returned at the end of that step, and the changes
that its callback got.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
import talweg
from talweg import Change, _client
from talweg._elastic.membership import membership_of

_STEPS = 4


def _text(change: Change | None) -> str:
    if change is None:
        return "none"
    lost = [member.node for member in change.lost]
    return f"{change.before.size} to {change.after.size} without {lost}"


def main() -> int:
    talweg.init()
    heard: list[str] = []
    talweg.on_view_change(lambda change: heard.append(_text(change)))
    talweg.barrier()  # All ranks have seen three nodes before one of them is lost.
    fatal = int(sys.argv[1])
    for step in range(_STEPS):
        if step == fatal and talweg.rank() == talweg.size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        talweg.push_pull(np.ones(9, np.float32), "gradient", talweg.Op.SUM)
        while step == fatal and not membership_of(_client.current()).is_behind:
            time.sleep(0.01)  # The agent has not been told of the loss.
        change = talweg.end_step()
        if step == fatal:
            members = [member.node for member in talweg.members()]
            print(f"returned {_text(change)}, members {members}", flush=True)
    print(f"heard {heard}", flush=True)
    talweg.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
