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

    def test_no_sentence_begins_with_of(self) -> None:
        for path in source_tree.files(*prose.READ):
            found = prose.of_sentences(path, (self.root / path).read_text())
            lines = [f"{path}:{number}" for number in found]
            remedy = "say subject, verb, object (CONTRIBUTING.md, Prose)"
            self.assertFalse(lines, f'sentences that begin with "Of": {remedy}')

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

    def test_sentences_that_begin_with_of(self) -> None:
        # "@" stands for "Of", and "%" for "of", so that this file passes its own test.
        for path, line in [
            ("a.h", "int count;  // @ each"),
            ("a.h", "int count;  // It is. @ each"),
            ("a.h", "// It is (perhaps). @ each"),
            ("a.h", "  // --- @ a tensor."),
            ("a.proto", "  // @ all."),
            ("a.c", "/* @ it */"),
            ("a.c", "/* It is. @ it */"),
            ("a.c", " * @ it"),
            ("a.cc", 'TEST_CASE("@ two, one counts") {'),
            ("a.cc", 'SECTION("Counts: @ two, one counts") {'),
            ("a.py", "x = 1  # @ one"),
            ("a.py", '"""@ one."""'),
            ("a.py", '"""It is. @ one."""'),
            ("a.py", "def test_%_two() -> None: ..."),
            ("a.sh", "true  # It is? @ one"),
            ("BUILD.bazel", "# It is. @ one"),
            ("a.md", "@ one."),
            ("a.md", "It is. @ one."),
            ("a.md", "It is. (@ one.)"),
            ("a.md", "**It is.** @ one."),
            ("a.md", "- @ one."),
            ("a.md", "1. @ one."),
            ("a.md", "| it is | @ one |"),
            ("a.md", "# @ one"),
        ]:
            text = "ok = 1\n" + line.replace("@", "Of").replace("%", "of")
            self.assertEqual(prose.of_sentences(path, text), [2], line)
        for path, line in [
            ("a.h", "// Often"),
            ("a.h", "// What of it: Of course"),
            ("a.h", "Draw(x. @ y);"),
            ("a.py", 'x = "It is. @ course"'),
            ("a.py", "def test_%fers() -> None: ..."),
            ("a.txt", "# @ one"),
            ("a.md", "It is one of two. Often."),
            ("a.md", "```\n@ one\n```"),
        ]:
            text = line.replace("@", "Of").replace("%", "of")
            self.assertEqual(prose.of_sentences(path, text), [], line)

    def test_sentences_within_a_docstring(self) -> None:
        text = 'def f():\n    """It is.\n\n    It is two. @ these one.\n    @ it.\n    """\n'
        self.assertEqual(prose.of_sentences("a.py", text.replace("@", "Of")), [4, 5])

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
