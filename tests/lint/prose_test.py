# SPDX-License-Identifier: Apache-2.0
"""The prose keeps the rules that a program can check."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path

from tests.lint import prose, source_tree

_SAME_SOURCES = "a sanitizer does not change the sources; ./test without one reads them"


@unittest.skipIf("TALWEG_SANITIZER" in os.environ, _SAME_SOURCES)
class TreeTest(unittest.TestCase):
    def setUp(self) -> None:
        self.root = source_tree.root()
        self.pages = {path: (self.root / path).read_text() for path in source_tree.files(".md")}
        self.assertIn("README.md", self.pages)

    def test_pages_keep_to_the_columns(self) -> None:
        for path, text in self.pages.items():
            if prose.is_generated(path, text):
                continue
            wide = [f"{path}:{number}" for number in prose.long_lines(text)]
            remedy = f"wrap them at {prose.COLUMNS_MAX} columns"
            self.assertFalse(wide, f"lines that are too wide: {remedy}")

    def test_links_lead_somewhere(self) -> None:
        for path, text in self.pages.items():
            with self.subTest(path):
                self.assertEqual(prose.broken_links(self.root, path, text), [])

    def test_no_comment_begins_with_of(self) -> None:
        for path in source_tree.files(*prose.COMMENTED):
            found = prose.of_comments(path, (self.root / path).read_text())
            lines = [f"{path}:{number}" for number in found]
            remedy = "say subject, verb, object (CONTRIBUTING.md, Prose)"
            self.assertFalse(lines, f'comments that begin with "Of": {remedy}')

    def test_each_module_has_a_page(self) -> None:
        for parent in ("libs", "services"):
            for module in sorted(each for each in (self.root / parent).iterdir() if each.is_dir()):
                with self.subTest(module.name):
                    page = self.pages.get(f"{parent}/{module.name}/README.md")
                    assert page is not None, f"write {parent}/{module.name}/README.md"
                    self.assertIn(len(page.splitlines()), prose.README_LINES)


class RulesTest(unittest.TestCase):
    def test_long_lines(self) -> None:
        wide = "word " * 21
        self.assertEqual(prose.long_lines(f"short\n{wide}\n| {wide}\n{'x' * 101}\n"), [2])
        self.assertEqual(prose.long_lines(f"- {'x' * 101}\n"), [])

    def test_of_comments(self) -> None:
        # "@" stands for "Of", so that this file passes its own test.
        for path, line in [
            ("a.h", "int count;  // @ each"),
            ("a.proto", "  // @ all."),
            ("a.c", "/* @ it */"),
            ("a.c", " * @ it"),
            ("a.py", "x = 1  # @ one"),
            ("a.py", '    """@ one."""'),
            ("BUILD.bazel", "# @ one"),
        ]:
            text = "ok\n" + line.replace("@", "Of")
            self.assertEqual(prose.of_comments(path, text), [2], line)
        for path, line in [
            ("a.h", "// Often"),
            ("a.h", "// What of it: Of course"),
            ("a.py", 'x = "Of course"'),
            ("a.txt", "# @ one"),
        ]:
            self.assertEqual(prose.of_comments(path, line.replace("@", "Of")), [], line)

    def test_anchors(self) -> None:
        page = "# A page\n## 7. The agent's core\n```\n# no heading\n```\n## Twice\n## Twice\n"
        self.assertEqual(prose.anchors(page), {"a-page", "7-the-agents-core", "twice", "twice-1"})

    def test_broken_links(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            (root / "b.md").write_text("# There\n")
            good = "[a](b.md) [b](b.md#there) [c](https://example.com/x) [d](#here)\n# Here\n"
            self.assertEqual(prose.broken_links(root, "a.md", good), [])
            (root / "a.md").write_text("# Here\n")
            self.assertEqual(prose.broken_links(root, "a.md", "[a](c.md)"), ["c.md"])
            self.assertEqual(prose.broken_links(root, "a.md", "[a](b.md#x)"), ["b.md#x"])


if __name__ == "__main__":
    unittest.main()
