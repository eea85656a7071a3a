# SPDX-License-Identifier: Apache-2.0
"""Answers how Horovod was built. Nothing is compiled here."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from talweg.horovod.common import basics


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns False: no operation of Horovod's own runs on a GPU."""
    return False


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether this package has a module for the framework."""
    return ext_base_name in ("keras", "mxnet", "tensorflow", "torch")


def mpi_built(verbose: bool = False) -> bool:
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    return bool(basics.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    return basics.ccl_built()


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver`, such as "2.6.0", is `target` or later. ValueError if it is none."""
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    if found is None:
        raise ValueError(f"{version!r} is not a version: pass one as '2.6.0'")
    numbers = [int(each) for each in found.group().split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:  # 2.6.0 equals 2.6.
        numbers.pop()
    return tuple(numbers)


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables in its context. None leaves a variable as it is."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
