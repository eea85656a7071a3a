# SPDX-License-Identifier: Apache-2.0
"""Chooses the logical cores that each rank of a node is bound to, by BytePS's rules.

hwloc tells which logical cores are threads of one physical core, and where cores and GPUs lie.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from talweg import _programs
from talweg._compat.environment import VariableError
from talweg.byteps._environment import TABLE
from talweg.errors import TalwegError

_NVIDIA = 0x10DE


@dataclass(frozen=True)
class Machine:
    """The cores and GPUs of a machine that this process may use."""

    # For each NUMA node, its physical cores; each of these is a list of its logical cores.
    nodes: list[list[list[int]]]
    # For each of NVIDIA's GPUs, in the order of their PCI addresses, the logical cores on its NUMA
    # node; empty if the node is not known.
    near_gpus: list[set[int]]


def read(environment: Mapping[str, str] | None = None) -> Machine:
    """Returns this machine, or another one if hwloc's variables name its topology.

    Raises TalwegError if hwloc does not know the cores.
    """
    line = [_programs.tool(), "topology", "--json"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TalwegError(
            f"this machine's cores are not known: set BYTEPS_NUMA_ON=0. {done.stderr}"
        )
    return machine_of(json.loads(done.stdout))


def machine_of(told: Any) -> Machine:
    """Returns the machine that `talweg topology --json` has told of."""
    by_node: dict[tuple[bool, int], list[list[int]]] = {}
    for core in told["cores"]:
        node, socket = core["numa_node"], core["socket"]
        place = (True, socket) if node is None else (False, node)
        by_node.setdefault(place, []).append(core["cpus"])
    near_gpus = []
    for gpu in sorted(told["gpus"], key=lambda each: str(each["pci_address"])):
        if gpu["vendor"] == _NVIDIA:
            cores = by_node.get((False, gpu["numa_node"]), [])
            near_gpus.append({cpu for core in cores for cpu in core})
    return Machine([sorted(by_node[place]) for place in sorted(by_node)], near_gpus)


def parse(text: str) -> list[int]:
    """Returns the cores of a text like `1,4-5`."""
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def of_ranks(near_gpus: list[set[int]], visible: str, local_size: int) -> list[set[int]]:
    """Returns the cores near each rank's GPU, which is its entry of NVIDIA_VISIBLE_DEVICES."""
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    near = []
    for local_rank in range(local_size):
        entry = entries[local_rank] if local_rank < len(entries) else ""
        index = int(entry) if entry.isdecimal() else local_rank
        near.append(near_gpus[index] if index < len(near_gpus) else set())
    return near


def plan(
    environment: Mapping[str, str],
    local_size: int,
    nodes: list[list[list[int]]],
    usable: set[int],
    near_gpus: list[set[int]] | None = None,
) -> list[list[int]] | None:
    """Returns the cores of each rank; None if ranks are not bound, because cores are too few.

    `usable` are the cores that this process may run on. `near_gpus` are those near each rank's GPU.
    Raises VariableError if BYTEPS_VISIBLE_CPU_CORES names no usable core for a rank.
    """
    told = TABLE.value(environment, "BYTEPS_VISIBLE_CPU_CORES")
    if told:
        sections = [parse(section) for section in told.split(":")]
        if len(sections) < local_size:
            raise VariableError(
                f"BYTEPS_VISIBLE_CPU_CORES is '{told}', which has {len(sections)} sections; it must "
                f"have one for each of the {local_size} ranks, with colons between them"
            )
        for section in sections[:local_size]:
            if not usable.intersection(section):
                raise VariableError(
                    f"BYTEPS_VISIBLE_CPU_CORES is '{told}'; {show(section)} has no core that this "
                    f"process may use: name some of {show(sorted(usable))}"
                )
        return sections[:local_size]
    near = near_gpus or [set() for _ in range(local_size)]
    return _automatic(environment, local_size, nodes, usable, near)


def of_daemons(
    environment: Mapping[str, str], ranks: list[list[int]], usable: set[int]
) -> set[int]:
    """Returns the cores of the node's daemons.

    These are the cores of BYTEPS_VISIBLE_CPU_CORES. Without that variable they are all usable cores
    except for those of BYTEPS_CPU_BLACKLIST.
    """
    if TABLE.value(environment, "BYTEPS_VISIBLE_CPU_CORES"):
        return usable.intersection(core for mine in ranks for core in mine)
    return usable - _left_out(environment)


def _left_out(environment: Mapping[str, str]) -> set[int]:
    told = TABLE.value(environment, "BYTEPS_CPU_BLACKLIST")
    return {int(core) for core in told.split(",")} - {-1}


def _automatic(
    environment: Mapping[str, str],
    local_size: int,
    nodes: list[list[list[int]]],
    usable: set[int],
    near_gpus: list[set[int]],
) -> list[list[int]] | None:
    usable = usable - _left_out(environment)
    threaded = TABLE.switch(environment, "BYTEPS_MULTITHREADED_CPU")
    if not threaded:
        nodes = [sorted([cpu] for core in cores for cpu in core) for cores in nodes]
    has_siblings = any(len(core) > 1 for cores in nodes for core in cores)
    # A physical core is left out if its first logical core is left out.
    free = [[core for core in cores if core[0] in usable] for cores in nodes]
    total = sum(len(cores) for cores in free)
    if total < local_size:
        return None
    quota_text = TABLE.value(environment, "BYTEPS_NUMA_DEFAULT_QUOTA")
    quota = int(quota_text) if quota_text else total // local_size
    while quota > 1 and quota * local_size > total:
        quota -= 1
    # The last rank is the node's root. It gets the rest, but at most half a NUMA node.
    root_quota = TABLE.number(environment, "BYTEPS_NUMA_ROOT_QUOTA")
    root_quota = root_quota or total - quota * (local_size - 1)
    largest = max(len(cores) for cores in nodes)
    root_quota = max(1, min(root_quota, largest // 2 if has_siblings else largest))
    ranks = []
    for local_rank in range(local_size):
        wanted = root_quota if local_rank == local_size - 1 else quota
        mine = _take(free, wanted, near_gpus[local_rank])
        ranks.append(sorted(cpu for core in mine for cpu in core if cpu in usable))
    return ranks


def _take(free: list[list[list[int]]], wanted: int, near: set[int]) -> list[list[int]]:
    """Removes and returns `wanted` cores of the first node that has them.

    If no node has so many, it takes one fewer, and so on. It takes cores only from the node of
    `near`, if that node has any left.
    """
    on_it = [cores for cores in free if cores and all(core[0] in near for core in cores)]
    nodes = on_it if on_it and len(on_it) < len(free) else free
    for count in range(wanted, 0, -1):
        for cores in nodes:
            if len(cores) >= count:
                mine = cores[:count]
                del cores[:count]
                return mine
    return []


def show(cores: list[int]) -> str:
    """Returns a text like `0-3,32-35` for cores in ascending order."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
