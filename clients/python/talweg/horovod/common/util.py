# SPDX-License-Identifier: Apache-2.0
"""Answers how Horovod was built. Nothing is compiled here."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from talweg.horovod.common import basics

_Item = TypeVar("_Item")
_MODULES = ("horovod.keras", "horovod.mxnet", "horovod.tensorflow", "horovod.torch")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns False: no operation of Horovod's own runs on a GPU."""
    return False


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether this package has a module for the framework."""
    return f"horovod.{ext_base_name}" in _MODULES


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ImportError if there is no module for the framework of `ext_name`.

    `ext_name` is such as "horovod.torch". The other arguments have no effect.
    """
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(
            f"{ext_name} is not offered by Talweg: import {', '.join(_MODULES[:-1])} or {_MODULES[-1]}"
        )


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


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and bin(num_rank).count("1") == 1


def split_list(l: list[_Item], n: int) -> list[list[_Item]]:  # noqa: E741 - Horovod's name.
    """Returns n parts of the list, in order. The first ones have an item more if n leaves some."""
    bounds = [part * (len(l) // n) + min(part, len(l) % n) for part in range(n + 1)]
    return [l[begin:end] for begin, end in zip(bounds, bounds[1:])]


def is_iterable(x: Any) -> bool:
    try:
        iter(x)
    except TypeError:
        return False
    return True


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
