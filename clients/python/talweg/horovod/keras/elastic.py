# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic of horovod.keras and horovod.tensorflow.keras. See docs/horovod.md.

The callbacks serve the models of both: tf-keras asks no more of one than that it has the methods.
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
    """A model that is built, its optimizer, and other values."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(Hooks, keras.callbacks.Callback):
    """Commits the state after every `batches_per_commit` batches: nodes come and go there.

    For an epoch's last batch it does so at the epoch's end. It comes after the callbacks that
    change the state, and warns where it does not, and where it commits an epoch's last batch before
    the epoch's end, as Keras does not know how many steps the epoch has.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit is {batches_per_commit}; it must be at least 1")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._batches = 0
        self._has_warned = False
        self._begun: Any = None  # The parameters of the fit() that has begun last.

    def on_train_begin(self, logs: Any = None) -> None:
        self._batches = 0
        self._begun = self.params
        _committing.add(self)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if batch + 1 != (self.params or {}).get("steps"):
            self._commit_in_time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # An epoch that the program has cut short (model.stop_training) ends so, too.
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


# Those whose fit() has begun.
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
    """Counts the batches of the epoch in state.batch, which begins with 0 in each epoch.

    What was done before a change counts on: give fit() so many steps less in that epoch.
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
    """Counts the epochs in state.epoch: fit() has so many less to do after a change."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_begin(self, logs: Any = None) -> None:
        _require_before_commits(self)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch += 1
