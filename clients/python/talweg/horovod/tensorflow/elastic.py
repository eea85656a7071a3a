# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic: not offered; each call says what to use instead."""

from __future__ import annotations

from talweg.horovod.common.refusals import refuse_elastic

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

run = refuse_elastic("run")
TensorFlowKerasState = refuse_elastic("TensorFlowKerasState")
TensorFlowState = refuse_elastic("TensorFlowState")
