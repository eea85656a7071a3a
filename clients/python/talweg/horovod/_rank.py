# SPDX-License-Identifier: Apache-2.0
"""The program that horovodrun starts for each rank. It sets HOROVOD_RANK and the like, and then
becomes COMMAND.

    python _rank.py HOSTS COMMAND...

HOSTS are `name:slots,...`, which ranks fill in order. They are empty if hosts come and go. Then the
ranks' numbers change too. The launcher says those with which the ranks begin, and hvd.init() sets
those that they have by then. This is a file and no module, because importing
the package here would add that time to the start of every rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def places(hosts: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns a rank's variables, without HOROVOD_, from the variables of `talweg run`."""
    local = int(environment["LOCAL_RANK"])
    found = {"LOCAL_RANK": str(local), "LOCAL_SIZE": environment["LOCAL_WORLD_SIZE"]}
    if not hosts:
        found["HOSTNAME"] = environment["TALWEG_HOST"]
        if "TALWEG_FIRST_RANK" in environment:
            found["RANK"] = str(int(environment["TALWEG_FIRST_RANK"]) + local)
            found["SIZE"] = environment["TALWEG_FIRST_SIZE"]
        return found
    node = int(environment["GROUP_RANK"])
    slots = [int(host.rpartition(":")[2]) for host in hosts.split(",")]
    alike = [place for place, count in enumerate(slots) if count > local]
    return {
        **found,
        "RANK": environment["RANK"],
        "SIZE": environment["WORLD_SIZE"],
        "CROSS_RANK": str(alike.index(node)),
        "CROSS_SIZE": str(len(alike)),
        "HOSTNAME": hosts.split(",")[node].rpartition(":")[0],
    }


def main() -> None:
    hosts, *command = sys.argv[1:]
    found = places(hosts, os.environ)
    os.environ.update((f"HOROVOD_{name}", value) for name, value in found.items())
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"horovodrun: {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
