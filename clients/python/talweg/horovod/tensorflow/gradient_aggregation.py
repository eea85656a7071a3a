# SPDX-License-Identifier: Apache-2.0
"""Horovod's own helper that adds up gradients of several passes. Talweg has none to call."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.tensorflow.gradient_aggregation",
    "pass backward_passes_per_step to hvd.DistributedOptimizer, which adds up gradients itself",
)
