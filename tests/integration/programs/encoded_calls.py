# SPDX-License-Identifier: Apache-2.0
"""Runs another program with every tensor of its collectives encoded.

The line is `encoded_calls.py ENCODING PROGRAM ARGUMENTS`. Python's calls name no encoding. So this
sets the field of talweg_collective for each of them.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from talweg._library import native
from talweg._library.native_structures import Collective

_ENCODINGS = {"plain": 0, "runs": 1, "twice": 2}


def main() -> None:
    encoding = _ENCODINGS[sys.argv[1]]

    class Encoded(Collective):
        """A talweg_collective of that encoding."""

        def __init__(self, *fields: Any) -> None:
            super().__init__(*fields)
            self.encoding = encoding

    program = Path(__file__).with_name(sys.argv[2])
    sys.argv = [str(program), *sys.argv[3:]]
    with mock.patch.object(native, "Collective", Encoded):
        runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
