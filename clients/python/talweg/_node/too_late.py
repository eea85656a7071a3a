# SPDX-License-Identifier: Apache-2.0
"""Words in the scheduler's answer to a rank that comes when its job has finished."""

from __future__ import annotations

WORDS = "could enter"
