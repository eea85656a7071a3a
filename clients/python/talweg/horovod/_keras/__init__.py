# SPDX-License-Identifier: Apache-2.0
"""The part that Horovod's two packages for Keras share, private to Horovod. Talweg has another."""

from talweg.horovod._absent import missing

raise missing(
    "horovod._keras",
    "use DistributedOptimizer, callbacks and elastic of horovod.keras or horovod.tensorflow.keras",
)
