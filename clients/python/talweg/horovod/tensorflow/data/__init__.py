# SPDX-License-Identifier: Apache-2.0
"""Horovod's compute service for tf.data. Talweg does not offer it."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.tensorflow.data",
    "let tf.data.Dataset.prefetch() load ahead, or tf.data's own service "
    "(tf.data.experimental.service)",
)
