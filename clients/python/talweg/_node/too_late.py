# SPDX-License-Identifier: Apache-2.0
"""By which words the scheduler's answer to one that comes when its job has finished is known."""

from __future__ import annotations

WORDS = "could enter"
