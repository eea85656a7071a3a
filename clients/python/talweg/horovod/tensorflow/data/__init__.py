# SPDX-License-Identifier: Apache-2.0
"""Horovod's compute service for tf.data, which is not offered."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.tensorflow.data",
    "let tf.data.Dataset.prefetch() load ahead, or tf.data's own service "
    "(tf.data.experimental.service)",
)
