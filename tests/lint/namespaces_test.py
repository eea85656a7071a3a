# SPDX-License-Identifier: Apache-2.0
"""A C++ source opens the namespace that its folder says."""

from __future__ import annotations

import os
import unittest

from tests.lint import namespaces, source_tree

_SAME_SOURCES = "a sanitizer does not change the sources; ./test without one reads them"


@unittest.skipIf("TALWEG_SANITIZER" in os.environ, _SAME_SOURCES)
class TreeTest(unittest.TestCase):
    def test_each_source_opens_the_namespace_of_its_folder(self) -> None:
        root = source_tree.root()
        paths = [p for p in source_tree.files(*namespaces.SUFFIXES) if namespaces.may_open(p)]
        self.assertIn("libs/view/view.h", paths)
        found = []
        for path in paths:
            found += namespaces.problems(path, (root / path).read_text())
        self.assertFalse(found, "\n" + "\n".join(found))


class RulesTest(unittest.TestCase):
    def check(self, path: str, *names: str) -> int:
        text = "".join(f"namespace {name} {{\n}}\n" for name in names)
        return len(namespaces.problems(path, text))

    def test_a_module_has_the_namespace_of_its_folder(self) -> None:
        self.assertEqual(self.check("libs/view/view.h", "talweg::view"), 0)
        self.assertEqual(self.check("services/agent/main.cc", "talweg::agent"), 0)
        self.assertEqual(self.check("clients/c/abi.h", "talweg::c"), 0)
        self.assertEqual(self.check("libs/view/view.h", "talweg"), 1)
        self.assertEqual(self.check("libs/view/view.h", "talweg::views", "talweg::wire"), 2)

    def test_base_is_talweg_itself(self) -> None:
        self.assertEqual(self.check("libs/base/ids.h", "talweg", "talweg::internal"), 0)
        self.assertEqual(self.check("libs/base/ids.h", "talweg::base"), 1)

    def test_a_folder_of_a_module_may_have_its_own(self) -> None:
        path = "libs/gpu/cuda/stub/stub.h"
        self.assertEqual(self.check(path, "talweg::gpu", "talweg::gpu::cuda::stub"), 0)
        self.assertEqual(self.check(path, "talweg::gpu::cuda::internal"), 0)
        self.assertEqual(self.check(path, "talweg::cuda", "talweg::gpu::stub", "talweg"), 3)
        self.assertEqual(self.check("libs/gpu/device.h", "talweg::gpu::cuda"), 1)

    def test_a_module_may_name_the_parts_that_are_not_for_others(self) -> None:
        self.assertEqual(self.check("libs/view/fixture.h", "talweg::view::testing"), 0)
        self.assertEqual(self.check("libs/view/view.h", "talweg::view::parts"), 1)
        self.assertEqual(self.check("libs/view/view.h", "talweg::testing"), 1)

    def test_other_namespaces_are_free(self) -> None:
        self.assertEqual(self.check("libs/rpc/server.h", "grpc", "std"), 0)
        self.assertEqual(self.check("tests/fault/caller.cc", "talweg"), 0)

    def test_a_problem_names_the_line_and_the_remedy(self) -> None:
        text = "// A comment.\nnamespace talweg {\n"
        self.assertEqual(
            namespaces.problems("libs/gpu/fake/nic.cc", text),
            [
                "libs/gpu/fake/nic.cc:2: opens talweg; "
                "its folder's is talweg::gpu or talweg::gpu::fake"
            ],
        )


if __name__ == "__main__":
    unittest.main()
