# SPDX-License-Identifier: Apache-2.0
"""Checks that modules of BytePS without asynchronous steps refuse BYTEPS_ENABLE_ASYNC=1 at init().

asynchronous_refused.py MODULE...
"""

from __future__ import annotations

import importlib
import os
import sys

import talweg
from expected_errors import expect


def main() -> None:
    os.environ["BYTEPS_ENABLE_ASYNC"] = "1"
    for name in sys.argv[1:]:
        module = importlib.import_module(f"talweg.{name}")
        text = "BYTEPS_ENABLE_ASYNC=1 with byteps."
        expect(talweg.Unsupported, text, module.init)
    assert not talweg.is_initialized()


if __name__ == "__main__":
    main()
