# SPDX-License-Identifier: Apache-2.0
"""How a call of push_pull is understood, whose order of arguments has changed."""

from __future__ import annotations

import inspect
import unittest
import warnings
from typing import Any

import numpy as np
import talweg
from talweg._arguments import chosen_op, factor_of, passes_of, takes_old_order
from talweg._counted import counted
from talweg.errors import InvalidArgument, WrongType


@takes_old_order("average", "name", "priority", "op")
def _push(
    tensor: str, name: str | None = None, op: Any = None, *, average: bool = True, priority: int = 0
) -> tuple[Any, ...]:
    """What it does."""
    return tensor, name, op, average, priority


class CountedTest(unittest.TestCase):
    def test_one_is_not_several(self) -> None:
        self.assertEqual([counted(n, "rank") for n in range(3)], ["0 ranks", "1 rank", "2 ranks"])
        with self.assertRaisesRegex(InvalidArgument, r"the job, which has 1 rank \(0 to 0\)"):
            talweg.init()
            self.addCleanup(talweg.shutdown)
            talweg.broadcast(np.ones(1), 1)


class NumbersTest(unittest.TestCase):
    def test_numbers_of_other_libraries_are_understood(self) -> None:
        self.assertEqual(passes_of(np.int64(2)), 2)
        self.assertEqual(
            [factor_of(each, "f") for each in (2, np.float32(2), np.ones(()))], [2, 2, 1]
        )

    def test_what_is_no_number_is_refused_by_the_argument_s_name(self) -> None:
        for wrong in (1.5, "2", None):
            text = f"backward_passes_per_step is {wrong!r}; it must be a whole number, at least 1"
            with self.assertRaisesRegex(WrongType, text):
                passes_of(wrong)
        with self.assertRaisesRegex(InvalidArgument, "backward_passes_per_step is 0; it must be"):
            passes_of(0)
        for no_number in ("2", True, None, np.ones(2)):
            with self.assertRaisesRegex(WrongType, "scale is .* it must be a number"):
                factor_of(no_number, "scale")
        with self.assertRaisesRegex(InvalidArgument, "scale is an integer that is too large"):
            factor_of(10**400, "scale")


class OldOrderTest(unittest.TestCase):
    def test_the_order_of_today_is_left_alone(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual(_push("t"), ("t", None, None, True, 0))
            self.assertEqual(_push("t", "n", talweg.Op.MAX), ("t", "n", talweg.Op.MAX, True, 0))
            self.assertEqual(_push("t", None, average=False), ("t", None, None, False, 0))
            self.assertEqual(_push(tensor="t", op=1, priority=2), ("t", None, 1, True, 2))

    def test_the_old_order_is_understood_and_named(self) -> None:
        push: Any = _push
        with self.assertWarnsRegex(DeprecationWarning, r"^_push\(\) .* pass average=\.\.\.$"):
            self.assertEqual(push("t", False, priority=3), ("t", None, None, False, 3))
        text = r"pass average=\.\.\., name=\.\.\., priority=\.\.\., op=\.\.\.$"
        with self.assertWarnsRegex(DeprecationWarning, text) as caught:
            self.assertEqual(push("t", True, "n", 5, 4), ("t", "n", 4, True, 5))
        self.assertEqual(caught.filename, __file__)

    def test_what_never_worked_is_refused_without_a_warning(self) -> None:
        push: Any = _push
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with self.assertRaisesRegex(InvalidArgument, "average is Op.SUM; .* as op=Op.SUM"):
                push("t", talweg.Op.SUM)
            with self.assertRaisesRegex(InvalidArgument, "op is 99"):
                push("t", True, "n", 5, 99)
            with self.assertRaisesRegex(TypeError, "positional arguments"):
                push("t", True, "n", 5, 4, 3)
            with self.assertRaisesRegex(TypeError, "positional arguments"):
                push("t", "n", 4, True)

    def test_its_help_is_the_functions_own(self) -> None:
        self.assertEqual((_push.__name__, _push.__doc__), ("_push", "What it does."))
        self.assertEqual(
            list(inspect.signature(talweg.push_pull).parameters),
            [
                "array",
                "name",
                "op",
                "average",
                "process_set",
                "prescale_factor",
                "postscale_factor",
                "priority",
                "timeout_s",
            ],
        )


class ChosenOpTest(unittest.TestCase):
    def test_an_operation_overrules_average(self) -> None:
        self.assertIs(chosen_op(None, True), talweg.Op.AVERAGE)
        self.assertIs(chosen_op(None, False), talweg.Op.SUM)
        self.assertIs(chosen_op(talweg.Op.MAX, False), talweg.Op.MAX)
        number: Any = int(talweg.Op.MIN)
        self.assertIs(chosen_op(number, True), talweg.Op.MIN)

    def test_what_is_no_average(self) -> None:
        values: dict[Any, str] = {None: "average is None;", 1: "average is 1;", "n": "name='n'"}
        for value, text in values.items():
            with self.assertRaisesRegex(InvalidArgument, text):
                chosen_op(talweg.Op.SUM, value)


if __name__ == "__main__":
    unittest.main()
