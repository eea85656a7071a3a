# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic of horovod.keras and horovod.tensorflow.keras: docs/horovod.md.

The callbacks serve models of both: tf-keras asks of a callback only that it has the methods.
"""

from __future__ import annotations

import weakref
from typing import Any

import keras

from talweg._call_site import warn
from talweg.horovod.tensorflow.elastic import ObjectState, TensorFlowKerasState, run
from talweg.tensorflow._keras import Hooks

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """The State of a built model, its optimizer, and other values."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(Hooks, keras.callbacks.Callback):
    """Commits the state after every `batches_per_commit` batches. Nodes may come and go there.

    It commits after an epoch's last batch only at the epoch's end. It must come after the callbacks
    that change the state, and warns if it does not. It also warns if Keras does not know how many
    steps an epoch has, because it then commits the last batch before the epoch's end.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit is {batches_per_commit}; it must be at least 1")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._batches = 0
        self._has_warned = False
        self._begun: Any = None  # The parameters of the latest fit().

    def on_train_begin(self, logs: Any = None) -> None:
        self._batches = 0
        self._begun = self.params
        _committing.add(self)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if batch + 1 != (self.params or {}).get("steps"):
            self._commit_in_time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # An epoch that the program cuts short (model.stop_training) ends here, too.
        knows_steps = (self.params or {}).get("steps") is not None
        if self._batches == 0 and not knows_steps and not self._has_warned:
            self._has_warned = True
            warn(
                "CommitStateCallback has committed the epoch's last batch before the epoch was counted, "
                "as Keras did not know how many steps it has: give fit() steps_per_epoch"
            )
        self._commit_in_time()

    def _commit_in_time(self) -> None:
        if self._batches >= self.batches_per_commit:
            self._batches = 0
            self.commit()

    def commit(self) -> None:
        """Commits the state. A subclass may do more."""
        self.state.commit()


# The callbacks whose fit() has begun.
_committing: weakref.WeakSet[CommitStateCallback] = weakref.WeakSet()


def _require_before_commits(callback: Any) -> None:
    """Warns if a CommitStateCallback of the same state comes before it in the list of fit()."""
    for other in list(_committing):
        # Keras gives all callbacks of one fit() the same dict, and calls them in their order.
        if other._begun is callback.params and other.state is callback.state:
            name = type(callback).__name__
            warn(
                f"CommitStateCallback comes before {name}, so it commits what {name} has not counted "
                "yet: put it last in the callbacks of fit()"
            )


class UpdateBatchStateCallback(Hooks, keras.callbacks.Callback):
    """Counts the batches of the epoch in state.batch, and sets it to 0 at the epoch's end.

    After a change state.batch keeps what was done: give fit() as many steps less in that epoch.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_begin(self, logs: Any = None) -> None:
        _require_before_commits(self)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(Hooks, keras.callbacks.Callback):
    """Counts the epochs in state.epoch. After a change fit() has as many epochs less to do."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_begin(self, logs: Any = None) -> None:
        _require_before_commits(self)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch += 1
