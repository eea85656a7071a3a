# SPDX-License-Identifier: Apache-2.0
"""Ranks that have joined: they have no more data, and give zeros until all ranks have joined.

The others notice nothing. A rank that has joined keeps one round ahead in whatever the others may
call next, by one of these *streams*:

    a tensor that is reduced   a round of zeros
    a tensor that is broadcast a round with a signature of its own, so that it ends with Mismatch
    a channel of collectives   a control round that says that this rank has joined: reductions go on
                               with zeros, other calls end with Mismatch (words.with_stand_ins)

Such a rank knows the names that are in use. It hears of further ones by announcements: who uses a
name for the first time tells in an all_gather of the name's group, one for each name. Nobody waits
for that but ranks that have joined. Ranks may come to their names in any order: of each name that
all of them use, the one with the fewest announcements so far tells in time. Each rank announces as
many as the others by the time that it leaves, so that nobody waits for one that has left.

    active   join() is called                                            serving
    serving  the round is over in which every rank says that it joined   closing
    closing  every stream has come to the round that the furthest rank   active
             has begun in it

What is kept by the order of calls (names that were freed, whose turn it is) is after that as the
last rank to join has it, which has made all calls.

Where nodes may come and go ranks tell by rounds of maxima, each in a place of its own, as these go
on without ranks that are gone. Where the membership changes all ranks tell what they know: after
that each knows as much as the others, joiners too, and has announced as often, which is never.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from talweg import _client
from talweg._client import Client, Handle
from talweg._collectives import collectives, objects
from talweg._collectives.call_channel import CallChannel, channel_named
from talweg._collectives.channels import Channel, Job, Steps, Wait
from talweg._collectives.compared import Comparisons
from talweg._collectives.kinds import ALL_GATHER, WHOLE, Given, Rows
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._declaration import Declaration, DType, Op
from talweg._elastic.membership import membership_of
from talweg._library.native_arguments import NOBODY_WAITS
from talweg.errors import Aborted, Busy, InvalidArgument, Mismatch, TalwegError

# The names that joining itself uses begin so.
_OWN = "talweg.join"
# Nobody tells of these: those are of ranks that end a step together, and none of them has joined.
_UNTOLD = (_OWN, *(f"talweg.{each}" for each in ("agree", "step", "digest", "takers", "state")))
_LENGTH = struct.Struct("<I")
_BARRIER = "talweg.barrier"
# How long a rank that leaves waits for ranks that have not announced what it has.
_FLUSH_S = 5.0
# What a rank signs a broadcast with that it cannot take part in: texts know it (signature_text.cc).
_HAS_JOINED = 0x6A6F696E6564
# And a reduction, whose ranks may all use its name otherwise than before: its zeros fit all of it.
_FITS_ALL = 0x7A65726F73


# A name, its group, and whether it is a channel's.
_Key = tuple[str, tuple[int, ...], bool]


@dataclass(frozen=True)
class _Name:
    """What is announced: a tensor's name or a channel's."""

    name: str
    ranks: tuple[int, ...]  # The group's; none: all of the job.
    declaration: Declaration | None = None  # None: a channel.
    title: str = ""
    in_one: bool = False

    @property
    def key(self) -> _Key:
        return self.name, self.ranks, self.declaration is None


class Announcements:
    """Tells ranks that have joined of names, and hears of them. One for a client.

    Any thread may call any method.
    """

    def __init__(self, client: Client, sets: Callable[[], Iterable[ProcessSet]]) -> None:
        """`sets`: the process sets that this rank is in and may have to give zeros in."""
        self.client = client
        self.heard: dict[_Key, _Name] = {}
        # Told of what is heard from now on, on another thread.
        self.listener: Callable[[list[_Name]], None] | None = None
        self._sets = sets
        self._lock = threading.Lock()
        self._open: list[Job] = []
        # What all ranks know by what they have told each other when the membership changed.
        self._agreed: set[_Key] = set()
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
        self._tell([_Name(name, each.ranks, each) for name, each, _ in declarations])

    def on_channel(self, channel: CallChannel) -> None:
        self._tell([_name_of(channel)])

    def _tell(self, names: Sequence[_Name]) -> None:
        by_ranks: dict[tuple[int, ...], list[_Name]] = {}
        for each in names:
            if not each.name.startswith(_UNTOLD) and each.key not in self._agreed:
                by_ranks.setdefault(each.ranks, []).append(each)
        groups = self.groups()
        for ranks, told in by_ranks.items():
            if ranks in groups:
                self.exchange(groups[ranks], told)

    def exchange(self, group: Group, names: Sequence[_Name | None]) -> Job:
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
        known = [_Name(each.name, (), each.declaration) for each in client.tensors.all()]
        known += [each for each in self.heard.values() if each.declaration is not None]
        told = [each for each in known if not each.ranks and not each.name.startswith(_UNTOLD)]
        self.heard = {}
        for other in gather(client, f"{_OWN}.known", pickle.dumps(told)).values():
            self.heard.update((each.key, each) for each in pickle.loads(other))
        self._agreed = set(self.heard)

    def _hear(self, job: Job) -> None:
        names: list[_Name] = []
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


def _given(name: _Name | None) -> Given:
    """An announcement; None: this rank has nothing to tell."""
    data = b"" if name is None else pickle.dumps(name)
    own: np.ndarray = np.array(bytearray(data), np.uint8)
    rows, address = Rows("uint8", (), 1), int(own.ctypes.data)
    return Given(ALL_GATHER, 0, rows, [own.size], address, own, _memory_of)


def _name_of(channel: CallChannel) -> _Name:
    return _Name(channel.name, channel.group.listed, None, channel.title, channel.in_one)


def _memory_of(rows: Rows, counts: list[int]) -> tuple[Any, int]:
    every: np.ndarray = np.empty(sum(counts), np.uint8)
    return (every, counts), int(every.ctypes.data)


def channel_of_names(client: Client, group: Group) -> Channel:
    """Where a group's announcements are made."""
    name = f"{_OWN}.names"
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


# ----- Streams -----


class _Stream(Protocol):
    """Something that the others may call, in which this rank keeps one round ahead."""

    name: _Name
    before: int  # How many rounds this rank had begun when it joined.
    begun: int  # And by now.

    def begin(self, over: Callable[[], None]) -> None:
        """Begins the next round; has `over` called, on another thread, when it is over."""

    def end(self) -> bool:
        """Takes the round that was begun, which may have failed as the others' has.

        False: a rank that it needs is gone, so that there is no use in another round.
        """


class _TensorStream:
    """Zeros for a tensor that is reduced; for one that is broadcast, a word that ends the round."""

    def __init__(self, client: Client, name: _Name, zeros: Callable[[int], int]) -> None:
        assert name.declaration is not None
        self.name = name
        self.before = self.begun = 0
        self._client = client
        self._declaration = name.declaration
        self._zeros = zeros
        self._known = client.tensors.declared_on_host(name.name)
        if self._known is not None and self._known.declaration != name.declaration:
            self._known = None
        self._tensor = (
            client.tensors.number_of(name.name, name.declaration)
            if self._known is None
            else self._known.tensor
        )
        # This rank had begun it before it joined, and nobody has its handle.
        self._left = client.left.take_over(name.name, self._tensor)
        self._left = self._left or client.open_nameless(self._tensor)
        if self._left is not None:
            self.before = self._left.round

    def begin(self, over: Callable[[], None]) -> None:
        if self._left is None:
            self._push()
        else:
            self.begun = self._left.round
        if not self._client.completions.watch(self._tensor, self.begun, over):
            self._client.completions.call(over)  # Taking it tells why.

    def _push(self) -> None:
        connection, declaration = self._client.connection, self._declaration
        try:
            if declaration.op is Op.BROADCAST:
                gives = declaration.root_rank == self._client.rank
                self.begun = connection.push_parts(
                    self._tensor, 0, [0] * gives, NOBODY_WAITS, _HAS_JOINED
                )
            else:
                if self._known is not None and self._known.buffer is not None:
                    self._known.buffer.claim()
                address = self._zeros(declaration.nbytes)
                self.begun = connection.push_parts(
                    self._tensor, address, None, NOBODY_WAITS, _FITS_ALL
                )
        except Busy:
            raise InvalidArgument(
                f"hvd.join(): an operation on '{self.name.name}' is open at this rank: synchronize "
                "it first"
            ) from None

    def end(self) -> bool:
        connection, is_broadcast = self._client.connection, self._declaration.op is Op.BROADCAST
        left, self._left = self._left, None
        try:
            if left is not None:
                left.taken = True
                left.take(connection, None)
            elif is_broadcast:
                scratch: np.ndarray = np.empty(self._declaration.nbytes, np.uint8)
                out = int(scratch.ctypes.data)
                connection.wait_parts(self._tensor, self.begun, out, scratch.size)
            else:
                connection.wait(self._tensor, self.begun, 0, None)
        except Mismatch:  # The others have been told.
            pass
        except Aborted:  # A reduction goes on without ranks that are gone.
            return not is_broadcast
        return True


class _ChannelStream:
    """Control rounds of a channel; `start` begins one."""

    def __init__(self, channel: Channel, name: _Name, start: Callable[[], Job]) -> None:
        self.name = name
        self.before = self.begun = channel.calls
        self._channel = channel
        self._start = start
        self._job: Job | None = None

    def begin(self, over: Callable[[], None]) -> None:
        self._job = self._start()
        self.begun = self._channel.calls
        self._channel.call_when_done(self._job, over)

    def end(self) -> bool:
        """That the others' call has failed is nothing to a rank that has joined."""
        job = self._job
        assert job is not None
        self._channel.finish(job)
        if job.failure is not None and not isinstance(job.failure, (Mismatch, Aborted)):
            raise job.failure
        return not isinstance(job.failure, Aborted)


def _stream_of_calls(channel: CallChannel, name: _Name) -> _ChannelStream:
    def start() -> Job:
        job = Job(channel, [partial(collectives.steps_of_joined, channel)])
        channel.submit(job)
        return job

    return _ChannelStream(channel, name, start)


def _stream_of_names(announcements: Announcements, group: Group) -> _ChannelStream:
    channel = channel_of_names(announcements.client, group)
    name = _Name(channel.name, group.listed)
    return _ChannelStream(channel, name, lambda: announcements.exchange(group, [None]))


# ----- Joining -----


@dataclass
class _Account:
    """What a rank tells of its streams when all have joined."""

    streams: dict[_Key, tuple[_Name, int, int]]  # Name, `before` and `begun`.
    books: Any


@dataclass(eq=False)
class _Joined:
    """A rank that has joined."""

    announcements: Announcements
    _streams: dict[_Key, _Stream] = field(default_factory=dict)
    # Streams whose rounds are over, names that were heard, and None when all have joined.
    _events: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    _memory: np.ndarray = field(default_factory=lambda: np.zeros(1 << 12, np.uint8))

    @property
    def client(self) -> Client:
        return self.announcements.client

    def run(self) -> int:
        """Serves until all have joined; the last rank to do so, at every rank alike."""
        client = self.client
        client.companion(Comparisons).finish()
        self.announcements.listener = self._events.put
        try:
            for group in self.announcements.groups().values():
                self._add(_stream_of_names(self.announcements, group))
            self._serve([_Name(_BARRIER, (), Declaration(DType.I32, 1, Op.SUM, 0))])
            # Whoever ends a step meanwhile finds out by the zeros, and is told so.
            self._serve(
                _Name(name, (), Declaration(DType.U64, count, Op.MAX, 0))
                for name, count in membership_of(client).rounds_of_steps
            )
            self._serve(
                _Name(each.name, each.declaration.ranks, each.declaration)
                for each in client.tensors.all()
            )
            with client.channels_lock:
                channels = list(client.channels.values())
            self._serve(_name_of(each) for each in channels if isinstance(each, CallChannel))
            self._serve(list(self.announcements.heard.values()))
            all_joined = self._say_so()
            while (event := self._events.get()) is not None:
                if isinstance(event, list):
                    self._serve(event)
                else:
                    if event.end():
                        self._begin(event)
        finally:
            self.announcements.listener = None
        client.synchronize(all_joined)
        return self._close()

    def _say_so(self) -> Handle:
        one: np.ndarray = np.ones(1, np.int32)
        declaration = Declaration(DType.I32, 1, Op.SUM, 0)
        handle = self.client.push(
            f"{_OWN}.all", declaration, one.ctypes.data, 0, NOBODY_WAITS, keep=one
        )

        def over() -> None:
            self._events.put(None)

        if not self.client.completions.watch(handle.tensor, handle.round, over):
            self.client.completions.call(over)
        return handle

    def _zeros(self, nbytes: int) -> int:
        """The address of so many."""
        if self._memory.size < nbytes:
            self._memory = np.zeros(nbytes, np.uint8)
        return int(self._memory.ctypes.data)

    def _begin(self, stream: _Stream) -> None:
        stream.begin(lambda: self._events.put(stream))

    def _add(self, stream: _Stream) -> None:
        self._streams[stream.name.key] = stream
        self._begin(stream)
        if isinstance(stream, _TensorStream) and not stream.before:
            stream.before = stream.begun - 1

    def _serve(self, names: Iterable[_Name]) -> None:
        """Begins with those that are not served yet."""
        for name in names:
            if name.key not in self._streams and not name.name.startswith(_OWN):
                stream = self._stream_of(name)
                if stream is not None:
                    self._add(stream)

    def _stream_of(self, name: _Name) -> _Stream | None:
        """None: there is no such tensor, or ranks disagree on it, which their calls tell them."""
        client = self.client
        if name.declaration is None:
            group = Group(client, ProcessSet(name.ranks) if name.ranks else None, "join")
            channel = channel_named(client, name.name, group, name.title, name.in_one)
            return _stream_of_calls(channel, name)
        try:
            if not client.tensors.is_free(name.name):
                client.tensors.declare(name.name, name.declaration)
            return _TensorStream(client, name, self._zeros)
        except (Mismatch, InvalidArgument):
            return None

    # ----- When all have joined -----

    def _close(self) -> int:
        """Has every stream end where it ends at every rank; the last rank to join."""
        own = _Account(
            {key: (each.name, each.before, each.begun) for key, each in self._streams.items()},
            (self.client.tensors.free_names, self.client.nameless_state),
        )
        told: dict[int, _Account]
        if self.client.nodes_change:
            every = gather(self.client, f"{_OWN}.told", pickle.dumps(own))
            told = {rank: pickle.loads(data) for rank, data in every.items()}
        else:
            accounts = objects.all_gather_object(self.client, own, f"{_OWN}.accounts")
            told = dict(enumerate(accounts))
        ends: dict[_Key, tuple[_Name, int]] = {}
        for account in told.values():
            for key, (name, _, begun) in account.streams.items():
                ends[key] = name, max(begun, ends[key][1] if key in ends else 0)
        for name, end in ends.values():
            self._bring_to_end(name, end)
        last = _last_of(told)
        free_names, nameless = told[last].books
        self.client.tensors.free(*free_names)
        self.client.nameless_state = nameless
        return last

    def _bring_to_end(self, name: _Name, end: int) -> None:
        if name.ranks and self.client.rank not in name.ranks:
            return
        stream = self._streams.get(name.key)
        if stream is None:
            self._serve([name])
            stream = self._streams.get(name.key)
        if stream is None:
            return
        while stream.begun < end:
            stream.end()
            self._begin(stream)
        stream.end()


def _last_of(accounts: Mapping[int, _Account]) -> int:
    """The rank that has joined last; of several that have joined together the largest.

    If anything was called between two ranks' joining, then the later one has begun more rounds of what
    both know: of what all ranks take part in and know.
    """
    known = set.intersection(*(set(account.streams) for account in accounts.values()))

    def made(account: _Account) -> int:
        return sum(
            before
            for key, (name, before, _) in account.streams.items()
            if key in known and not name.ranks and not name.name.startswith(_OWN)
        )

    return max(accounts, key=lambda rank: (made(accounts[rank]), rank))


_serving: list[_Joined] = []  # One at most.


def is_serving() -> bool:
    """Whether a thread of this process is in join()."""
    return bool(_serving)


def join(announcements: Announcements) -> int:
    """Serves the others' calls with zeros until all ranks have joined; the last one to do so."""
    client, joined = announcements.client, _Joined(announcements)
    _serving.append(joined)
    if _serving[0] is not joined:
        _serving.remove(joined)
        raise InvalidArgument("hvd.join(): another thread of this process is in it already")
    watchers = client.names_watcher, client.tensors.watcher
    client.names_watcher = client.tensors.watcher = None  # What is served is known.
    try:
        return joined.run()
    finally:
        client.names_watcher, client.tensors.watcher = watchers
        _serving.remove(joined)
