# SPDX-License-Identifier: Apache-2.0
"""Reads what Slurm tells about a step's nodes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

_ASK_S = 20.0
# Step numbers from here on are no srun of the user: interactive, batch script, external, pending.
_RESERVED_STEPS = 0xFFFFFFF0


def is_step(environment: Mapping[str, str]) -> bool:
    """Whether srun has started this process. An allocation's shell or batch script is no rank."""
    step = environment.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) >= _RESERVED_STEPS:
        return False
    return environment.get("SLURM_PROCID", "") != ""


def first_host(nodes: str) -> str:
    """Returns the first host of a list as Slurm writes it: "gpu003" of "gpu[003-007,9],login"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    name = first[0] if first is not None else nodes
    return re.sub(r"\[([^\]]*)\]", lambda match: re.split("[-,]", match[1])[0], name)


def counts(tasks_per_node: str) -> list[int]:
    """Returns the numbers of tasks on each node: 2, 2, 2, 1 for "2(x3),1"."""
    found: list[int] = []
    for part in tasks_per_node.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _scontrol(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", *arguments],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def address_of(node: str) -> str:
    """Returns the address by which Slurm reaches a node; its name if Slurm does not tell it."""
    match = re.search(r"\bNodeAddr=(\S+)", _scontrol("show", "node", node))
    return match[1] if match is not None else node


def munge_socket() -> str:
    """Returns the socket of the cluster's munge; empty for the usual one."""
    match = re.search(r"^AuthInfo\s*=.*\bsocket=([^,\s]+)", _scontrol("show", "config"), re.M)
    return match[1] if match is not None else ""
