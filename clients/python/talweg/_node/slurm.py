# SPDX-License-Identifier: Apache-2.0
"""What Slurm says of a step's nodes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

_ASK_S = 20.0
# Steps that are no srun of the user's: interactive, batch script, external, pending.
_RESERVED_STEPS = 0xFFFFFFF0


def is_step(environment: Mapping[str, str]) -> bool:
    """Whether srun has started this process: a shell of an allocation, or its script, is no rank."""
    step = environment.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) >= _RESERVED_STEPS:
        return False
    return environment.get("SLURM_PROCID", "") != ""


def first_host(nodes: str) -> str:
    """The first of a list as Slurm writes it: "gpu003" of "gpu[003-007,9],login"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    name = first[0] if first is not None else nodes
    return re.sub(r"\[([^\]]*)\]", lambda match: re.split("[-,]", match[1])[0], name)


def counts(tasks_per_node: str) -> list[int]:
    """ "2(x3),1" is 2, 2, 2, 1."""
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
    """The address by which Slurm reaches a node; its name where Slurm does not say."""
    match = re.search(r"\bNodeAddr=(\S+)", _scontrol("show", "node", node))
    return match[1] if match is not None else node


def munge_socket() -> str:
    """Where the cluster's munge listens; empty: at the usual place."""
    match = re.search(r"^AuthInfo\s*=.*\bsocket=([^,\s]+)", _scontrol("show", "config"), re.M)
    return match[1] if match is not None else ""
