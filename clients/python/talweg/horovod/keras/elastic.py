# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic: not offered; each call says what to use instead."""

from __future__ import annotations

from talweg.horovod.common.refusals import refuse_elastic

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

run = refuse_elastic("run")
KerasState = refuse_elastic("KerasState")
CommitStateCallback = refuse_elastic("CommitStateCallback")
UpdateBatchStateCallback = refuse_elastic("UpdateBatchStateCallback")
UpdateEpochStateCallback = refuse_elastic("UpdateEpochStateCallback")
