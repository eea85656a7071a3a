# SPDX-License-Identifier: Apache-2.0
"""Has the kernel give so many bytes of memory at once, in huge pages. Prints the seconds."""

from __future__ import annotations

import mmap
import sys
import time

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14.


def main() -> None:
    memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    sys.stdin.readline()  # All processes begin at once.
    begin = time.monotonic()
    memory.madvise(_POPULATE_WRITE)
    print(time.monotonic() - begin, flush=True)


if __name__ == "__main__":
    main()
