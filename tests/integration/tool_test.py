# SPDX-License-Identifier: Apache-2.0
"""Tests `talweg status`, `talweg bench` and others with the real daemons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import job


class ToolTest(unittest.TestCase):
    def test_status_says_who_everybody_waits_for(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            for rank in ("1", "2"):
                os.mkfifo(Path(name) / rank)
            line = job.command("held_back.py", [job.TOOL, name], nodes=2, ranks=(2, 1))
            self.assertIn("aggregators", job.run(line))

    def test_a_brief_status_asks_the_scheduler_alone(self) -> None:
        for options, asked in ((["--brief"], 0), ([], 1)):
            # When init() has returned, the scheduler knows the job.
            code = "import subprocess, sys, talweg; talweg.init(); subprocess.run(sys.argv[1:])"
            line = [sys.executable, "-c", code, job.TOOL, "status", "--json", *options]
            output = job.run([job.TOOL, "run", "--force-distributed", "--no-prefix", "--", *line])
            told = json.loads(output[output.index("{") : output.rindex("}") + 1])
            self.assertEqual(len(told["pool"]), 1)
            self.assertEqual(len(told["aggregators"]), asked)
            self.assertEqual([len(each["agents"]) for each in told["jobs"]], [asked])

    def test_status_of_a_scheduler_that_is_not_there(self) -> None:
        done = subprocess.run(
            [job.TOOL, "status", "--scheduler=127.0.0.1:1", "--timeout-ms=2000"],
            capture_output=True,
            text=True,
            timeout=job.TIMEOUT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("127.0.0.1:1", done.stderr)

    def test_what_cannot_be_printed(self) -> None:
        services = Path(job.TOOL).parents[2] / "services"
        daemons = [
            [f"{services}/{name}/talweg-{name}", "--help"]
            for name in ("agent", "aggregator", "scheduler")
        ]
        # In a run, `talweg status` finds the scheduler.
        run = [job.TOOL, "run", "--force-distributed", "--"]
        status = [
            [*run, "sh", "-c", f"exec {job.TOOL} status {how} >/dev/full"] for how in ("", "--json")
        ]
        for line in [*daemons, *status]:
            with self.subTest(line), open("/dev/full", "wb") as full:
                done = subprocess.run(
                    line,
                    stdout=full,
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=job.TIMEOUT_S,
                    check=False,
                )
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("stdout cannot be written: No space left on device", done.stderr)

    def test_doctor_asks_the_scheduler(self) -> None:
        inside = ["sh", "-c", f'exec "{job.TOOL}" doctor --scheduler="$TALWEG_SCHEDULER"']
        output = job.run([job.TOOL, "run", "--force-distributed", "--", *inside])
        self.assertRegex(output, r"ok +scheduler +127\.0\.0\.1:\d+ serves")
        done = subprocess.run(
            [job.TOOL, "doctor", "--scheduler=127.0.0.1:1"],
            capture_output=True,
            text=True,
            timeout=job.TIMEOUT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"bad +scheduler +.*127\.0\.0\.1:1")

    def test_a_timeline_of_running_agents(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            job.run(job.command("traced.py", [job.TOOL, name], nodes=2, ranks=(2, 1)))
            for node in ("0", "1"):
                events = json.loads((Path(name) / f"{node}.json").read_text())["traceEvents"]
                self.assertIn(f"agent-{node}", events[0]["args"]["name"])
                spans = [event for event in events if event["ph"] == "X"]
                told = {span["name"] for span in spans if span["args"]["tensor"] == "gradient"}
                self.assertLessEqual({"push", "sum", "pull"}, told)
                self.assertEqual("local reduce" in told, node == "0")
                rounds = [span["args"]["round"] for span in spans if span["name"] == "push"]
                self.assertGreater(len(set(rounds)), 1)

    def test_a_timeline_of_an_agent_that_is_not_there(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            file = f"{name}/timeline.json"
            for options, status, text in (
                (["--agent=127.0.0.1:1", file], 1, "127.0.0.1:1"),
                (["--agent=127.0.0.1:1", f"{name}/none/timeline.json"], 1, f"{name}/none"),
                (["--agent=127.0.0.1:1"], 2, "the name of one file"),
                ([file], 2, "--agent=ADDRESS"),
            ):
                done = subprocess.run(
                    [job.TOOL, "trace", "--secret-file=none", "--timeout-ms=2000", *options],
                    capture_output=True,
                    text=True,
                    timeout=job.TIMEOUT_S,
                    check=False,
                )
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(text, done.stderr)
                self.assertEqual(os.listdir(name), [])

    def test_bench_measures(self) -> None:
        for shape in (["--nodes=1", "--ranks-per-node=2"], ["--nodes=2", "--aggregators=2"]):
            output = job.run(
                [
                    job.TOOL,
                    "bench",
                    *shape,
                    "--sizes=4KiB,1MiB",
                    "--time-ms=50",
                    "--in-flight=2",
                    "--json",
                ]
            )
            results = json.loads(output)["results"]
            self.assertEqual([each["tensor_bytes"] for each in results], [4096, 1 << 20])
            for each in results:
                self.assertEqual(each["ranks"], 2)
                self.assertGreater(each["gigabytes_per_second"], 0)
                self.assertGreaterEqual(each["p99_s"], each["median_s"])
                self.assertGreater(each["cpu_s_per_gigabyte"], 0)
                # Each node sends its contribution and receives the result, and little more.
                wire_bytes = 4 * each["tensor_bytes"] if "--nodes=2" in shape else 0
                self.assertGreaterEqual(each["wire_bytes_per_round"], wire_bytes)
                self.assertLess(each["wire_bytes_per_round"], wire_bytes * 1.1 + 10_000)


if __name__ == "__main__":
    unittest.main()
