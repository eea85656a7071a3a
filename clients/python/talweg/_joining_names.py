# SPDX-License-Identifier: Apache-2.0
"""Which names are in use, as ranks that have joined hear it: _joining.py says how."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from talweg import _client
from talweg._client import Client
from talweg._collectives import collectives
from talweg._collectives.call_channel import CallChannel, channel_named
from talweg._collectives.channels import Channel, Job, Steps, Wait
from talweg._collectives.kinds import ALL_GATHER, WHOLE, Given, Rows
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._declaration import Declaration, DType, Op
from talweg._library.native_arguments import NOBODY_WAITS
from talweg.errors import TalwegError

# The names that joining itself uses begin so.
OWN = "talweg.join"
# Nobody tells of these: those are of ranks that end a step together, and none of them has joined.
_UNTOLD = (OWN, *(f"talweg.{each}" for each in ("agree", "step", "digest", "takers", "state")))
_LENGTH = struct.Struct("<I")
# How long a rank that leaves waits for ranks that have not announced what it has.
_FLUSH_S = 5.0


# A name, its group, and whether it is a channel's.
Key = tuple[str, tuple[int, ...], bool]


@dataclass(frozen=True)
class Name:
    """What is announced: a tensor's name or a channel's."""

    name: str
    ranks: tuple[int, ...]  # The group's; none: all of the job.
    declaration: Declaration | None = None  # None: a channel.
    title: str = ""
    in_one: bool = False

    @property
    def key(self) -> Key:
        return self.name, self.ranks, self.declaration is None

    @property
    def digest(self) -> int:
        """Tells its key from others, alike at all ranks."""
        data = repr(self.key).encode()
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")

    @property
    def is_own(self) -> bool:
        """Whether joining itself uses it."""
        return self.name.startswith(OWN)


class Announcements:
    """Tells ranks that have joined of names, and hears of them. One for a client.

    Any thread may call any method.
    """

    def __init__(self, client: Client, sets: Callable[[], Iterable[ProcessSet]]) -> None:
        """`sets`: the process sets that this rank is in and may have to give zeros in."""
        self.client = client
        self.heard: dict[Key, Name] = {}
        # Told of what is heard from now on, on another thread.
        self.listener: Callable[[list[Name]], None] | None = None
        self._sets = sets
        self._lock = threading.Lock()
        self._open: list[Job] = []
        # What all ranks know by what they have told each other when the membership changed.
        self._agreed: set[Key] = set()
        client.names_watcher = self
        client.tensors.watcher = self.on_tensors
        client.call_before_closing(self._flush)
        if client.nodes_change:
            _client.call_at_end_of_step(self._flush)

    def groups(self) -> dict[tuple[int, ...], Group]:
        """Those in which names are told of, by their ranks (none: all of the job)."""
        groups: dict[tuple[int, ...], Group] = {(): Group(self.client, None, "join")}
        for each in self._sets():
            group = Group(self.client, each, "join")
            groups[group.listed] = group
        return groups

    def on_tensors(self, declarations: Sequence[tuple[str, Declaration, int]]) -> None:
        self._tell([Name(name, each.ranks, each) for name, each, _ in declarations])

    def on_channel(self, channel: CallChannel) -> None:
        self._tell([name_of(channel)])

    def _tell(self, names: Sequence[Name]) -> None:
        by_ranks: dict[tuple[int, ...], list[Name]] = {}
        for each in names:
            if not each.name.startswith(_UNTOLD) and each.key not in self._agreed:
                by_ranks.setdefault(each.ranks, []).append(each)
        groups = self.groups()
        for ranks, told in by_ranks.items():
            if ranks in groups:
                self.exchange(groups[ranks], told)

    def exchange(self, group: Group, names: Sequence[Name | None]) -> Job:
        """Tells the group, and hears what its other ranks tell; does not wait for it."""
        channel = channel_of_names(self.client, group)
        if isinstance(channel, CallChannel):
            job = collectives.job_of(channel, [_given(name) for name in names], NOBODY_WAITS)
        else:
            told = [b"" if name is None else pickle.dumps(name) for name in names]
            job = Job(channel, [partial(_steps_of_gather, channel, each) for each in told])
        with self._lock:
            self._open = [each for each in self._open if not each.done]
            self._open.append(job)
        channel.submit(job)
        channel.call_when_done(job, lambda: self._hear(job))
        return job

    def _flush(self) -> None:
        """Ends what was announced: the others announce the same names, and wait for this rank."""
        end = time.monotonic() + _FLUSH_S
        with contextlib.suppress(TalwegError):
            for job in self._open:
                job.channel.finish(job, end)

    def agree(self) -> None:
        """Called by all ranks where the membership has changed: each tells what it knows."""
        client = self.client
        self._open.clear()
        known = [Name(each.name, (), each.declaration) for each in client.tensors.all()]
        known += [each for each in self.heard.values() if each.declaration is not None]
        told = [each for each in known if not each.ranks and not each.name.startswith(_UNTOLD)]
        self.heard = {}
        for other in gather(client, f"{OWN}.known", pickle.dumps(told)).values():
            self.heard.update((each.key, each) for each in pickle.loads(other))
        self._agreed = set(self.heard)

    def _hear(self, job: Job) -> None:
        names: list[Name] = []
        for result in job.results:  # None, if it has failed.
            if isinstance(result, dict):
                names += [pickle.loads(data) for data in result.values() if data]
                continue
            every, counts = result
            for count in counts:
                if count > 0:
                    names.append(pickle.loads(every[:count].tobytes()))
                every = every[count:]
        self.heard.update((each.key, each) for each in names)
        listener = self.listener
        if listener is not None:
            listener(names)


def _given(name: Name | None) -> Given:
    """An announcement; None: this rank has nothing to tell."""
    data = b"" if name is None else pickle.dumps(name)
    own: np.ndarray = np.array(bytearray(data), np.uint8)
    rows, address = Rows("uint8", (), 1), int(own.ctypes.data)
    return Given(ALL_GATHER, 0, rows, [own.size], address, own, _memory_of)


def name_of(channel: CallChannel) -> Name:
    return Name(channel.name, channel.group.listed, None, channel.title, channel.in_one)


def _memory_of(rows: Rows, counts: list[int]) -> tuple[Any, int]:
    every: np.ndarray = np.empty(sum(counts), np.uint8)
    return (every, counts), int(every.ctypes.data)


def channel_of_names(client: Client, group: Group) -> Channel:
    """Where a group's announcements are made."""
    name = f"{OWN}.names"
    if client.nodes_change:
        return _channel_of_maxima(client, name, group)
    return channel_named(client, name, group, name)


# ----- Gathers that go on without ranks that are gone -----


def _channel_of_maxima(client: Client, name: str, group: Group) -> Channel:
    """Its tensors are as long as there are ranks, so they are those of one view."""
    name += client.connection.view_suffix
    key = (name, group.ranks)
    with client.channels_lock:
        channel: Channel | None = client.channels.get(key)
        if channel is None:
            channel = client.channels[key] = Channel(client, name, group)
    return channel


def _maxima(channel: Channel, words: str, own: np.ndarray) -> Steps:
    """The greatest of each of the group's unsigned numbers, in place."""
    dtype = DType.U8 if own.dtype == np.uint8 else DType.U64
    name = f"{channel.name}.{words}{own.size}"
    tensor = channel.declare(name, dtype, Op.MAX, (WHOLE, WHOLE), 0, own.size)
    address = int(own.ctypes.data)
    round_ = channel.client.connection.push_parts(tensor, address, [own.nbytes], NOBODY_WAITS)
    yield Wait(tensor, round_, address, own.nbytes)


def _steps_of_gather(channel: Channel, data: bytes) -> Steps:
    """What each rank of the group gives, by its place; of one that is gone nothing, perhaps."""
    longest: np.ndarray = np.array([len(data)], np.uint64)
    yield from _maxima(channel, "lengths", longest)
    if longest[0] == 0:
        return {}
    room = max(64, 1 << (_LENGTH.size + int(longest[0]) - 1).bit_length())
    every: np.ndarray = np.zeros(room * channel.group.size, np.uint8)
    place = channel.group.place * room
    told = _LENGTH.pack(len(data)) + data
    every[place : place + len(told)] = np.frombuffer(told, np.uint8)
    yield from _maxima(channel, "data", every)
    found: dict[int, bytes] = {}
    for other in range(channel.group.size):
        text = every[other * room : (other + 1) * room].tobytes()
        (length,) = _LENGTH.unpack_from(text)
        if length > 0:
            found[other] = text[_LENGTH.size : _LENGTH.size + length]
    return found


def gather(client: Client, name: str, data: bytes) -> dict[int, bytes]:
    """What all ranks give, which is not nothing, by rank: without those that are gone."""
    channel = _channel_of_maxima(client, name, Group(client, None, "join"))
    job = Job(channel, [partial(_steps_of_gather, channel, data)])
    channel.submit(job, is_async=False)
    channel.finish(job)
    if job.failure is not None:
        raise job.failure
    found: dict[int, bytes] = job.results[0]
    return found
