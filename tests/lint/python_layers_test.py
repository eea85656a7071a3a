# SPDX-License-Identifier: Apache-2.0
"""The rooms of the Python package import downwards only."""

from __future__ import annotations

import os
import unittest

from tests.lint import python_layers, source_tree
from tests.lint.python_layers import PACKAGE, ROOMS, imports

_SAME_SOURCES = "a sanitizer does not change the sources; ./test without one reads them"


@unittest.skipIf("TALWEG_SANITIZER" in os.environ, _SAME_SOURCES)
class TreeTest(unittest.TestCase):
    def test_each_room_has_a_place(self) -> None:
        package = source_tree.root() / PACKAGE
        rooms = {
            python_layers.room_of(path.name)
            for path in package.iterdir()
            if path.suffix == ".py" or (path / "__init__.py").exists()
        }
        self.assertEqual(rooms, set(ROOMS), "give it its place in python_layers.ROOMS")

    def test_rooms_import_downwards(self) -> None:
        found = python_layers.imports_of_package(source_tree.root())
        self.assertGreater(len(found), 1000)
        upwards = [str(each) for each in found if not each.is_allowed]
        self.assertEqual(upwards, [], "move what both rooms need below them")


class RulesTest(unittest.TestCase):
    def _ways(self, path: str, text: str) -> list[tuple[str, str, bool]]:
        return [(each.room, each.imported, each.is_allowed) for each in imports(path, text)]

    def test_forms_of_imports(self) -> None:
        text = (
            "import numpy, talweg\n"
            "import talweg._node.hosts as hosts\n"
            "from talweg import _client, rank, errors\n"
            "from talweg._library.native import Connection\n"
            "from talweg.torch import Elastic\n"
            "from . import own\n"
        )
        self.assertEqual(
            self._ways("torch/_state.py", text),
            [
                ("torch", "talweg", True),
                ("torch", "_node", True),
                ("torch", "_client", True),
                ("torch", "talweg", True),
                ("torch", "errors", True),
                ("torch", "_library", True),
            ],
        )

    def test_an_import_upwards(self) -> None:
        text = (
            "if TYPE_CHECKING:\n"
            "    from talweg._elastic.membership import Membership\n"
            "def later():\n"
            "    from talweg import init\n"
        )
        self.assertEqual(
            self._ways("_client/client.py", text),
            [("_client", "_elastic", False), ("_client", "talweg", False)],
        )
        later = "from talweg.torch._group_creation import create\n"
        self.assertEqual(
            self._ways("_torch_backend.py", later), [("_torch_backend", "torch", True)]
        )
        self.assertEqual(self._ways("__init__.py", later), [("talweg", "torch", False)])


if __name__ == "__main__":
    unittest.main()
