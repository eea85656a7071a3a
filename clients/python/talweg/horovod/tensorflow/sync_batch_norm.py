# SPDX-License-Identifier: Apache-2.0
"""Horovod's module of SyncBatchNormalization."""

from __future__ import annotations

from talweg._compat.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
