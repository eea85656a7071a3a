# SPDX-License-Identifier: Apache-2.0
"""Deliberate bugs are planted where the list says, and one that no longer applies ends the build."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

from tests.sim import mutate

SOURCE = """// A comment.
bool Job::MayLeave(int credit) {
  if (credit >
      0) return true;
  Leave(credit);
  return false;
}
"""


def one(quotation, kind="usual", extra=""):
    return mutate.read_list(
        f"# About.\n\n== a_bug\nkind: {kind}\nbreaks: a rule\n{extra}libs/job.cc:\n    {quotation}\n"
    )


def planted(quotation, kind="usual"):
    return mutate.apply(one(quotation, kind), {"libs/job.cc": SOURCE, "libs/other.cc": "int x;\n"})


class MutateTest(unittest.TestCase):
    def test_a_switch_chooses_between_the_source_and_the_bug(self):
        copies = planted("if ([[[credit > 0 ==> true]]]) return")
        self.assertIn(
            "if ((TALWEG_MUTANT(a_bug) ? (true) : (credit >\n      0))) return true;",
            copies["libs/job.cc"],
        )
        first, rest = copies["libs/job.cc"].split("\n", 1)
        self.assertEqual(first, '#include "tests/sim/mutation.h"  // A comment.')
        self.assertEqual(rest.count("\n") + 1, SOURCE.count("\n"))
        self.assertEqual(list(copies), ["libs/job.cc"], "a source without a bug needs no copy")

    def test_a_bug_may_be_a_statement_more(self):
        copy = planted("[[[ ==> ++lost_;]]] Leave(credit);")["libs/job.cc"]
        self.assertIn(
            "if (TALWEG_MUTANT(a_bug)) { ++lost_; } Leave(credit);", " ".join(copy.split())
        )

    def test_what_no_longer_applies_is_named(self):
        for quotation, count in (("[[[credit > 1 ==> true]]]", 0), ("[[[credit ==> 0]]]", 3)):
            with self.assertRaisesRegex(
                mutate.ListError, f"a_bug: no longer applies: libs/job.cc has {count} places like"
            ):
                planted(quotation)

    def test_all_that_is_wrong_is_told_at_once(self):
        mutations = one("[[[credit > 1 ==> true]]]")
        mutations += mutate.read_list(
            "== other\nkind: usual\nbreaks: x\nlibs/gone.cc:\n    [[[a ==> b]]]\n"
        )
        with self.assertRaises(mutate.ListError) as caught:
            mutate.apply(mutations, {"libs/job.cc": SOURCE})
        self.assertIn("a_bug: no longer applies", str(caught.exception))
        self.assertIn("other: there is no such .cc file: libs/gone.cc", str(caught.exception))

    def test_bugs_may_not_overlap(self):
        mutations = one("[[[credit > 0 ==> true]]]")
        mutations += mutate.read_list(
            "== other\nkind: usual\nbreaks: x\nlibs/job.cc:\n    > [[[0 ==> 1]]]\n"
        )
        with self.assertRaisesRegex(mutate.ListError, "libs/job.cc: two mutations overlap"):
            mutate.apply(mutations, {"libs/job.cc": SOURCE})

    def test_a_list_that_is_none_is_refused(self):
        for text, says in (
            ("kind: usual\n", "before the first"),
            ("== A bug\n", "is not a name"),
            ("== a\nkind: rare\nbreaks: x\nlibs/a.cc:\n    [[[a ==> b]]]\n", "'rare' is none of"),
            ("== a\nkind: usual\nlibs/a.cc:\n    [[[a ==> b]]]\n", "says not what it breaks"),
            ("== a\nkind: usual\nbreaks: x\n", "or where it is"),
            ("== a\n    [[[a ==> b]]]\n", "before the path of its source"),
            ("== a\nwhat\n", "neither a key"),
        ):
            with self.assertRaisesRegex(mutate.ListError, says):
                mutate.read_list(text)

    def test_rows_of_the_table(self):
        self.assertEqual(
            mutate.table(one("[[[a ==> b]]]", "silent")),
            '{"a_bug", "a rule", Kind::kSilent, 4000, 0},\n',
        )

    def test_a_rare_bug_may_survive_more_lives(self):
        text = one("[[[a ==> b]]]", "usual", extra="seeds: 9000\n")
        self.assertIn("Kind::kUsual, 9000, 0}", mutate.table(text))

    def test_the_search_may_begin_where_a_life_is_known_to_break(self):
        text = one("[[[a ==> b]]]", "usual", extra="first: 700\n")
        self.assertIn("Kind::kUsual, 4000, 700}", mutate.table(text))

    def plant(self, root, quotation, other_copy="other_copy.cc"):
        (root / "job.cc").write_text(SOURCE)
        (root / "other.cc").write_text("int x;\n")
        (root / "list.txt").write_text(
            f"== a_bug\nkind: usual\nbreaks: x\njob.cc:\n    {quotation}\n"
        )
        program = [sys.executable, mutate.__file__, "--list=list.txt", "--table=table.inc"]
        program += ["--source=job.cc=job_copy.cc", f"--source=other.cc={other_copy}"]
        return subprocess.run(program, cwd=root, capture_output=True, text=True, check=False)

    def test_the_copy_of_a_source_without_a_bug_is_empty(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            result = self.plant(root, "[[[credit > 0 ==> true]]]")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn("TALWEG_MUTANT", (root / "job_copy.cc").read_text())
            self.assertEqual((root / "other_copy.cc").read_text(), "")
            self.assertIn("a_bug", (root / "table.inc").read_text())

    def test_sources_with_one_copy_are_joined_in_it(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            self.plant(root, "[[[credit > 0 ==> true]]]", other_copy="job_copy.cc")
            lines = (root / "job_copy.cc").read_text().splitlines()
            self.assertEqual(lines[0], '#line 1 "job.cc"')
            self.assertTrue(any("TALWEG_MUTANT(a_bug)" in line for line in lines))
            self.assertEqual(lines[-2:], ['#line 1 "other.cc"', "int x;"])

    def test_the_build_ends_with_the_name(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            result = self.plant(root, "[[[gone() ==> true]]]")
            self.assertEqual(result.returncode, 1)
            self.assertIn("a_bug: no longer applies: job.cc", result.stderr)
            self.assertFalse((root / "job_copy.cc").exists())


if __name__ == "__main__":
    unittest.main()
