# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic of tf.keras. It is the same as that of horovod.keras."""

from __future__ import annotations

from talweg.horovod.keras.elastic import (
    CommitStateCallback,
    KerasState,
    ObjectState,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
    run,
)

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
