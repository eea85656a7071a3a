# SPDX-License-Identifier: Apache-2.0
"""Sets a rank's place, then becomes COMMAND. bpslaunch has `talweg run` start it for each rank.

    python _rank.py CORES COMMAND

CORES are the ranks' lists of cores, with colons between them. If it is empty, ranks are not bound.
COMMAND is a line for the shell. This runs as a file and not as a module, because each rank would
have to import the package first.
"""

from __future__ import annotations

import os
import sys


def _cores(text: str) -> set[int]:
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def main() -> None:
    sections, command = sys.argv[1:]
    local_rank = os.environ["LOCAL_RANK"]
    os.environ["BYTEPS_LOCAL_RANK"] = local_rank
    os.environ["BYTEPS_LOCAL_SIZE"] = os.environ["LOCAL_WORLD_SIZE"]
    os.environ["TALWEG_BYTEPS_LAUNCHED"] = "1"  # bpslaunch has reported the variables already.
    if sections:
        try:
            os.sched_setaffinity(0, _cores(sections.split(":")[int(local_rank)]))
        except OSError as error:
            print(
                f"bpslaunch: rank {local_rank} is not bound to its cores: {error}", file=sys.stderr
            )
    os.execv("/bin/sh", ["/bin/sh", "-c", command])


if __name__ == "__main__":
    main()
