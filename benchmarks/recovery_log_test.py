# SPDX-License-Identifier: Apache-2.0
"""Tests what a kill has cost, by logs that this test writes."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from harness import recovery_log
from harness.recovery_log import Log, Record
from recovery_record import BEGINS, COMES, RECORD, STEP, WHOLE

_MS = 1_000_000


def _steps(
    *durations_ms: int, epochs: tuple[int, ...], first: int = 1, size: int = 3, begin_ms: int = 0
) -> list[Record]:
    records, now = [], begin_ms * _MS
    for place, (duration, epoch) in enumerate(zip(durations_ms, epochs, strict=True)):
        end = now + duration * _MS
        records.append(Record(STEP, first + place, now, end, epoch, size))
        now = end
    return records


class CostTest(unittest.TestCase):
    def test_loss_and_return_are_told_apart(self) -> None:
        before = _steps(2, 2, 2, epochs=(1, 1, 1))
        after = _steps(2, 32, 2, *[2] * 9, 62, 2, epochs=(1, 2, 2, *[2] * 9, 3, 3))
        cost = recovery_log.cost(before, after)
        self.assertAlmostEqual(cost.usual_s, 0.002)
        self.assertAlmostEqual(cost.loss_s, 0.030)
        self.assertAlmostEqual(cost.rejoin_s or 0, 0.060)

    def test_no_view_tells_of_a_scheduler(self) -> None:
        cost = recovery_log.cost(_steps(2, epochs=(1,)), _steps(2, 3, 2, epochs=(1, 1, 1)))
        self.assertAlmostEqual(cost.loss_s, 0.001)
        self.assertIsNone(cost.rejoin_s)

    def test_a_return_right_after_the_loss(self) -> None:
        after = _steps(12, 52, epochs=(2, 3))
        cost = recovery_log.cost(_steps(2, epochs=(1,)), after)
        self.assertAlmostEqual(cost.loss_s, 0.010)
        self.assertAlmostEqual(cost.rejoin_s or 0, 0.050)

    def test_a_return_that_catches_up_before_it_enters(self) -> None:
        """The lost node is in the view many steps before it takes part in them."""
        after = [
            *_steps(2, 12, *[2] * 9, epochs=(1, *[2] * 10), size=2),
            *_steps(22, *[2] * 30, epochs=(3,) * 31, size=2),
            *_steps(72, *[2] * 9, 92, epochs=(4,) * 11, size=3),
        ]
        cost = recovery_log.cost(_steps(2, 2, epochs=(1, 1)), after)
        self.assertAlmostEqual(cost.loss_s, 0.010)
        self.assertAlmostEqual(cost.rejoin_s or 0, 0.070)


class JoinTest(unittest.TestCase):
    def test_a_joiner_that_catches_up(self) -> None:
        survivor = [
            *_steps(9, 2, 2, 2, epochs=(1,) * 4, size=3),  # The steps before another rank was lost.
            *_steps(4, 4, 4, epochs=(2,) * 3, size=2, begin_ms=15),
            *_steps(5, 30, 6, 50, epochs=(3,) * 4, size=2, begin_ms=27),
            *_steps(8, 90, *[4] * 9, 200, epochs=(4,) * 12, size=3, begin_ms=118),
        ]
        came = Record(COMES, 0, 0, 28 * _MS, 3, 2)
        began = Record(BEGINS, 9, 0, 119 * _MS, 4, 3)
        join = recovery_log.join([came, began], survivor, 3)
        self.assertAlmostEqual(join.enter_s, 0.091)
        self.assertAlmostEqual(join.usual_s, 0.004)
        self.assertAlmostEqual(join.longest_s, 0.090)
        self.assertAlmostEqual(join.pause_steps, 21.5)
        self.assertEqual(join.steps, 4)
        self.assertFalse(recovery_log.has_taken_whole([came, began]))
        whole = Record(WHOLE, 9, 0, 118 * _MS, 4, 3)
        self.assertTrue(recovery_log.has_taken_whole([came, whole, began]))


class LogTest(unittest.TestCase):
    def _log(self, directory: str, records: list[Record], torn: bytes = b"") -> Log:
        path = Path(directory) / "2.77"
        with path.open("ab") as file:
            for record in records:
                values = (record.what, record.step, record.begin_ns, record.end_ns)
                file.write(RECORD.pack(*values, record.epoch, record.size))
            file.write(torn)
        return Log(path)

    def test_it_is_read_while_it_is_written(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            log = self._log(directory, _steps(1, 1, epochs=(1, 1)), b"torn")
            log.read()
            self.assertEqual((log.node, log.pid, len(log.records)), (2, 77, 2))
            self.assertEqual([each.step for each in log.steps_since(1 * _MS)], [2])

    def test_the_last_steps_before_a_time(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            log = self._log(directory, _steps(1, 1, 1, 1, epochs=(1, 1, 1, 1)))
            log.read()
            self.assertEqual([each.step for each in log.last_steps(2, 3 * _MS)], [2, 3])

    def test_a_step_that_is_missing(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            log = self._log(directory, [Record(BEGINS, 4, 0, 0, 1, 3)])
            log.read()
            log.records += _steps(1, 1, epochs=(1, 1), first=5)
            self.assertEqual(recovery_log.wrong_order(log), "")
            log.records += _steps(1, epochs=(1,), first=6)
            text = "a rank of node 2 ended step 6 after step 6"
            self.assertEqual(recovery_log.wrong_order(log), text)

    def test_how_long_a_joiner_takes_to_enter(self) -> None:
        came, began = Record(COMES, 0, 0, 3 * _MS, 1, 3), Record(BEGINS, 9, 0, 5 * _MS, 2, 3)
        ended = Record(STEP, 10, 5 * _MS, 7 * _MS, 2, 3)
        self.assertIsNone(recovery_log.enter_s([came, began]))
        self.assertAlmostEqual(recovery_log.enter_s([came, began, ended]) or 0, 0.004)


if __name__ == "__main__":
    unittest.main()
