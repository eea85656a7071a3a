# SPDX-License-Identifier: Apache-2.0
"""talweg.State, with which a rank goes on where another one is: docs/elastic.md."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from talweg import _client
from talweg._collectives import objects
from talweg._digest import Digest, Hashing
from talweg._elastic import generators, outlive
from talweg._elastic.membership import membership_of
from talweg._elastic.own_time import OwnTime
from talweg._elastic.replay import Replay
from talweg._elastic.sampler import ElasticSampler
from talweg._elastic.state_replay import Recorder, StateReplay, is_of_jax
from talweg._elastic.views import Change, change_between
from talweg.errors import AgentLost, InvalidArgument, Mismatch

_RESERVED = (
    *("apply", "begin", "end_step", "run", "save", "restore", "check_every", "digest_steps"),
    *("pack", "unpack", "digest", "hashing", "replay", "joined", "took_whole", "change"),
    *("balanced_samplers", "own_times"),
)


class State:
    """Values that all ranks of an elastic job have alike, which a joiner starts with.

        def train(state):
            while state.step < steps:
                ...
                state.step += 1
                state.end_step()

        state = talweg.State(weights=weights, step=0)
        state.run(train)

    Values are attributes of this object. A value may be anything that can be pickled. A NumPy array
    is written in place, and a random generator goes on as the same object, so other references to
    them stay right. A value with state_dict() and load_state_dict() travels by these. State loads
    pickles from other ranks, so use it only with ranks that you trust.

    `apply` is a function that changes arrays by the results of a step:

        def descend(state, gradient):
            state.weights -= state.rate * gradient

        state = talweg.State(apply=descend, weights=weights, rate=0.1, step=0)
        ...
        state.apply(talweg.push_pull(gradient, name="gradient"))    # Calls descend(state, ...).

    A joiner calls it with the results of the steps that the others have made since they gave it
    their state. So it catches up while they go on. Without `apply` they wait for it.
    """

    def __init__(self, *, apply: Callable[..., Any] | None = None, **values: Any) -> None:
        if apply is not None and not callable(apply):
            raise InvalidArgument(
                f"State(apply={apply!r}): it is a function that applies a step's results; choose "
                "another name for a value"
            )
        for name in values:
            if name in _RESERVED or name.startswith("_"):
                raise InvalidArgument(f"State({name}=...): choose another name for this value")
        self._values: dict[str, Any] = dict(values)
        self._saved: dict[str, Any] = {}
        self._saved_in_step = False  # The step of the last save() has not ended.
        self._hook = apply
        self._recorders: list[Recorder] = []
        self._digest_steps = 0
        self._joined = False
        self._change: Change | None = None

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"this State has no value '{name}'; it has {sorted(values)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        elif name in self._values:
            self._values[name] = value
        else:
            raise AttributeError(
                f"this State has no value '{name}': give it to State(...), at every rank alike"
            )

    @property
    def joined(self) -> bool:
        """Whether this rank has entered a running job, and got the state of those in it."""
        return self._joined

    @property
    def took_whole(self) -> str | None:
        """Why this rank, which has joined, took the whole state while the others waited.

        None if it caught up beside their steps, or has not joined.
        """
        return membership_of(_client.current()).took_whole

    @property
    def change(self) -> Change | None:
        """How the membership changed at the end of the last step; None if it did not."""
        return self._change

    def apply(self, *results: Any, **named: Any) -> Any:
        """Calls the function that State(apply=...) was given with this State and the results, which
        are the same at all ranks, and returns what it returns.

        The function must change the State's arrays only by these results and the State's values. It
        must not call talweg.
        """
        if self._hook is None:
            raise InvalidArgument(
                "State.apply(): this State has no function to call: State(apply=function, ...)"
            )
        for recorder in self._recorders:
            recorder.record((results, named), self._values)
        return self._hook(self, *results, **named)

    def begin(self) -> bool:
        """Starts with the lowest rank's values. Returns `joined`.

        Call it once before the first step, and again after talweg.rejoin(). run() calls it.
        """
        membership = membership_of(_client.current())
        if membership.begins_anew:
            self._go_back()
        self._saved_in_step = False
        for sampler in self._samplers():
            sampler.begin_again()
        try:
            self._joined = membership.begin(self)
        finally:  # A callback of on_view_change() may raise, when the numbers have changed.
            self._change = membership.change
            self._deal()
        outlive.note_begun()
        return self._joined

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        agent_wait_s: float | None = None,
        **named: Any,
    ) -> Any:
        """Calls begin(), then returns function(self, *arguments, **named).

        If this rank's agent is lost meanwhile, run() waits for the agent that takes its place,
        begins again with the state of the ranks that went on, and calls `function` again, which
        goes on from the values that the State then has. It waits at most `agent_wait_s` (else
        TALWEG_AGENT_WAIT_S, else 300 s). After that it raises AgentLost. For the other ranks this
        is a loss like any other.

        A call that needs a lost rank ends with Aborted at all others. They begin again, too, from
        the last save(). Without a save() they begin with the lowest rank's current values.
        """
        with outlive.outliving():
            while True:
                try:
                    self.begin()
                    return function(self, *arguments, **named)
                except Exception as error:
                    # A framework may have wrapped Talweg's error.
                    is_lost = outlive.agent_is_lost()
                    if not is_lost and not outlive.is_given_up(error):
                        raise
                if is_lost:
                    outlive.rejoin(agent_wait_s)
                elif self._saved:
                    self.restore()

    @property
    def digest_steps(self) -> int:
        """How many steps pass between two comparisons of digests; 0: see check_every()."""
        return self._digest_steps

    def check_every(self, steps: int) -> None:
        """Makes end_step() compare a digest of the ranks' values every `steps` steps.

        end_step() raises Mismatch at all ranks if a digest differs. Call this at every rank alike.
        Without this call, or with 0, end_step() compares in the first step, and in the first step
        after a joiner's entry. A comparison takes as long as reading the values once.
        """
        if steps < 0:
            raise InvalidArgument(f"check_every({steps}): it is a number of steps, or 0 for none")
        self._digest_steps = steps

    def save(self) -> None:
        """Keeps a copy of the values.

        All ranks go on from it if the whole job is lost, and only the ranks' processes are left. So
        does a job of one node when its agent is lost.
        """
        self._saved = {name: copy.deepcopy(self._captured(v)) for name, v in self._values.items()}
        self._saved_in_step = True

    def restore(self) -> None:
        """Goes back to the values of the last save()."""
        self._saved_in_step = False
        for name, value in self._saved.items():
            self._load(name, copy.deepcopy(value))

    def _go_back(self) -> None:
        if not self._saved:
            raise AgentLost(
                "this rank's agent was lost, and its job has begun anew: no other rank has the "
                "state of a step that all have ended. Call the State's save() at the ends of some "
                "steps, so that all ranks go on from the last one, or start the program from a "
                "checkpoint"
            )
        self.restore()

    def end_step(self) -> Change | None:
        """Ends a step. Nodes come and go here. Returns `change`. After Ctrl-C the next call ends the
        same step.
        """
        membership = membership_of(_client.current())
        before = membership.view
        try:
            membership.end_step(self._commit)
        finally:  # A callback of on_view_change() may raise here, too.
            self._change = change_between(before, membership.view)
            self._deal()
        return self._change

    def _commit(self, ended: Sequence[bool] | None, times: Sequence[Sequence[int]] = ()) -> None:
        told = iter(times)
        for sampler in self._samplers():
            sampler.end_step(ended, next(told, ()) if sampler.balances else ())
        if self._saved_in_step:  # The copy does not know whose batches are dealt again.
            self._saved_in_step = False
            for name, value in self._values.items():
                if isinstance(value, ElasticSampler):
                    self._saved[name] = value.state_dict()

    def _samplers(self) -> Iterator[ElasticSampler]:
        return (value for value in self._values.values() if isinstance(value, ElasticSampler))

    def _deal(self) -> None:
        client = _client.current()
        for sampler in self._samplers():
            if not sampler.balances:
                sampler.deal(client.rank, client.size)
                continue
            sampler.deal(client.rank, client.size, membership_of(client).view.places)
            if not client.is_alone:
                sampler.stopwatch = client.companion(OwnTime)

    # ----- StateHolder of talweg._elastic.state_rounds -----

    @property
    def balanced_samplers(self) -> int:
        return sum(sampler.balances for sampler in self._samplers())

    def own_times(self) -> Sequence[tuple[int, int]]:
        balanced = [sampler for sampler in self._samplers() if sampler.balances]
        # If two have batches in one step, nobody knows how long each one's work takes.
        reads = sum(sampler.step_samples > 0 for sampler in balanced) == 1
        return [sampler.take_times(reads) for sampler in balanced]

    def pack(self) -> Sequence[bytes | memoryview]:
        return objects.pieces_of(
            {name: self._captured(value) for name, value in self._values.items()}
        )

    def _captured(self, value: Any) -> Any:
        return value.state_dict() if hasattr(value, "load_state_dict") else value

    def unpack(self, payload: memoryview) -> None:
        self._take(objects.from_pieces(payload))

    def replay(self) -> Replay | None:
        """Returns how joiners catch up with this State. None: they take the whole state."""
        if self._hook is None:
            return None
        call = partial(self._hook, self)
        return StateReplay(self._values, self._captured, self._take, call, self._recorders)

    def _take(self, given: dict[str, Any], apart: Sequence[str] = ()) -> None:
        """Takes over all values, except those that are taken `apart`."""
        if set(given) != set(self._values):
            here, there = (
                sorted(set(self._values) - set(given)),
                sorted(set(given) - set(self._values)),
            )
            raise Mismatch(
                f"this rank's State has {here or 'nothing'} that is not in the job's, and lacks "
                f"{there or 'nothing'}: start the same program at every rank"
            )
        for name, value in given.items():
            own = self._values[name]
            if isinstance(own, ElasticSampler):
                own.require_alike(value)
            if name not in apart:
                self._load(name, value)

    def _load(self, name: str, value: Any) -> None:
        own = self._values[name]
        if hasattr(own, "load_state_dict"):
            own.load_state_dict(value)
        elif isinstance(own, np.ndarray) and isinstance(value, np.ndarray):
            if (own.shape, own.dtype) != (value.shape, value.dtype):
                raise Mismatch(
                    f"State: '{name}' is {own.dtype}{list(own.shape)} at this rank, and "
                    f"{value.dtype}{list(value.shape)} in the job: start the same program at "
                    "every rank"
                )
            np.copyto(own, value)
        elif not generators.take_over(name, own, value):
            self._values[name] = value

    def counters(self) -> int | None:
        """Returns a digest of whole numbers and texts, and of where samplers are."""
        total = Digest()
        for name, value in sorted(self._values.items()):
            if isinstance(value, ElasticSampler):
                place = (value.epoch, value.left, value.step_samples, value.shares)
                total.update(repr((name, place)).encode())
            elif isinstance(value, (int, str)):
                total.update(repr((name, value)).encode())
        return total.value

    def hashing(self) -> Hashing | None:
        """Returns None, because the program may change the values at any time."""
        return None

    def digest(self) -> int:
        total = Digest()
        self._add_all_to_digest(total)
        return total.value

    def _add_all_to_digest(self, total: Digest) -> None:
        """Adds the values that must be equal at all ranks."""
        for name in sorted(self._values):
            total.update(name.encode())
            self._add_to_digest(total, self._captured(self._values[name]))

    def _add_to_digest(self, total: Digest, value: Any) -> None:
        """Adds the bytes of arrays, and nothing of other values, which may differ from rank to
        rank.
        """
        if isinstance(value, np.ndarray):
            total.update(np.ascontiguousarray(value).data)
        elif is_of_jax(value):
            self._add_to_digest(total, np.asarray(value))
        elif isinstance(value, dict):
            for key in value:
                self._add_to_digest(total, value[key])
        elif isinstance(value, (list, tuple)):
            for each in value:
                self._add_to_digest(total, each)
