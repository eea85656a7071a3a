# SPDX-License-Identifier: Apache-2.0
"""The table of variables within a page of the documentation.

PYTHONPATH=clients/python python docs/variables.py docs/byteps.md docs/horovod.md  # Writes it anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

from talweg._compat.environment import Table
from talweg.byteps._environment import TABLE as BYTEPS
from talweg.horovod._environment import TABLE as HOROVOD

_BEGIN = "<!-- Made by docs/variables.py. Do not edit below. -->\n\n"
_END = "<!-- End of what is made. -->\n"
TABLES: dict[str, Table] = {"byteps.md": BYTEPS, "horovod.md": HOROVOD}


def renewed(page: str, table: Table) -> str:
    """The page with the table as it is now."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {_BEGIN.strip()!r} and {_END.strip()!r}")
    return before + begin + table.page() + "\n" + end + after


def main() -> None:
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(renewed(path.read_text(), TABLES[path.name]))


if __name__ == "__main__":
    main()
