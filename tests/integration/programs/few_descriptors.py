# SPDX-License-Identifier: Apache-2.0
"""The rank of numpy_test.py that has no descriptor left when a new tensor needs memory."""

from __future__ import annotations

import contextlib
import os
import resource

import numpy as np
import talweg
from expected_errors import expect


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    talweg.init()
    talweg.push_pull(np.ones(4, np.float32), "before")
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(0))
    array: np.ndarray = np.ones(1 << 24, np.float32)
    expect(talweg.LimitReached, "no descriptor left for a segment", talweg.push_pull, array, "new")
    for fd in taken:
        os.close(fd)
    talweg.shutdown()


if __name__ == "__main__":
    main()
