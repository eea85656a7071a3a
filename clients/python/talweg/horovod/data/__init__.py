# SPDX-License-Identifier: Apache-2.0
"""Horovod's loaders of data, and its compute service for tf.data, which are not offered."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.data",
    "let torch's DataLoader with num_workers load ahead, or tf.data.Dataset.prefetch()",
)
