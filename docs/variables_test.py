# SPDX-License-Identifier: Apache-2.0
"""docs/byteps.md and docs/horovod.md show the tables of variables that the code has."""

from __future__ import annotations

import os
import unittest
from pathlib import Path

from variables import TABLES, renewed

_DOCS = Path(os.environ["RUNFILES_DIR"]) / "talweg" / "docs"


class VariablesTest(unittest.TestCase):
    def test_the_pages_are_up_to_date(self) -> None:
        self.maxDiff = None
        for name, table in TABLES.items():
            page = (_DOCS / name).read_text()
            remedy = f"run: PYTHONPATH=clients/python python docs/variables.py docs/{name}"
            self.assertEqual(page, renewed(page, table), remedy)
            for variable in table.by_name:
                self.assertIn(f"`{variable}`", page)


if __name__ == "__main__":
    unittest.main()
