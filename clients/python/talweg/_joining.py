# SPDX-License-Identifier: Apache-2.0
"""Ranks that have joined: they have no more data, and give zeros until all ranks have joined.

The others notice nothing. A rank that has joined keeps one round ahead in whatever the others may
call next, by one of these *streams*:

    a tensor that is reduced   a round of zeros
    a tensor that is broadcast a round with a signature of its own, so that it ends with Mismatch
    a channel of collectives   a control round that says that this rank has joined: reductions go on
                               with zeros, other calls end with Mismatch (_words.with_stand_ins)

A rank that has joined knows the names that are in use. It hears of new names by announcements: a
rank that uses a name for the first time announces it in an all_gather of the name's group, one for
each name. Only ranks that have joined wait for that. Ranks may come to their names in any order: of
the ranks that use a name, the one with the fewest announcements so far announces it in time. By the
time that a rank leaves it has announced as many names as the others, so that nobody waits for a
rank that has left.

    active   join() is called: this rank says so                         serving
    serving  the round is over in which every rank says that it joined   closing
    closing  every stream has come to the round that the furthest rank   active
             has begun in it

A rank says that it has joined before it begins its streams. So each rank knows that the last rank
has joined before the rounds of that last rank end the open rounds of all streams. It then begins no
others.

Some state follows from the order of calls: which names were freed, whose turn it is. All ranks then
take this state from the last rank to join, which has made all calls.

Where nodes may come and go ranks tell by rounds of maxima, each in a place of its own, as these go
on without ranks that are gone. Where the membership changes all ranks tell what they know: after
that each knows as much as the others, joiners too, and has announced as often, which is never.
"""

from __future__ import annotations

import pickle
import queue
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from talweg._client import Client, Handle
from talweg._collectives import objects
from talweg._collectives.call_channel import CallChannel, channel_named
from talweg._collectives.channels import Channel, Job
from talweg._collectives.compared import Comparisons
from talweg._collectives.joined import steps_of_joined
from talweg._collectives.process_sets import Group, ProcessSet
from talweg._declaration import Declaration, DType, Op
from talweg._elastic.membership import membership_of
from talweg._joining_names import OWN, Announcements, Key, Name, channel_of_names, gather, name_of
from talweg._library.native_arguments import NOBODY_WAITS
from talweg.errors import Aborted, Busy, InvalidArgument, Mismatch

_BARRIER = "talweg.barrier"
# What a rank signs a broadcast with that it cannot take part in: texts know it (signature_text.cc).
_HAS_JOINED = 0x6A6F696E6564
# And a reduction, whose ranks may all use its name otherwise than before: its zeros fit all of it.
_FITS_ALL = 0x7A65726F73


# ----- Streams -----


class _Stream(Protocol):
    """Something that the others may call, in which this rank keeps one round ahead."""

    name: Name
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

    def __init__(self, client: Client, name: Name, zeros: Callable[[int], int]) -> None:
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

    def __init__(self, channel: Channel, name: Name, start: Callable[[], Job]) -> None:
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


def _stream_of_calls(channel: CallChannel, name: Name) -> _ChannelStream:
    def start() -> Job:
        job = Job(channel, [partial(steps_of_joined, channel)])
        channel.submit(job)
        return job

    return _ChannelStream(channel, name, start)


def _stream_of_names(announcements: Announcements, group: Group) -> _ChannelStream:
    channel = channel_of_names(announcements.client, group)
    name = Name(channel.name, group.listed)
    return _ChannelStream(channel, name, lambda: announcements.exchange(group, [None]))


# ----- Joining -----


# What a rank tells of a stream when all have joined.
_ROW = np.dtype([("digest", "<u8"), ("before", "<i8"), ("begun", "<i8")])


@dataclass(eq=False)
class _Joined:
    """A rank that has joined."""

    announcements: Announcements
    _streams: dict[Key, _Stream] = field(default_factory=dict)
    # Streams whose rounds are over, names that were heard, and None when all have joined.
    _events: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    _all_have: bool = False
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
            all_joined = self._say_so()
            for group in self.announcements.groups().values():
                self._add(_stream_of_names(self.announcements, group))
            self._serve([Name(_BARRIER, (), Declaration(DType.I32, 1, Op.SUM, 0))])
            # Whoever ends a step meanwhile finds out by the zeros, and is told so.
            self._serve(
                Name(name, (), Declaration(DType.U64, count, Op.MAX, 0))
                for name, count in membership_of(client).rounds_of_steps
            )
            self._serve(
                Name(each.name, each.declaration.ranks, each.declaration)
                for each in client.tensors.all()
            )
            with client.channels_lock:
                channels = list(client.channels.values())
            self._serve(name_of(each) for each in channels if isinstance(each, CallChannel))
            self._serve(list(self.announcements.heard.values()))
            while (event := self._events.get()) is not None:
                if isinstance(event, list):
                    self._serve(event)
                elif not self._all_have and event.end():
                    self._begin(event)
        finally:
            self.announcements.listener = None
        client.synchronize(all_joined)
        return self._close()

    def _say_so(self) -> Handle:
        one: np.ndarray = np.ones(1, np.int32)
        declaration = Declaration(DType.I32, 1, Op.SUM, 0)
        handle = self.client.push(
            f"{OWN}.all", declaration, one.ctypes.data, 0, NOBODY_WAITS, keep=one
        )

        def over() -> None:
            self._all_have = True
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

    def _serve(self, names: Iterable[Name]) -> None:
        """Begins with those that are not served yet."""
        for name in names:
            if name.key not in self._streams and not name.is_own:
                stream = self._stream_of(name)
                if stream is not None:
                    self._add(stream)

    def _stream_of(self, name: Name) -> _Stream | None:
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
        client, names = self.client, {name.digest: name for name in self._names()}
        own: np.ndarray = np.array(
            [(each.name.digest, each.before, each.begun) for each in self._streams.values()], _ROW
        )
        books = client.tensors.free_names, client.nameless_state
        told = self._told_by_all("accounts", (own.tobytes(), books))
        rows = {rank: np.frombuffer(data, _ROW) for rank, (data, _) in told.items()}
        every = np.concatenate(list(rows.values()))
        digests, places, counts = np.unique(
            every["digest"], return_inverse=True, return_counts=True
        )
        ends: np.ndarray = np.zeros(digests.size, np.int64)
        np.maximum.at(ends, places, every["begun"])
        of_some = digests[counts < len(told)].tolist()
        if of_some:  # At every rank alike.
            others = self._told_by_all("names", [names[each] for each in of_some if each in names])
            names.update((each.digest, each) for known in others.values() for each in known)
        # A round waits for all ranks: none waits in one before it has begun all.
        streams = [
            self._brought_to_end(names[digest], end)
            for digest, end in zip(digests.tolist(), ends.tolist())
            if digest in names  # Else those that had it are gone.
        ]
        for stream in filter(None, streams):
            stream.end()
        last = _last_of(rows, self._names())
        free_names, nameless = told[last][1]
        with client.channels_lock:
            for channel in client.channels.values():
                if isinstance(channel, CallChannel):
                    channel.last_sparse.clear()  # Only the others know what theirs have moved.
        client.tensors.free(*free_names)
        client.nameless_state = nameless
        return last

    def _names(self) -> Iterable[Name]:
        return (each.name for each in self._streams.values())

    def _told_by_all(self, what: str, value: Any) -> dict[int, Any]:
        """By rank; without those that are gone."""
        if self.client.nodes_change:
            every = gather(self.client, f"{OWN}.told.{what}", pickle.dumps(value))
            return {rank: pickle.loads(data) for rank, data in every.items()}
        return dict(enumerate(objects.all_gather_object(self.client, value, f"{OWN}.{what}.all")))

    def _brought_to_end(self, name: Name, end: int) -> _Stream | None:
        """What has begun its last round now; None: there is no such stream here."""
        if name.ranks and self.client.rank not in name.ranks:
            return None
        stream = self._streams.get(name.key)
        if stream is None:
            self._serve([name])
            stream = self._streams.get(name.key)
        while stream is not None and stream.begun < end:
            stream.end()
            self._begin(stream)
        return stream


def _last_of(rows: Mapping[int, np.ndarray], names: Iterable[Name]) -> int:
    """The rank that has joined last; of several that have joined together the largest. `names` are one
    rank's.

    If anything was called between two ranks' joining, then the later one has begun more rounds of what
    both know: of what all ranks take part in and know.
    """
    counted = np.array([each.digest for each in names if not each.ranks and not each.is_own], "<u8")
    for own in rows.values():
        counted = np.intersect1d(counted, own["digest"])

    def made(rank: int) -> int:
        own = rows[rank]
        return int(own["before"][np.isin(own["digest"], counted)].sum())

    return max(rows, key=lambda rank: (made(rank), rank))


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
