# SPDX-License-Identifier: Apache-2.0
"""A rank whose results show whose contributions are in every round.

    roll_call.py PLACE PLACES ELEMENTS

Each tensor has a block for every place. This rank fills its own block with the number of the round,
and the others with zeros. It takes these commands on standard input:

    begin        the next round is the first; otherwise the rank learns the number from others
    run N        makes rounds of every tensor up to round N; each round is a step
    more N       makes N more rounds
    until N      makes rounds until the job has N ranks, of which others have entered
    push, take   make the two halves of one more round
    glance       between these, prints which share of the large result has come
    broadcast R  broadcasts the root's place from rank R
    gather       gathers all ranks' places
    follow E     has the library use the numbers of the view of epoch E; 0 is the newest view
    leave        leaves the job

It prints the blocks of each result, such as "large round 7: 7 7 0".
"""

from __future__ import annotations

import contextlib
import sys

import numpy as np
import talweg

# The operation of each tensor. A block of the large one has ELEMENTS, of the others a few.
_TENSORS = {"small": talweg.Op.SUM, "mean": talweg.Op.AVERAGE, "large": talweg.Op.SUM}
_FEW = 10
_UNKNOWN = -1  # The contribution of a joiner to its first round.


class RollCall:
    def __init__(self, place: int, places: int, elements: int) -> None:
        self._place = place
        self._places = places
        self._elements = dict.fromkeys(_TENSORS, _FEW) | {"large": elements}
        self._rounds = dict.fromkeys(_TENSORS, _UNKNOWN)
        self._handles: dict[str, talweg.Handle] = {}
        self._arrays: dict[str, np.ndarray] = {}

    def begin(self) -> None:
        self._rounds = dict.fromkeys(_TENSORS, 0)

    def push(self, up_to: int | None = None) -> None:
        for name, op in _TENSORS.items():
            held = self._rounds[name]
            if up_to is not None and held >= up_to:
                continue
            array = np.zeros((self._places, self._elements[name]))
            array[self._place] = _UNKNOWN if held == _UNKNOWN else held + 1
            self._arrays[name] = array
            self._handles[name] = talweg.push_pull_async_inplace(array, op=op, name=name)

    def glance(self) -> None:
        """Waits for no time, and takes what has come. The rest of an open round stays untouched."""
        with contextlib.suppress(talweg.Timeout):
            talweg.synchronize(self._handles["large"], 0.2)
        others = np.delete(self._arrays["large"], self._place, axis=0)
        print(f"glanced: {np.count_nonzero(others) / others.size}", flush=True)

    def take(self) -> None:
        for name, handle in self._handles.items():
            blocks = talweg.synchronize(handle)
            if (blocks != blocks[:, :1]).any():
                print(f"TORN {name}", flush=True)
                continue
            first = blocks[:, 0]
            divisor = np.count_nonzero(first) if _TENSORS[name] is talweg.Op.AVERAGE else 1
            self._rounds[name] = round(float(first.max()) * divisor)
            text = " ".join(f"{value:.17g}" for value in first)
            print(f"{name} round {self._rounds[name]}: {text}", flush=True)
        self._handles.clear()

    def run(self, up_to: int) -> None:
        while min(self._rounds.values()) < up_to:
            self.push(up_to)
            self.take()
            talweg.end_step()

    def more(self, count: int) -> None:
        for _ in range(count):
            self.push()
            self.take()
            talweg.end_step()

    def until(self, size: int) -> None:
        while talweg.size() < size:
            self.more(1)

    def broadcast(self, root: int) -> None:
        array = np.full(100_000, self._place)
        talweg.broadcast(array, root, name=f"from {root}")
        same = (array == array[0]).all()
        print(f"broadcast from {root}: {array[0] if same else 'TORN'}", flush=True)

    def gather(self) -> None:
        print(f"gathered {talweg.all_gather_object(self._place, name='places')}", flush=True)

    def follow(self, epoch: int) -> None:
        connection = talweg._client.current().connection
        connection.follow(epoch or connection.newest_epoch())
        # A tensor of its own, whose root is the first of two ranks.
        tensor = connection.declare_collective("followed", 8, 6, (2, 1), 0, (), 1)
        own = np.array([self._place], np.int64)
        round_ = connection.push_pull(tensor, own.ctypes.data, 0)
        connection.wait(tensor, round_, own.ctypes.data, None)
        print(f"follows as {connection.rank} of {connection.size}, root is {own[0]}", flush=True)


def main() -> int:
    place, places, elements = map(int, sys.argv[1:4])
    talweg.init()
    talweg.enter()
    calls = RollCall(place, places, elements)
    print(f"place {place} is rank {talweg.rank()} of {talweg.size()}", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        try:
            if command == "leave":
                talweg.shutdown()
                print("left", flush=True)
                return 0
            getattr(calls, command)(*map(int, arguments))
            print(f"done: {line.strip()}", flush=True)
        except talweg.TalwegError as error:
            print(f"error {type(error).__name__}: {error}", flush=True)
            if not isinstance(error, talweg.Aborted):
                return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
