# SPDX-License-Identifier: Apache-2.0
"""The program of each rank of horovod.run(): calls the function and writes its result."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any


def _forget_own_directory() -> None:
    """Removes this folder from sys.path: its `torch` and `keras` would hide the real ones."""
    own = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != own]


def _called(function: Any, args: Any, kwargs: Any) -> Any:
    """Returns the function's result. As with Horovod, that of a function that exits well is ""."""
    try:
        return function(*args, **kwargs)
    except SystemExit as end:
        if end.code:
            raise
        return ""


def _place() -> str:
    """Returns this rank's number, or, if hosts come and go and numbers change, its place."""
    number = os.environ.get("RANK")
    return number or f"{os.environ['GROUP_RANK']}.{os.environ['LOCAL_RANK']}"


def main() -> None:
    _forget_own_directory()
    from talweg._collectives.objects import dumped

    directory = Path(os.environ["TALWEG_TASK_DIR"])
    function, args, kwargs = pickle.loads((directory / "function").read_bytes())
    place = _place()  # The function may change the variables.
    result = dumped(_called(function, args, kwargs))
    new = directory / f"new.{place}"  # The ranks of a host share the directory.
    new.write_bytes(result)
    new.rename(directory / f"result.{place}")


if __name__ == "__main__":
    main()
