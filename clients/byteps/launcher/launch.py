#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts the part of a job that DMLC_ROLE names: `python launch.py COMMAND` as in BytePS.

The same as the command bpslaunch, which the wheel talweg-byteps installs.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def _find_checkout() -> None:
    """Has this process and the ranks find in a checkout what no wheel has installed."""
    clients = Path(__file__).resolve().parents[2]
    places = {"talweg": clients / "python", "byteps": clients / "byteps" / "python"}
    lacking = [
        str(place)
        for name, place in places.items()
        if importlib.util.find_spec(name) is None and place.is_dir()
    ]
    if lacking:
        sys.path[:0] = lacking
        told = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*lacking, *([told] if told else [])])


_find_checkout()

from talweg.byteps.launcher import main  # noqa: E402

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
