# SPDX-License-Identifier: Apache-2.0
"""Horovod's elastic State and run, made of talweg.State: docs/horovod.md."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from talweg._compat.names import names
from talweg._elastic import outlive
from talweg._elastic.state import State as TalwegState
from talweg._exchange.names import ModelMismatch
from talweg.errors import Aborted, InvalidArgument
from talweg.horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from talweg.horovod.common.host_messages import HostMessages

__all__ = ["ObjectState", "Shared", "State", "run_fn"]


class Shared(TalwegState):
    """The values of a State of Horovod, as Talweg gives them to joiners.

    It is an object of its own, so a value may have the name of a method of Talweg's State.
    """

    def __init__(self, owner: State, values: Mapping[str, Any]) -> None:
        TalwegState.__init__(self)
        self._owner = owner
        self._values = dict(values)

    @property
    def values(self) -> dict[str, Any]:
        return self._values

    def restore(self) -> None:
        """Has the program's State go back to its last save(), which a subclass may override."""
        self._owner.restore()

    def take_saved(self) -> None:
        super().restore()

    def counters(self) -> int | None:
        """Returns None: a program that commits in some steps only may change values between."""
        return None


class State:
    """The values that all ranks of an elastic job share. Nodes may come and go in commit().

    Raises InvalidArgument for a value with the name of one of these methods.
    """

    _kind: type[Shared] = Shared

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        """`bcast_object` and `get_rank` are Horovod's, and have no effect."""
        for name in kwargs:
            if hasattr(State, name) or name in _OWN:
                raise InvalidArgument(
                    f"{type(self).__name__}({name}=...): a State has a method or an attribute of that "
                    "name: choose another name for this value"
                )
        self._shared = self._kind(self, kwargs)
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._host_messages = HostMessages()
        self._last_updated_timestamp = 0.0  # That of the last message that was looked at.
        self.save()

    def __getattr__(self, name: str) -> Any:
        values = self._values_by_name()
        if name in values:
            return values[name]
        raise AttributeError(f"this State has no value '{name}'; it has {sorted(values)}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets a shared value, or, for any other name, an attribute of this rank only."""
        values = self._values_by_name()
        if name in values:
            values[name] = value
        else:
            object.__setattr__(self, name, value)

    def _values_by_name(self) -> dict[str, Any]:
        shared = self.__dict__.get("_shared")
        return {} if shared is None else shared.values

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Registers functions to call after each change of the membership. A rank that enters by
        the change calls them too.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Runs after a change of the membership, before the function of run() is called again."""
        self._host_messages = HostMessages()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any = None, update_res: Any = None) -> None:
        """Notes a message, as Horovod's driver does. Nodes come and go in commit() all the same."""
        self._host_messages.put((timestamp, update_res))

    def reset(self) -> None:
        """Does nothing. Subclasses may override it."""

    def sync(self) -> None:
        """Gives every rank the values of the lowest rank of those that were there before."""
        self._shared.begin()
        self.save()

    def save(self) -> None:
        """Keeps a copy of the values."""
        self._shared.save()

    def restore(self) -> None:
        """Goes back to the values of the last save()."""
        self._shared.take_saved()

    def commit(self) -> None:
        """Runs save() and check_host_updates()."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Ends a step. Raises HostsUpdatedInterrupt if nodes have come or gone."""
        while not self._host_messages.empty():
            timestamp, _ = self._host_messages.get()
            self._last_updated_timestamp = max(self._last_updated_timestamp, timestamp or 0.0)
        change = self._shared.end_step()
        # If only aggregators have changed, the ranks are the same as before.
        if change is not None and (change.lost or change.joined):
            # A rank that has come has the job's values already.
            raise HostsUpdatedInterrupt(skip_sync=True)


# Attributes of every State.
_OWN = ("_shared", "_reset_callbacks", "_host_messages", "_last_updated_timestamp")


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
    begin = names.place
    while True:
        try:
            if syncs:
                # It comes before on_reset(), which asks for the number of ranks, and may reduce.
                state.sync()
                # A joiner got the state from before the others' on_reset(), which they run now.
                resets = resets or state._shared.joined
            if resets:
                state.on_reset()
            return func(state, *args, **kwargs)
        except HostsUpdatedInterrupt as interrupt:
            syncs, resets = not interrupt.skip_sync, True
        except Exception as error:
            is_lost = outlive.agent_is_lost()
            if not is_lost and not _is_one_of(error, aborted) and not _is_internal(error):
                raise  # The error is this rank's own: no other rank would restore its state.
            if is_lost:
                outlive.rejoin()
            state.restore()
            syncs, resets = True, True
        # A rank that comes now calls `func` for the first time.
        names.go_back(begin)
        if reset is not None:
            reset()


def _is_one_of(error: Exception, aborted: tuple[type[Exception], ...]) -> bool:
    """Whether a round was given up. If so, all ranks restore their last commit."""
    if isinstance(error, aborted) or isinstance(error.__cause__, aborted):
        return True
    return outlive.is_given_up(error)


def _is_internal(error: Exception) -> bool:
    """Whether an operation failed at all its ranks, in a job that goes on, and may succeed now."""
    if not isinstance(error, HorovodInternalError) or outlive.job_is_over():
        return False
    return not isinstance(error.__cause__, ModelMismatch)
