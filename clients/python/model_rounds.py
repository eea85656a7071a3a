# SPDX-License-Identifier: Apache-2.0
"""For simulations of calls in channels: the rounds of a job's ranks, which are threads that take turns.

Each rank has a connection, on which rounds come in any order of tensors, and completion threads.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from talweg._collectives.kinds import OWN
from talweg.errors import Busy, JobFailed, TalwegError
from turns import Turns


@dataclass
class _Round:
    given: dict[int, bytes] = field(default_factory=dict)  # By ranks.
    over: set[int] = field(default_factory=set)  # The ranks at which it is.
    failure: TalwegError | None = None


@dataclass
class _Tensor:
    name: str
    gives: int
    root: int
    ranks: Sequence[int]
    part_bytes: int
    rounds: list[_Round] = field(default_factory=list)
    pushed: dict[int, int] = field(default_factory=dict)  # How many rounds, by ranks.
    taken: dict[int, int] = field(default_factory=dict)


class Rounds:
    """The tensors of a job. Copies alone: nothing is summed."""

    def __init__(self, turns: Turns, size: int, on_one_node: bool) -> None:
        self.turns = turns
        self.size = size
        self.on_one_node = on_one_node
        self.gone: dict[int, TalwegError] = {}
        self._tensors: list[_Tensor] = []
        self._by_name: dict[str, int] = {}
        self.clients = [_client(self, rank) for rank in range(size)]
        turns.start("the rounds", self._end_rounds, is_needed=False)

    def leave(self, rank: int) -> None:
        """Its process ends: what others wait for that it has not pushed has failed."""
        self.gone[rank] = JobFailed(f"rank {rank} has left the job")

    # ----- For connections -----

    def declare(self, name: str, gives: int, root: int, ranks: Sequence[int], nbytes: int) -> int:
        number = self._by_name.get(name)
        if number is None:
            number = self._by_name[name] = len(self._tensors)
            self._tensors.append(
                _Tensor(name, gives, root, ranks or tuple(range(self.size)), nbytes)
            )
        tensor = self._tensors[number]
        assert (tensor.gives, tensor.root, tensor.part_bytes) == (gives, root, nbytes), name
        return number + 1

    def tensor(self, number: int) -> _Tensor:
        return self._tensors[number - 1]

    # ----- What ends them -----

    def _ready(self) -> list[tuple[int, _Tensor, _Round]]:
        """Rounds that may end now, with ranks where they do: those of a tensor in their order."""
        found = []
        for tensor in self._tensors:
            late = [rank for rank in tensor.ranks if rank in self.gone]
            for rank in tensor.ranks:
                for round_ in tensor.rounds[: tensor.pushed.get(rank, 0)]:
                    if rank in round_.over:
                        continue
                    missing = set(tensor.ranks) - round_.given.keys()
                    if not missing or missing & set(late) or round_.failure is not None:
                        found.append((rank, tensor, round_))
                    break
        return found

    def _end_rounds(self) -> None:
        while True:
            self.turns.wait(lambda: bool(self._ready()))
            rank, tensor, round_ = self.turns.random.choice(self._ready())
            missing = set(tensor.ranks) - round_.given.keys()
            if missing and round_.failure is None:
                round_.failure = next(self.gone[each] for each in missing if each in self.gone)
            round_.over.add(rank)
            self.clients[rank].completions.tell()


class _Connection:
    """As native.Connection."""

    def __init__(self, rounds: Rounds, rank: int) -> None:
        self.view_suffix = ""
        self._rounds = rounds
        self._rank = rank

    def declare_collective(
        self,
        name: str,
        dtype: Any,
        op: Any,
        shares: tuple[int, int],
        root: int,
        ranks: Sequence[int],
        count: int,
    ) -> int:
        self._check()
        number = self._rounds.declare(name, shares[0], root, ranks, count * dtype.nbytes)
        self._rounds.turns.pause()
        return number

    def parts_held(self, tensor: int) -> int:
        return 1 if self._rounds.on_one_node else len(self._rounds.tensor(tensor).ranks)

    def push_parts(
        self, tensor: int, data: int | bytes, lengths: Sequence[int], priority: int = 0
    ) -> int:
        given = data if isinstance(data, bytes) else ctypes.string_at(data, sum(lengths))
        return self._push(tensor, given, lengths)

    def push_places(
        self, tensor: int, places: Sequence[int], lengths: Sequence[int], home: int, priority: int
    ) -> int:
        given = b"".join(ctypes.string_at(at, length) for at, length in zip(places, lengths))
        return self._push(tensor, given, lengths)

    def _check(self) -> None:
        own = self._rounds.gone.get(self._rank)
        if own is not None:
            raise own

    def _push(self, number: int, given: bytes, lengths: Sequence[int]) -> int:
        self._check()
        tensor, rank = self._rounds.tensor(number), self._rank
        assert all(length <= tensor.part_bytes for length in lengths), (tensor, lengths)
        round_ = tensor.pushed.get(rank, 0)
        if tensor.taken.get(rank, 0) < round_:
            raise Busy(f"{tensor.name}: round {round_} is not taken")
        if len(tensor.rounds) == round_:
            tensor.rounds.append(_Round())
        tensor.rounds[round_].given[rank] = given
        tensor.pushed[rank] = round_ + 1
        self._rounds.turns.pause()
        return round_ + 1

    def is_over(self, tensor: int, round_: int) -> bool:
        return self._rank in self._rounds.tensor(tensor).rounds[round_ - 1].over

    def _take(self, number: int, round_: int, end: float | None) -> list[bytes] | None:
        """The parts; None: `end` has come before."""
        turns = self._rounds.turns
        turns.pause()
        left = None if end is None else max(0.0, end - turns.now)
        if not turns.wait(lambda: self.is_over(number, round_), left):
            return None
        tensor = self._rounds.tensor(number)
        assert tensor.taken.get(self._rank, 0) == round_ - 1, f"{tensor.name}: out of order"
        tensor.taken[self._rank] = round_
        taken = tensor.rounds[round_ - 1]
        if taken.failure is not None:
            raise taken.failure
        givers = tensor.ranks if tensor.gives == OWN else [tensor.root]
        return [taken.given[rank] for rank in givers]

    def wait_parts(
        self, tensor: int, round_: int, out: int, out_bytes: int, end: float | None = None
    ) -> bool:
        parts = self._take(tensor, round_, end)
        if parts is None:
            return False
        data = b"".join(parts)
        assert len(data) <= out_bytes, (len(data), out_bytes)
        ctypes.memmove(out, data, len(data))
        return True

    def wait_places(
        self,
        tensor: int,
        round_: int,
        places: Sequence[int],
        rooms: Sequence[int],
        end: float | None = None,
    ) -> bool:
        parts = self._take(tensor, round_, end)
        if parts is None:
            return False
        for part, place, room in zip(parts, places, rooms):
            assert len(part) <= room, (len(part), room)
            ctypes.memmove(place, part, len(part))
        return True

    def waits_for(self, tensor: int, round_: int) -> str:
        given = self._rounds.tensor(tensor).rounds[round_ - 1].given
        late = [rank for rank in self._rounds.tensor(tensor).ranks if rank not in given]
        return f"rank {late[0]}" if late else ""


class _Completions:
    """As completions.Completions."""

    def __init__(self, rounds: Rounds, rank: int, connection: _Connection) -> None:
        self._turns = rounds.turns
        self._rank = rank
        self._connection = connection
        self._watched: list[tuple[int, int, Callable[[], None]]] = []
        self._ready: deque[Callable[[], None]] = deque()
        self._has_begun = False

    def watch(self, tensor: int, round_: int, call: Callable[[], None]) -> bool:
        self._watched.append((tensor, round_, call))
        self.tell()
        if not self._has_begun:
            self._has_begun = True
            self._turns.start(f"completions of rank {self._rank}", self._make_calls, False)
        return True

    def tell(self) -> None:
        for each in list(self._watched):
            tensor, round_, call = each
            if self._connection.is_over(tensor, round_):
                self._watched.remove(each)
                self._ready.append(call)

    def _make_calls(self) -> None:
        while True:
            self._turns.wait(lambda: bool(self._ready))
            self._ready.popleft()()

    def call(self, call: Callable[[], None]) -> None:
        self._turns.start(f"a call at rank {self._rank}", call, is_needed=False)


def _client(rounds: Rounds, rank: int) -> Any:
    connection = _Connection(rounds, rank)
    return SimpleNamespace(
        rank=rank,
        size=rounds.size,
        connection=connection,
        completions=_Completions(rounds, rank, connection),
        # No time comes.
        deadlines=SimpleNamespace(call_at=lambda end, call: 0, forget=lambda number: None),
        channels={},
        channels_lock=threading.Lock(),
        names_watcher=None,
        count_pushed_bytes=lambda nbytes: None,
    )
