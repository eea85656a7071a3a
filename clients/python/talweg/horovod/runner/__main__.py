# SPDX-License-Identifier: Apache-2.0
"""python -m talweg.horovod.runner: horovodrun."""

from __future__ import annotations

import sys

from talweg.horovod.runner import main

if __name__ == "__main__":
    sys.exit(main())
