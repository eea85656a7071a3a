# SPDX-License-Identifier: Apache-2.0
"""Runs torch's own suite of torch.distributed, which its wheel contains, over Talweg.

By the name in $BACKEND the suite leaves out tests that a backend cannot pass. It knows only torch's
own names. So it gets one of those, but its groups are Talweg's. $WORLD_SIZE is the number of ranks,
which are forks of this process. Each argument `-PATTERN` leaves out the tests that it matches.
"""

from __future__ import annotations

import fnmatch
import os
import sys
import tempfile
import unittest
from typing import Any

import talweg.torch  # noqa: F401 - It makes the backend known.
import torch
import torch.distributed as dist

_directory = tempfile.TemporaryDirectory(prefix="talweg.")
os.environ["TEMP_DIR"] = _directory.name

# The suite reads $BACKEND, $WORLD_SIZE and $TEMP_DIR.
from torch.testing._internal.distributed import distributed_test as suite  # noqa: E402

_init_process_group, _new_group = dist.init_process_group, dist.new_group


def _init_with_talweg(*positional: Any, **named: Any) -> Any:
    return _init_process_group(*positional, **{**named, "backend": "talweg"})


def _new_group_with_talweg(
    ranks: Any = None, timeout: Any = None, backend: Any = None, *rest: Any, **named: Any
) -> Any:
    own = "talweg" if backend == suite.BACKEND else backend
    return _new_group(ranks, timeout, own, *rest, **named)


dist.init_process_group = _init_with_talweg
dist.new_group = _new_group_with_talweg


class TorchSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def _needs_more_than_there_is(name: str) -> bool:
    words = name.split("_")
    is_left_out = getattr(getattr(TorchSuite, name), "__unittest_skip__", False)
    return bool(is_left_out) or "cuda" in words or "nccl" in words


def main() -> None:
    part, patterns = sys.argv[1], [argument.removeprefix("-") for argument in sys.argv[2:]]
    names = set(unittest.defaultTestLoader.getTestCaseNames(TorchSuite))
    left_out: set[str] = set()
    for pattern in patterns:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            sys.exit(f"the suite has no {pattern}")
        left_out.update(matched)
    chosen = [
        name
        for name in sorted(names - left_out)
        if part in name and not _needs_more_than_there_is(name)
    ]
    result = unittest.TextTestRunner(verbosity=2).run(
        unittest.TestSuite(TorchSuite(name) for name in chosen)
    )
    counts = len(result.skipped), len(result.failures) + len(result.errors)
    print(f"ran {result.testsRun - counts[0]}, skipped {counts[0]}, failed {counts[1]}", flush=True)
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
