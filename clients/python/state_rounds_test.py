# SPDX-License-Identifier: Apache-2.0
"""The rounds in which a State travels: ranks are threads, in many orders of all they do."""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import talweg
from model_rounds import Rounds
from talweg._collectives.kinds import OWN, WHOLE
from talweg._declaration import Declaration, DType, Op
from talweg._elastic import state_rounds
from talweg.errors import Aborted, InvalidArgument
from turns import Turns

# More are tried with TALWEG_SEEDS, from TALWEG_FIRST_SEED on.
_SEEDS = int(os.environ.get("TALWEG_SEEDS", "20"))
_FIRST_SEED = int(os.environ.get("TALWEG_FIRST_SEED", "0"))


class _Unpicklable:
    def __reduce__(self) -> Any:
        raise LookupError("it stays here")


class _Untakeable:
    """What load_state_dict() refuses, at the rank that has it."""

    def __init__(self, rank: int, refuses: bool) -> None:
        self.rank = rank
        self._refuses = refuses

    def state_dict(self) -> dict[str, int]:
        return {"rank": self.rank}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if self._refuses:
            raise LookupError(f"rank {self.rank} is full")
        self.rank = state["rank"]


class _Calls:
    """A client's run(), push() and synchronize(), for broadcasts and the greatest of all ranks."""

    def __init__(self, client: Any) -> None:
        self._connection, self._size = client.connection, client.size
        client.run, client.push, client.synchronize = self.run, self.push, self.synchronize

    def _start(self, name: str, op: Op, root: int, ranks: Sequence[int], data: bytes) -> Any:
        shares = (WHOLE if op == Op.BROADCAST else OWN, WHOLE)
        tensor = self._connection.declare_collective(
            name, DType.U8, Op.BROADCAST, shares, root, ranks, len(data)
        )
        return tensor, self._connection.push_parts(tensor, data, [len(data)])

    def run(
        self,
        name: str,
        array: np.ndarray,
        op: Op,
        root: int = 0,
        ranks: Sequence[int] = (),
        suffix: str = "",
        goes_on: bool = False,
    ) -> None:
        tensor, round_ = self._start(name + suffix, op, root, ranks, array.tobytes())
        count = 1 if op == Op.BROADCAST else self._size
        every: np.ndarray = np.zeros((count, *array.shape), array.dtype)
        self._connection.wait_parts(tensor, round_, int(every.ctypes.data), every.nbytes)
        array[...] = every.max(axis=0)

    def push(self, name: str, kind: Declaration, given: int, out: int, keep: np.ndarray) -> Any:
        data = keep.tobytes()
        return *self._start(name, kind.op, kind.root_rank, kind.ranks, data), out, len(data)

    def synchronize(self, handle: Any, timeout_s: float | None) -> None:
        self._connection.wait_parts(*handle)


def _told(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


class StateRoundsTest(unittest.TestCase):
    def _transfer(
        self, values: Sequence[Any], takes: Sequence[bool], joiners: Sequence[int] = ()
    ) -> list[list[Any]]:
        """Brings rank 0's State, whose `value` is the first of these, to all that take it.

        Returns for each order of events what each rank's State has then, or what it raises. Joiners
        that leave are in `self.left`.
        """
        self.left: list[int] = []
        found = []
        for seed in range(_FIRST_SEED, _FIRST_SEED + _SEEDS):
            turns = Turns(seed)
            states = [talweg.State(weights=np.zeros(3), value=each) for each in values]
            results: list[Any] = [None] * len(values)

            def rank(client: Any, states: Any = states, results: list[Any] = results) -> None:
                state = states[client.rank]

                def run() -> None:
                    failure = state_rounds.transfer(client, state, 0, takes[client.rank])
                    is_joiner = client.rank in joiners
                    leave = partial(self.left.append, client.rank) if is_joiner else None
                    state_rounds.compare(client, state, failure, root=0, leave=leave)

                results[client.rank] = _told(run) or state.value

            with self.subTest(seed=seed), turns.patched():
                for client in Rounds(turns, len(values), on_one_node=False).clients:
                    _Calls(client)
                    turns.start(f"rank {client.rank}", partial(rank, client))
                turns.run()
                found.append(results)
        return found

    def test_all_that_take_it_get_it(self) -> None:
        for results in self._transfer([7, 8, 9], [False, False, True]):
            self.assertEqual(results, [7, 8, 7])

    def test_all_hear_of_a_source_that_cannot_pickle_its_own(self) -> None:
        """In begin() all take it; where a rank joins, that one alone."""
        text = r"rank 0 cannot pickle its object \(LookupError: it stays here\)"
        for takes in ([True, True], [False, False, True]):
            for source, *others in self._transfer([_Unpicklable()] * len(takes), takes):
                self.assertIsInstance(source, LookupError)
                for rank, error in enumerate(others, 1):
                    self.assertIsInstance(error, InvalidArgument)
                    self.assertRegex(str(error), text if takes[rank] else "the State of rank 0, ")

    def test_all_hear_of_a_rank_that_cannot_take_it(self) -> None:
        """As at the job's beginning. A joiner that could take it hears it, too."""
        text = r"rank 1 cannot use the State that rank 0 gives \(LookupError: rank 1 is full\): "
        values = [_Untakeable(rank, refuses=rank == 1) for rank in range(3)]
        for joiners in ([], [2]):
            for source, failed, other in self._transfer(values, [False, True, True], joiners):
                self.assertIsInstance(failed, LookupError)
                for error in (source, other):
                    self.assertIsInstance(error, InvalidArgument)
                    self.assertRegex(str(error), text)
            self.assertEqual(self.left, [])

    def test_a_joiner_that_cannot_take_it_leaves(self) -> None:
        values = [_Untakeable(rank, refuses=rank == 2) for rank in range(3)]
        for *others, failed in self._transfer(values, [False, False, True], [2]):
            self.assertIsInstance(failed, LookupError)
            for error in others:
                self.assertIsInstance(error, Aborted)
        self.assertEqual(self.left, [2] * _SEEDS)


if __name__ == "__main__":
    unittest.main()
