#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the tests with Bazel and counts them; ./test calls this.

This program uses only the standard library, because it makes .venv.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlparse

from bazel_progress import ROOT, Interrupted, held_back, interruptible, run_bazel, shut_down

_SKIPPED = re.compile(rb"^SKIPPED: (.*)$", re.MULTILINE)
# The text by which a test tells its random seeds.
_FIRST_SEED = re.compile(r"--first-seed=(\d+)")
_LOG_LINES_SHOWN = 80
_FULL_TIMEOUT_S = 7200
_SOAK_SLACK_S = 900
# How many actions run at a time beyond one on each CPU. Many tests only wait for time limits and
# for processes to start. Tests under a sanitizer do not wait, and take several times the memory.
_ACTIONS_BESIDE_CPUS = 2
# At most so many failed tests are run again alone. If more fail, the machine is not the reason.
_RUN_AGAIN_MAX = 3

# If the preparation takes longer than this, there is something to install, and Bazel compiles
# meanwhile.
_PREPARED_S = 10.0

# Bazel's exit statuses.
_STATUS_OK = 0
_STATUS_BUILD_FAILED = 1
_STATUS_TESTS_FAILED = 3
_STATUS_NO_TESTS = 4


@dataclass
class Outcome:
    """The outcome of one test target."""

    label: str
    status: str = "NO STATUS"
    logs: list[Path] = field(default_factory=list)
    # For a test in parts (shards), the logs of the parts that failed.
    failed_logs: list[Path] = field(default_factory=list)
    skip_reasons: list[str] = field(default_factory=list)
    duration_s: float = 0.0

    @property
    def passed(self) -> bool:
        return self.status == "PASSED"


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./test",
        description="Installs what is missing, builds, and runs the tests.",
        epilog="The exit status is 0 when all tests that ran passed.",
    )
    parser.add_argument(
        "filter", nargs="*", help="run only tests whose label contains one of these"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="run every combination of the matrices, not only those that cover each value",
    )
    sanitizer = parser.add_mutually_exclusive_group()
    for name in ("asan", "tsan", "ubsan"):
        sanitizer.add_argument(
            f"--{name}",
            dest="sanitizer",
            action="store_const",
            const=name,
            help=f"build everything with {name}",
        )
    parser.add_argument(
        "--soak",
        nargs="?",
        type=int,
        const=600,
        metavar="SECONDS",
        help="run the simulation for this long (600)",
    )
    parser.add_argument(
        "--first-seed",
        type=int,
        metavar="SEED",
        help="where the simulation's new seeds begin (each run draws and prints another place)",
    )
    parser.add_argument(
        "--fuzz", type=int, metavar="SECONDS", help="fuzz each parser for this long (3)"
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="run only the tests that need this machine's GPUs; other runs skip them",
    )
    parser.add_argument("--again", action="store_true", help="use no cached test results")
    # "--soak sim" means a filter, not a number: take the value of --soak only as --soak=SECONDS.
    expanded = ["--soak=600" if argument == "--soak" else argument for argument in arguments]
    return parser.parse_args(expanded)


def bazel_options(options: argparse.Namespace) -> list[str]:
    flags = ["--keep_going", "--test_output=summary", "--test_summary=none"]
    timeout_s = 0
    if options.sanitizer:
        flags.append(f"--config={options.sanitizer}")
    else:
        actions = len(os.sched_getaffinity(0)) + _ACTIONS_BESIDE_CPUS
        flags += [f"--jobs={actions}", f"--local_cpu_resources={actions}"]
    if options.full:
        flags.append("--test_env=TALWEG_TEST_FULL=1")
        timeout_s = max(timeout_s, _FULL_TIMEOUT_S)
    if options.soak is not None:
        flags.append(f"--test_env=TALWEG_SOAK_S={options.soak}")
        timeout_s = max(timeout_s, options.soak + _SOAK_SLACK_S)
    if options.first_seed is not None:
        flags.append(f"--test_env=TALWEG_SIM_FIRST_SEED={options.first_seed}")
    if options.fuzz is not None:
        flags.append(f"--test_env=TALWEG_FUZZ_S={options.fuzz}")
        timeout_s = max(timeout_s, options.fuzz + _SOAK_SLACK_S)
    if timeout_s:
        flags.append(f"--test_timeout={timeout_s}")
    if options.gpu:
        flags += ["--test_tag_filters=gpu", "--build_tests_only", "--test_env=TALWEG_TEST_GPU=1"]
        if find_nvcc():
            flags.append("--config=cuda")
    # Bazel does not know the hardware, so it would take results of another machine as still valid.
    # A longer search has new inputs each time.
    searches = options.soak is not None or options.fuzz is not None
    if options.again or options.gpu or searches:
        flags.append("--nocache_test_results")
    return flags


def find_nvcc() -> str | None:
    """Returns the CUDA toolkit's compiler, where bazel/deps/cuda/nvcc.sh looks for it."""
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda", "/usr/lib/nvidia-cuda-toolkit"):
        if home and os.access(f"{home}/bin/nvcc", os.X_OK):
            return f"{home}/bin/nvcc"
    return None


def labels_containing(substrings: list[str]) -> list[str]:
    """Returns the tests whose label contains one of the substrings."""
    query = subprocess.run(
        ["bazel", "query", "--keep_going", "--noshow_progress", "tests(//...)"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    labels = query.stdout.split()
    if not labels:
        raise SystemExit(f"test: Bazel cannot list the tests:\n{query.stderr}")
    return [label for label in labels if any(substring in label for substring in substrings)]


def read_outcomes(events: Path) -> dict[str, Outcome]:
    """Reads Bazel's event file, which also has the tests that did not build."""
    outcomes: dict[str, Outcome] = {}
    for line in events.read_text(errors="replace").splitlines():
        event = json.loads(line)
        identity = event.get("id", {})
        if "targetConfigured" in identity and "testSize" in event.get("configured", {}):
            label = identity["targetConfigured"]["label"]
            outcomes.setdefault(label, Outcome(label, "FAILED TO BUILD"))
        elif "testResult" in identity and "testResult" in event:
            label = identity["testResult"]["label"]
            outcome = outcomes.setdefault(label, Outcome(label))
            result = event["testResult"]
            outcome.duration_s += int(result.get("testAttemptDurationMillis", 0)) / 1000
            for output in result.get("testActionOutput", []):
                if output.get("name") == "test.log" and output.get("uri", "").startswith("file:"):
                    outcome.logs.append(Path(unquote(urlparse(output["uri"]).path)))
                    if result.get("status") != "PASSED":
                        outcome.failed_logs.append(outcome.logs[-1])
        elif "testSummary" in identity and "testSummary" in event:
            label = identity["testSummary"]["label"]
            outcome = outcomes.setdefault(label, Outcome(label))
            outcome.status = event["testSummary"].get("overallStatus", "NO STATUS")
    for outcome in outcomes.values():
        for log in outcome.logs if outcome.passed else []:
            reasons = _SKIPPED.findall(log.read_bytes()) if log.exists() else []
            outcome.skip_reasons += [reason.decode(errors="replace").strip() for reason in reasons]
    return outcomes


def print_failure(outcome: Outcome) -> None:
    print(f"\n{outcome.status}: {outcome.label}")
    for log in outcome.failed_logs:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        # The line that Bazel writes at the head of the log is of no use.
        lines = [line for line in lines if not line.startswith("exec ${PAGER")]
        if len(lines) > _LOG_LINES_SHOWN:
            print(f"  ... ({len(lines) - _LOG_LINES_SHOWN} lines before these)")
        for line in lines[-_LOG_LINES_SHOWN:]:
            print(f"  {line}")
        print(f"  log: {log}")


class PreparationFailed(Exception):
    """bazel/prepare has failed, and has said why."""


@contextlib.contextmanager
def _preparation() -> Iterator[subprocess.Popen[bytes]]:
    """Makes what the tests run in while the block runs. Ends the preparation with the block."""
    with held_back():
        process = subprocess.Popen(
            [ROOT / "bazel" / "prepare", "--for=test"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Signals reach it with what it has started, from here.
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def prepare(options: argparse.Namespace, targets: list[str]) -> None:
    """Makes the environments that the tests run in. Compiles meanwhile if that takes its time.

    What does not build is reported by the run of the tests. Raises PreparationFailed.
    """
    with _preparation() as process:

        def check() -> None:
            if process.poll():
                raise PreparationFailed

        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PREPARED_S)
        if process.poll() is None:
            with _target_file(targets) as file:
                pattern = f"--target_pattern_file={file}"
                run_bazel(["build", *bazel_options(options), pattern], "build", on_progress=check)
        process.wait()
        check()


@contextlib.contextmanager
def _target_file(targets: list[str]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="talweg-test.") as scratch:
        file = Path(scratch) / "targets"
        file.write_text("".join(f"{target}\n" for target in targets))
        yield file


def run_targets(
    options: argparse.Namespace, targets: list[str], further: list[str]
) -> tuple[int, list[str], dict[str, Outcome]]:
    """Runs the targets. Returns Bazel's exit status, its output, and the outcomes by label."""
    with _target_file(targets) as target_file:
        events = target_file.with_name("events.json")
        status, lines = run_bazel(
            [
                "test",
                *bazel_options(options),
                *further,
                f"--build_event_json_file={events}",
                f"--target_pattern_file={target_file}",
            ],
            "test",
        )
        return status, lines, read_outcomes(events) if events.exists() else {}


def run_again(
    options: argparse.Namespace, failed: list[Outcome], outcomes: dict[str, Outcome]
) -> int:
    """Runs failed tests once more, one at a time, and updates `outcomes`. Returns Bazel's exit
    status.

    A machine that stands still for seconds breaks a correct test. A test that fails now and then
    must be repaired. So each is reported with the output of its first run. A test gets the same
    random seed again.
    """
    for outcome in failed:
        print_failure(outcome)
        for log in outcome.failed_logs:
            drawn = _FIRST_SEED.search(log.read_text(errors="replace") if log.exists() else "")
            if drawn and options.first_seed is None:
                options.first_seed = int(drawn.group(1))
    print("\ntest: runs the tests that failed once more, one at a time", flush=True)
    labels = [outcome.label for outcome in failed]
    status, _, again = run_targets(options, labels, ["--local_test_jobs=1"])
    for label, outcome in again.items():
        outcome.duration_s += outcomes[label].duration_s
        outcomes[label] = outcome
        if outcome.passed:
            print(f"UNSTABLE: {label}: failed beside other tests (above), but passes alone")
    return status


def run(options: argparse.Namespace) -> int:
    targets = ["//..."]
    if options.filter:
        targets = labels_containing(options.filter)
        if not targets:
            print(f"test: no test's label contains {' or '.join(options.filter)}", file=sys.stderr)
            return 2
    if options.gpu and not find_nvcc():
        print(
            "test: no nvcc (CUDA_HOME, /usr/local/cuda): GPU kernels are neither built nor tested"
        )
    started = time.monotonic()
    prepare(options, targets)
    status, lines, outcomes = run_targets(options, targets, [])
    failed = [outcome for outcome in outcomes.values() if not outcome.passed]
    if status == _STATUS_TESTS_FAILED and 0 < len(failed) <= _RUN_AGAIN_MAX:
        status = run_again(options, failed, outcomes)
        failed = [outcome for outcome in outcomes.values() if not outcome.passed]
    skipped = [outcome for outcome in outcomes.values() if outcome.skip_reasons]
    passed_count = len(outcomes) - len(failed) - len(skipped)
    failed_count = len(failed)
    if status not in (_STATUS_OK, _STATUS_TESTS_FAILED):
        print("\n".join(lines))
        if status == _STATUS_NO_TESTS:
            print("test: there are no tests")
        elif status == _STATUS_BUILD_FAILED and failed_count:
            print("test: not everything builds (above)")
        else:
            print(f"test: the build failed with Bazel's status {status} (above)")
            failed_count = max(failed_count, 1)
    for outcome in failed:
        print_failure(outcome)
    if skipped:
        print()
    for outcome in skipped:
        for reason in outcome.skip_reasons:
            print(f"SKIPPED: {outcome.label}: {reason}")
    slowest = sorted(outcomes.values(), key=lambda outcome: -outcome.duration_s)[:5]
    print(
        f"\n{time.monotonic() - started:.0f} s; slowest: "
        + ", ".join(f"{outcome.label} {outcome.duration_s:.1f} s" for outcome in slowest)
    )
    print(f"{passed_count} passed, {failed_count} failed, {len(skipped)} skipped", flush=True)
    return 0 if status == _STATUS_OK and not failed_count else 1


def main() -> int:
    options = parse_arguments(sys.argv[1:])
    try:
        with interruptible():
            return run(options)
    except PreparationFailed:
        return 1
    except Interrupted as interruption:
        print(f"test: ended by {interruption}", file=sys.stderr)
        return 128 + interruption.number
    finally:
        if not os.environ.get("TALWEG_KEEP_BAZEL"):
            shut_down()


if __name__ == "__main__":
    sys.exit(main())
