# SPDX-License-Identifier: Apache-2.0
"""What ./test makes of its options, and of what Bazel tells it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import bazel_progress
import run_tests


class OptionsTest(unittest.TestCase):
    def flags(self, *arguments: str) -> list[str]:
        return run_tests.bazel_options(run_tests.parse_arguments(list(arguments)))

    def test_options_reach_bazel_and_the_tests(self) -> None:
        self.assertIn("--config=tsan", self.flags("--tsan"))
        self.assertIn("--nocache_test_results", self.flags("--again"))
        self.assertIn("--test_env=TALWEG_TEST_FULL=1", self.flags("--full"))
        self.assertIn("--test_env=TALWEG_SOAK_S=5", self.flags("--soak=5"))
        self.assertIn("--test_env=TALWEG_SIM_FIRST_SEED=9", self.flags("--first-seed=9"))
        self.assertIn("--test_env=TALWEG_FUZZ_S=7", self.flags("--fuzz=7"))

    def test_gpu_selects_its_tests_and_never_caches_them(self) -> None:
        flags = self.flags("--gpu")
        self.assertIn("--test_tag_filters=gpu", flags)
        self.assertIn("--test_env=TALWEG_TEST_GPU=1", flags)
        self.assertIn("--nocache_test_results", flags)
        self.assertEqual("--config=cuda" in flags, run_tests.find_nvcc() is not None)

    def test_a_search_is_never_cached(self) -> None:
        for option in ("--soak=5", "--fuzz=7"):
            self.assertIn("--nocache_test_results", self.flags(option))

    def test_without_options_cached_results_stay_valid(self) -> None:
        self.assertFalse([flag for flag in self.flags() if "test_env" in flag or "config" in flag])

    def test_more_tests_run_than_there_are_cpus(self) -> None:
        wanted = f"--jobs={len(os.sched_getaffinity(0)) + 2}"
        self.assertIn(wanted, self.flags())
        self.assertNotIn(wanted, self.flags("--tsan"))

    def test_a_long_soak_is_not_ended_by_a_timeout(self) -> None:
        timeouts = [flag for flag in self.flags("--soak=9000") if "test_timeout" in flag]
        self.assertGreater(int(timeouts[0].split("=")[1]), 9000)

    def test_soak_takes_no_filter_for_its_seconds(self) -> None:
        options = run_tests.parse_arguments(["--soak", "sim"])
        self.assertEqual((options.soak, options.filter), (600, ["sim"]))


class OutcomesTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)

    def outcomes(self, *events: dict[str, Any]) -> dict[str, run_tests.Outcome]:
        path = self.scratch / "events"
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return run_tests.read_outcomes(path)

    def configured(self, label: str) -> dict[str, Any]:
        return {"id": {"targetConfigured": {"label": label}}, "configured": {"testSize": "SMALL"}}

    def result(
        self, label: str, log_text: str, status: str = "PASSED", part: int = 1
    ) -> dict[str, Any]:
        log = self.scratch / f"{label.strip('/')}.{part}.log"
        log.write_text(log_text)
        return {
            "id": {"testResult": {"label": label, "shard": part}},
            "testResult": {
                "status": status,
                "testAttemptDurationMillis": "1500",
                "testActionOutput": [{"name": "test.log", "uri": log.as_uri()}],
            },
        }

    def summary(self, label: str, status: str) -> dict[str, Any]:
        return {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}

    def test_passed_failed_and_skipped(self) -> None:
        outcomes = self.outcomes(
            *[self.configured(label) for label in ("//:good", "//:bad", "//:skips", "//:broken")],
            self.result("//:good", "all is well\nnot SKIPPED: here\n"),
            self.summary("//:good", "PASSED"),
            self.result("//:bad", "SKIPPED: before it failed\n", "FAILED"),
            self.summary("//:bad", "FAILED"),
            self.result("//:skips", "some words\nSKIPPED: no GPU here\n"),
            self.summary("//:skips", "PASSED"),
        )
        self.assertTrue(outcomes["//:good"].passed)
        self.assertEqual(outcomes["//:good"].skip_reasons, [])
        self.assertAlmostEqual(outcomes["//:good"].duration_s, 1.5)
        self.assertFalse(outcomes["//:bad"].passed)
        self.assertEqual(outcomes["//:bad"].skip_reasons, [])
        self.assertEqual(outcomes["//:skips"].skip_reasons, ["no GPU here"])

    def test_the_logs_of_the_failed_parts_of_a_test_are_shown(self) -> None:
        outcome = self.outcomes(
            self.configured("//:parts"),
            self.result("//:parts", "all is well", part=1),
            self.result("//:parts", "the second is wrong", "FAILED", part=2),
            self.result("//:parts", "the third hangs", "TIMEOUT", part=3),
            self.summary("//:parts", "FAILED"),
        )["//:parts"]
        self.assertAlmostEqual(outcome.duration_s, 4.5)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            run_tests.print_failure(outcome)
        self.assertNotIn("all is well", shown.getvalue())
        self.assertIn("the second is wrong", shown.getvalue())
        self.assertIn("the third hangs", shown.getvalue())

    def test_what_did_not_build_is_no_pass(self) -> None:
        outcomes = self.outcomes(self.configured("//:broken"))
        self.assertEqual(outcomes["//:broken"].status, "FAILED TO BUILD")
        self.assertFalse(outcomes["//:broken"].passed)

    def test_targets_that_are_no_tests_do_not_count(self) -> None:
        event = {"id": {"targetConfigured": {"label": "//:library"}}, "configured": {}}
        self.assertEqual(self.outcomes(event), {})


def _output_of(program: str, **variables: str) -> str:
    """What a Python program prints, which must end well."""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    return result.stdout


class InterruptTest(unittest.TestCase):
    def test_a_signal_becomes_an_exception_once(self) -> None:
        program = (
            "import os, signal, bazel_progress\n"
            "try:\n"
            "    with bazel_progress.interruptible():\n"
            "        os.kill(os.getpid(), signal.SIGTERM)\n"
            "        signal.pause()\n"
            "except bazel_progress.Interrupted as interruption:\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n"
            "    print('cleaned up after', interruption)\n"
        )
        self.assertEqual(_output_of(program), "cleaned up after SIGTERM\n")

    def test_what_starts_something_is_not_interrupted(self) -> None:
        program = (
            "import os, signal, bazel_progress\n"
            "try:\n"
            "    with bazel_progress.interruptible():\n"
            "        with bazel_progress.held_back():\n"
            "            os.kill(os.getpid(), signal.SIGINT)\n"
            "            print('started')\n"
            "        print('never')\n"
            "except bazel_progress.Interrupted as interruption:\n"
            "    print('ended by', interruption)\n"
        )
        self.assertEqual(_output_of(program), "started\nended by SIGINT\n")

    def test_the_exception_names_its_signal(self) -> None:
        self.assertEqual(str(bazel_progress.Interrupted(signal.SIGHUP)), "SIGHUP")

    def test_bazels_server_ends_also_while_it_starts(self) -> None:
        scratch = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(scratch.cleanup)
        fifo, bazel = Path(scratch.name, "fifo"), Path(scratch.name, "bazel")
        os.mkfifo(fifo)
        # Its server is nobody's child yet, and nothing names the tree, when the client is interrupted.
        bazel.write_text(
            "#!/bin/bash\n"
            "[ $1 = shutdown ] && exit\n"
            f"exec 3>{fifo}\n"
            "(trap : TERM; sleep 0.2; setsid bash -c 'echo $$ >&3; sleep 0.2; exec sleep 1000' &) &\n"
            "kill -INT $PPID\n"
            "wait\n"
        )
        bazel.chmod(0o755)
        program = (
            "import bazel_progress, pathlib\n"
            # Not the server of the tree that this test is run from.
            f"bazel_progress.ROOT = pathlib.Path({scratch.name!r})\n"
            "try:\n"
            "    with bazel_progress.interruptible():\n"
            "        bazel_progress.run_bazel(['build'], 'build')\n"
            "except bazel_progress.Interrupted:\n"
            "    bazel_progress.shut_down()\n"
        )
        held_by = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, held_by)
        _output_of(program, PATH=f"{scratch.name}:{os.environ['PATH']}")
        servers: list[int] = []
        try:
            while text := os.read(held_by, 4096):
                servers += map(int, text.split())
        except BlockingIOError:
            for pid in servers:
                os.kill(pid, signal.SIGKILL)
            self.fail(f"processes {servers} or others still hold the pipe")

    def test_what_ends_bazel_in_between_leaves_signals_to_be_heeded(self) -> None:
        program = (
            "import os, pathlib, signal, bazel_progress\n"
            "bazel_progress.ROOT = pathlib.Path('/nowhere')\n"
            "try:\n"
            "    with bazel_progress.interruptible():\n"
            "        bazel_progress.shut_down()\n"
            "        os.kill(os.getpid(), signal.SIGINT)\n"
            "        print('never')\n"
            "except bazel_progress.Interrupted as interruption:\n"
            "    print('ended by', interruption)\n"
        )
        self.assertEqual(_output_of(program), "ended by SIGINT\n")


class PreparationTest(unittest.TestCase):
    """bazel/prepare and Bazel stand in for themselves, and wait for each other by pipes."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        (self.root / "bazel").mkdir()
        os.mkfifo(self.root / "compiles")

    def _prepare(self, preparation: str, bazel: str, within_s: float = 0.1) -> str:
        for path, text in (("bazel/prepare", preparation), ("bazel/bazel", bazel)):
            (self.root / path).write_text(f"#!/bin/bash\ncd {self.root}\n{text}\n")
            (self.root / path).chmod(0o755)
        return _output_of(
            "import bazel_progress, pathlib, run_tests\n"
            f"bazel_progress.ROOT = run_tests.ROOT = pathlib.Path({str(self.root)!r})\n"
            f"run_tests._PREPARED_S = {within_s}\n"
            "try:\n"
            "    with bazel_progress.interruptible():\n"
            "        run_tests.prepare(run_tests.parse_arguments([]), ['//...'])\n"
            "        print('prepared')\n"
            "except (run_tests.PreparationFailed, bazel_progress.Interrupted) as error:\n"
            "    print(repr(error))\n",
            PATH=f"{self.root / 'bazel'}:{os.environ['PATH']}",
        )

    def test_bazel_compiles_meanwhile(self) -> None:
        # Each waits for the other.
        said = self._prepare("read word <compiles; echo $word", "echo $1 >compiles")
        self.assertEqual(said, "build\nprepared\n")

    def test_a_preparation_that_fails_ends_the_build(self) -> None:
        said = self._prepare(
            "read word <compiles; exit 3",
            "trap exit INT; echo go >compiles; while true; do echo '[1 / 2] Compiling' >&2; sleep 0.05; done",
        )
        self.assertEqual(said, "PreparationFailed()\n")

    def test_a_signal_ends_the_preparation_with_what_it_has_started(self) -> None:
        said = self._prepare(
            "trap 'echo ended; exit 143' TERM; sleep 1000 & echo go >compiles; wait",
            "read word <compiles; kill -TERM $PPID; exec sleep 1000",
        )
        self.assertEqual(said, "ended\nInterrupted('SIGTERM')\n")

    def test_where_all_is_there_bazel_compiles_with_the_tests(self) -> None:
        self.assertEqual(self._prepare("true", "touch called", within_s=600.0), "prepared\n")
        self.assertFalse((self.root / "called").exists())


if __name__ == "__main__":
    unittest.main()
