# SPDX-License-Identifier: Apache-2.0
"""Nouns with their numbers, for texts."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Returns "1 rank", "2 ranks". The plural of `noun` ends in "s"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
