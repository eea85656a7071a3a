# SPDX-License-Identifier: Apache-2.0
"""The program of each rank of horovod.run(): calls the function and writes its result."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path


def _forget_own_directory() -> None:
    """Removes this folder from sys.path: its `torch` and `keras` would hide the real ones."""
    own = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != own]


def main() -> None:
    _forget_own_directory()
    directory = Path(os.environ["TALWEG_TASK_DIR"])
    function, args, kwargs = pickle.loads((directory / "function").read_bytes())
    result = pickle.dumps(function(*args, **kwargs))
    path = directory / f"result.{os.environ['RANK']}"
    new = path.with_name(f"{path.name}.new")  # The ranks of a host share the directory.
    new.write_bytes(result)
    new.rename(path)


if __name__ == "__main__":
    main()
