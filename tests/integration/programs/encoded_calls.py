# SPDX-License-Identifier: Apache-2.0
"""Runs another program with every tensor of its collectives encoded.

The line is `encoded_calls.py ENCODING PROGRAM ARGUMENTS`. Python's collectives name no encoding. So
this names it for each of them.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from talweg._library.native import Connection

_ENCODINGS = {"plain": 0, "runs": 1, "twice": 2, "gaps": 5}


def main() -> None:
    encoding, declare_plain = _ENCODINGS[sys.argv[1]], Connection.declare_collective

    def declare(*arguments: Any, **keywords: Any) -> int:
        return declare_plain(*arguments, **{**keywords, "encoding": encoding})

    program = Path(__file__).with_name(sys.argv[2])
    sys.argv = [str(program), *sys.argv[3:]]
    with mock.patch.object(Connection, "declare_collective", declare):
        runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
