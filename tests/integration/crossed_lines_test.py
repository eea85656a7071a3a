# SPDX-License-Identifier: Apache-2.0
"""Tests that two agents of one job on one host never mix up each other's bytes."""

from __future__ import annotations

import threading
import unittest

import job


class CrossedLinesTest(unittest.TestCase):
    def test_two_agents_on_one_host(self) -> None:
        job.run(job.command("crossed_lines.py", ["3"], nodes=2, ranks=1, aggregators=1))

    def test_a_delay_between_write_and_push(self) -> None:
        job.run(job.command("crossed_lines.py", ["2", "0.02"], nodes=2, ranks=1, aggregators=1))

    def test_two_jobs_at_once_and_a_second_generation(self) -> None:
        failures = []

        def one(name: str) -> None:
            try:
                line = job.command(
                    "crossed_lines.py",
                    ["2", "0.01"],
                    nodes=2,
                    ranks=1,
                    aggregators=1,
                    options=[f"--job={name}"],
                )
                job.run(line)
                job.run(line)  # The second job would find remains of the first, if there are any.
            except AssertionError as error:
                failures.append(str(error))

        jobs = [threading.Thread(target=one, args=(name,)) for name in ("a", "a")]
        for thread in jobs:
            thread.start()
        for thread in jobs:
            thread.join()
        self.assertEqual(failures, [])


if __name__ == "__main__":
    unittest.main()
