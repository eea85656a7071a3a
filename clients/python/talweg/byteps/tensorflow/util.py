# SPDX-License-Identifier: Apache-2.0
"""BytePS's module of this name, from which its test programs import."""

from __future__ import annotations

import tensorflow as tf


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())
