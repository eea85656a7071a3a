# SPDX-License-Identifier: Apache-2.0
"""Runs cases one after another, in programs of tests."""

from __future__ import annotations

from collections.abc import Callable


def run_cases(*cases: Callable[[], object]) -> None:
    """Runs each case. The last name that a program prints is that of the case that has failed."""
    for case in cases:
        print(f"case {case.__name__}", flush=True)
        case()
