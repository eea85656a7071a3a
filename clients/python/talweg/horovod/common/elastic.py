# SPDX-License-Identifier: Apache-2.0
"""Horovod's elastic State and run, made of talweg.State: docs/horovod.md."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from talweg._elastic import outlive
from talweg._elastic.state import State as TalwegState
from talweg.errors import Aborted
from talweg.horovod.common.exceptions import HostsUpdatedInterrupt

__all__ = ["ObjectState", "State", "run_fn"]


class State(TalwegState):
    """The values that all ranks of an elastic job share. Nodes may come and go in commit()."""

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        """`bcast_object` and `get_rank` are Horovod's, and have no effect."""
        super().__init__(**kwargs)
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._has_begun = False
        self.save()

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets a shared value, or, for any other name, an attribute of this rank only."""
        if name in self.__dict__.get("_values", {}):
            super().__setattr__(name, value)
        else:
            object.__setattr__(self, name, value)

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Registers functions to call after each change of the membership. A rank that enters by
        the change calls them too.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Runs after a change of the membership, before the function of run() is called again."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any = None, update_res: Any = None) -> None:
        """Does nothing. Horovod's driver calls it. Here ranks learn of nodes in commit()."""

    def reset(self) -> None:
        """Does nothing. Subclasses may override it."""

    def sync(self) -> None:
        """Gives every rank the values of the lowest rank of those that were there before."""
        self.begin()
        self._has_begun = True
        self.save()

    def counters(self) -> int | None:
        """Returns None: a program that commits in some steps only may change values between."""
        return None

    def commit(self) -> None:
        """Runs save() and check_host_updates()."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Ends a step. Raises HostsUpdatedInterrupt if nodes have come or gone."""
        change = self.end_step()
        # If only aggregators have changed, the ranks are the same as before.
        if change is not None and (change.lost or change.joined):
            # A rank that has come has the job's values already.
            raise HostsUpdatedInterrupt(skip_sync=True)


class ObjectState(State):
    """A State of objects that can be pickled."""


def run_fn(
    func: Callable[..., Any],
    reset: Callable[[], Any] | None = None,
    aborted: type[Exception] = Aborted,
) -> Callable[..., Any]:
    """Makes hvd.elastic.run: a function that calls `func(state, ...)` again after each change.

    It returns what `func` returns. `aborted` is the framework's error for a round that all ranks
    have given up.
    """

    @functools.wraps(func)
    def run(state: State, *args: Any, **kwargs: Any) -> Any:
        with outlive.outliving():
            return _run(func, reset, (Aborted, aborted), state, args, kwargs)

    return run


def _run(
    func: Callable[..., Any],
    reset: Callable[[], Any] | None,
    aborted: tuple[type[Exception], ...],
    state: State,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    syncs, resets = True, False
    while True:
        try:
            if syncs:
                # It comes before on_reset(), which asks for the number of ranks, and may reduce.
                state.sync()
                # A joiner got the state from before the others' on_reset(), which they run now.
                resets = resets or state.joined
            if resets:
                state.on_reset()
            return func(state, *args, **kwargs)
        except HostsUpdatedInterrupt as interrupt:
            syncs, resets = not interrupt.skip_sync, True
        except Exception as error:
            is_lost = outlive.agent_is_lost()
            if not is_lost and not _is_one_of(error, aborted):
                raise  # The error is this rank's own: no other rank would restore its state.
            if is_lost:
                outlive.rejoin()
            state.restore()
            syncs, resets = True, True
        if reset is not None:
            reset()


def _is_one_of(error: Exception, aborted: tuple[type[Exception], ...]) -> bool:
    """Whether a round was given up. If so, all ranks restore their last commit."""
    if isinstance(error, aborted) or isinstance(error.__cause__, aborted):
        return True
    return outlive.is_given_up(error)
