# SPDX-License-Identifier: Apache-2.0
"""Horovod's data loaders, and its compute service for tf.data. Talweg does not offer them."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.data",
    "let torch's DataLoader with num_workers load ahead, or tf.data.Dataset.prefetch()",
)
