# SPDX-License-Identifier: Apache-2.0
"""Hosts with slots, and which rank gets which, as horovodrun deals them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from talweg._node import listed_hosts
from talweg._node.hosts import deal
from talweg.errors import InvalidArgument
from talweg.horovod._rank import places

__all__ = [
    "INVALID_SLOT_INFO",
    "HostInfo",
    "SlotInfo",
    "get_host_assignments",
    "parse_host_files",
    "parse_hosts",
    "parse_hosts_and_slots",
]


class HostInfo:
    """A host, and how many ranks it may have."""

    def __init__(self, hostname: str, slots: int) -> None:
        self.hostname = hostname
        self.slots = slots

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Returns the host of a text such as "a:2"."""
        (host,) = parse_hosts(host_string)
        return host


@dataclass
class SlotInfo:
    """A rank's place."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        numbers = (self.rank, self.size, self.local_rank, self.local_size)
        return ",".join(map(str, (*numbers, self.cross_rank, self.cross_size)))


# The place of a process that is no rank.
INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Returns the hosts of a text such as "a:2,b:4". Raises ValueError for another text."""
    return [HostInfo(host.name, host.slots) for host in listed_hosts.parse_hosts(hosts_string)]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Returns the names of such a text, and the slots by name."""
    found = parse_hosts(hosts)
    return [host.hostname for host in found], {host.hostname: host.slots for host in found}


def parse_host_files(filename: str) -> str:
    """Returns the hosts of a file of lines `host slots=n` as a text such as "a:2,b:4"."""
    found = listed_hosts.parse_lines(Path(filename).read_text(), filename)
    return ",".join(f"{host.name}:{host.slots}" for host in found)


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Gives the hosts' slots to ranks, host by host, `max_num_proc` of them at most.

    Raises ValueError if there are fewer than `min_num_proc`.
    """
    slots = sum(host.slots for host in hosts)
    size = slots if max_num_proc is None else min(slots, max_num_proc)
    if size < min_num_proc:
        raise InvalidArgument(
            f"Requested more processes ({min_num_proc}) than there are available slots ({size}): "
            "name more hosts, or more slots"
        )
    dealt = deal([listed_hosts.Host(host.hostname, host.slots) for host in hosts], size)
    told = ",".join(f"{host.name}:{host.slots}" for host in dealt)
    found: list[SlotInfo] = []
    for node, host in enumerate(dealt):
        for local in range(host.slots):
            variables = {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(host.slots)}
            variables |= {"RANK": str(len(found)), "WORLD_SIZE": str(size)}
            place = places(told, {**variables, "GROUP_RANK": str(node)})
            numbers = {name.lower(): int(text) for name, text in place.items() if text.isdigit()}
            numbers.pop("hostname", None)
            found.append(SlotInfo(hostname=host.name, **numbers))
    return found
