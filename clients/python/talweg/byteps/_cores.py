# SPDX-License-Identifier: Apache-2.0
"""Which logical cores each rank of a node is bound to, by BytePS's rules.

The cores of one NUMA node come in their order; with hyperthreading the first half of them are
physical, and core i's sibling is i + the number of physical cores of the host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from talweg._compat.environment import VariableError
from talweg.byteps._environment import TABLE

_NODES = Path("/sys/devices/system/node")
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"  # 0x0300: VGA; 0x0302: 3D.


def parse(text: str) -> list[int]:
    """The cores of `1,4-5`."""
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def numa_nodes(root: Path = _NODES) -> list[list[int]]:
    """The logical cores of each NUMA node of this host; none where the kernel does not say."""
    nodes = []
    for directory in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        names = [path.name for path in directory.glob("cpu[0-9]*")]
        cores = sorted(int(name[3:]) for name in names if re.fullmatch(r"cpu\d+", name))
        if cores:
            nodes.append(cores)
    return nodes


def cores_near_gpus(root: Path = _PCI_DEVICES) -> list[set[int]]:
    """For each GPU, in the order of their PCI addresses: the logical cores on its NUMA node."""
    found = []
    for device in sorted(root.glob("*")):
        try:
            vendor, kind, cores = (
                (device / name).read_text().strip() for name in ("vendor", "class", "local_cpulist")
            )
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS):
            found.append(set(parse(cores)) if cores else set())
    return found


def of_ranks(near_gpus: list[set[int]], visible: str, local_size: int) -> list[set[int]]:
    """The cores near each rank's GPU, which is its entry of NVIDIA_VISIBLE_DEVICES."""
    entries = [entry.strip() for entry in visible.split(",")]
    near = []
    for local_rank in range(local_size):
        entry = entries[local_rank] if local_rank < len(entries) else ""
        index = int(entry) if entry.isdecimal() else local_rank
        near.append(near_gpus[index] if index < len(near_gpus) else set())
    return near


def plan(
    environment: Mapping[str, str],
    local_size: int,
    nodes: list[list[int]],
    usable: set[int],
    near_gpus: list[set[int]] | None = None,
) -> list[list[int]] | None:
    """The cores of each rank; None: they are not bound, as there are fewer cores than ranks.

    `usable` are those that this process may run on, `near_gpus` those near each rank's GPU.
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
                    f"BYTEPS_VISIBLE_CPU_CORES is '{told}'; of {','.join(map(str, section))} there is "
                    f"no core that this process may use ({','.join(map(str, sorted(usable)))})"
                )
        return sections[:local_size]
    near = near_gpus or [set() for _ in range(local_size)]
    return _automatic(environment, local_size, nodes, usable, near)


def of_daemons(
    environment: Mapping[str, str], ranks: list[list[int]], usable: set[int]
) -> set[int]:
    """The cores of the node's daemons: those that its ranks were told, or all but the blacklist."""
    if TABLE.value(environment, "BYTEPS_VISIBLE_CPU_CORES"):
        return usable.intersection(core for mine in ranks for core in mine)
    return usable - _left_out(environment)


def _left_out(environment: Mapping[str, str]) -> set[int]:
    told = TABLE.value(environment, "BYTEPS_CPU_BLACKLIST")
    return set() if told == "-1" else set(parse(told))


def _automatic(
    environment: Mapping[str, str],
    local_size: int,
    nodes: list[list[int]],
    usable: set[int],
    near_gpus: list[set[int]],
) -> list[list[int]] | None:
    threaded = TABLE.switch(environment, "BYTEPS_MULTITHREADED_CPU")
    usable = usable - _left_out(environment)
    physical = [cores[: len(cores) // 2] if threaded else cores for cores in nodes]
    host_cores = sum(len(cores) for cores in physical)
    free = [[core for core in cores if core in usable] for cores in physical]
    total = sum(len(cores) for cores in free)
    if total < local_size:
        return None
    quota_text = TABLE.value(environment, "BYTEPS_NUMA_DEFAULT_QUOTA")
    quota = int(quota_text) if quota_text else total // local_size
    while quota > 1 and quota * local_size > total:
        quota -= 1
    # The last rank is the node's root: the rest, but no more than half a NUMA node.
    root_quota = TABLE.number(environment, "BYTEPS_NUMA_ROOT_QUOTA")
    root_quota = root_quota or total - quota * (local_size - 1)
    largest = max(len(cores) for cores in physical)
    root_quota = max(1, min(root_quota, largest // 2 if threaded else largest))
    ranks = []
    for local_rank in range(local_size):
        wanted = root_quota if local_rank == local_size - 1 else quota
        mine = _take(free, wanted, near_gpus[local_rank])
        siblings = [core + host_cores for core in mine] if threaded else []
        ranks.append(mine + [core for core in siblings if core in usable])
    return ranks


def _take(free: list[list[int]], wanted: int, near: set[int]) -> list[int]:
    """So many cores of the first node that has them, else one fewer, and so on.

    The node that `near` lies on comes first, even if it has fewer of them left.
    """
    on_it = [cores for cores in free if cores and set(cores) <= near]
    nodes = on_it if on_it and len(on_it) < len(free) else free
    for count in range(wanted, 0, -1):
        for cores in nodes:
            if len(cores) >= count:
                mine = cores[:count]
                del cores[:count]
                return mine
    return []


def show(cores: list[int]) -> str:
    """`0-3,32-35`."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
