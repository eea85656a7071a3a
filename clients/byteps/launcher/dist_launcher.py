#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""BytePS's ssh launcher. `python dist_launcher.py --help` shows its options."""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import talweg
except ModuleNotFoundError:  # In a checkout where no wheel is installed.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
    import talweg

from talweg.byteps.dist_launcher import main

__all__ = ["main", "talweg"]

if __name__ == "__main__":
    sys.exit(main())
