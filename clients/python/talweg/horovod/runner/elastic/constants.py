# SPDX-License-Identifier: Apache-2.0
"""Texts of Horovod's elastic driver that programs look for."""

from __future__ import annotations

RESET_LIMIT_EXCEEDED_MESSAGE = (
    "Horovod was shutdown because number of resets during elastic job exceeded limit: {}"
)
