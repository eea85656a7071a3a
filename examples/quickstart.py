# SPDX-License-Identifier: Apache-2.0
"""Builds Talweg, trains the digits over it and in one process, and compares. See ./quickstart."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bazel"))

from bazel_progress import (  # noqa: E402
    Interrupted,
    ProgressLine,
    held_back,
    interruptible,
    run_bazel,
    shut_down,
)

TARGETS = [
    "//clients/cli:talweg",
    "//clients/c:libtalweg.so",
    "//services/agent:talweg-agent",
    "//services/aggregator:talweg-aggregator",
    "//services/scheduler:talweg-scheduler",
]
TOOL = ROOT / "bazel-bin" / "clients" / "cli" / "talweg"
PROGRAM = ROOT / "examples" / "digits.py"
ACCURACY_MIN = 0.97
# Sums in another order differ in their last bits, and training makes the difference grow.
DRIFT_STEPS = 20
NODES, RANKS_PER_NODE, AGGREGATORS = 2, 2, 2
# The timeline shows this step. An agent traces its round. Steps count from 0, rounds from 1.
TRACE_STEP = 8
_STEP = re.compile(r"step (\d+)/(\d+) loss ([\d.]+)")
_END_S = 20.0


class Failed(Exception):
    """A part of the demonstration has failed. The text names it, and has its output."""


def _end(process: subprocess.Popen[str]) -> None:
    """Asks the tool to end, with its daemons and ranks. Kills all of them if it does not."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_shown(title: str, line: list[str], log: Path) -> None:
    """Runs a training program, shows its progress, and keeps its output in `log`."""
    progress = ProgressLine(title)
    progress.show(0, 0, "starting")
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "clients" / "python"))
    environment["TALWEG_LIBRARY"] = str(ROOT / "bazel-bin" / "clients" / "c" / "libtalweg.so")
    # At its import PyTorch makes a directory for compiled kernels, here in this tree's cache.
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".cache" / "torchinductor"))
    # A step is a round of every gradient, so the agents' timelines contain the traced step.
    environment["TALWEG_TRACE_ROUNDS"] = str(TRACE_STEP + 2)
    process = None
    try:
        with held_back():
            process = subprocess.Popen(
                line,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Signals reach it only once, by the code below.
            )
        assert process.stdout is not None
        with log.open("w") as file:
            for text in process.stdout:
                file.write(text)
                match = _STEP.search(text)
                if match:
                    progress.show(int(match[1]), int(match[2]), f"loss {match[3]}")
        status = process.wait()
    except BaseException:
        if process is not None:
            _end(process)
        raise
    finally:
        progress.clear()
    if status != 0:
        tail = "\n".join(log.read_text().splitlines()[-30:])
        raise Failed(f"{title} ended with status {status}:\n{tail}\nAll of it: {log}")


def read_results(directory: Path) -> list[dict[str, Any]]:
    files = sorted(directory.glob("rank*.json"))
    return [json.loads(file.read_text()) for file in files]


def draw_losses(single: dict[str, Any], job: dict[str, Any], path: Path) -> None:
    # Matplotlib takes seconds to make its list of fonts, which is kept in this tree's cache.
    os.environ.setdefault("MPLCONFIGDIR", str(ROOT / ".cache" / "matplotlib"))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(single["losses"], linewidth=3.5, color="#9bbbe0", label="one process")
    label = f"{job['size']} ranks over {NODES} agents and {AGGREGATORS} aggregators"
    axes.plot(job["losses"], linewidth=1.0, color="#b03030", label=label)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("training loss (mean of the global batch)")
    axes.set_title("Handwritten digits: the same losses, one process or many")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def write_timeline(ranks: list[dict[str, Any]], traces: list[Path], path: Path) -> int:
    """Writes a Chrome trace of a step: the ranks' work and the agents' rounds.

    Returns the number of its events.
    """
    computing = [event for rank in ranks for event in rank["trace_events"]]
    spans = [event for event in computing if event["ph"] == "X"]
    begin = min(event["ts"] for event in spans)
    end = max(event["ts"] + event["dur"] for event in spans)
    events = computing[:]
    for trace in traces:
        for event in json.loads(trace.read_text())["traceEvents"]:
            # The agents record every round up to that of this step.
            if event["ph"] == "M" or (event["ts"] < end and event["ts"] + event["dur"] > begin):
                events.append(event)
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return len(events)


def report(single: dict[str, Any], ranks: list[dict[str, Any]]) -> bool:
    """Prints the table. Returns whether the accuracy and the identity of weights hold."""
    job = ranks[0]
    identical = len({rank["weights_sha256"] for rank in ranks}) == 1
    drift = max(
        abs(a - b) / max(abs(a), 1e-12)
        for a, b in zip(single["losses"][:DRIFT_STEPS], job["losses"][:DRIFT_STEPS], strict=True)
    )
    rows = [
        ("", "one process", f"{job['size']} ranks"),
        ("test accuracy", f"{single['accuracy']:.2%}", f"{job['accuracy']:.2%}"),
        ("test loss", f"{single['loss']:.4f}", f"{job['loss']:.4f}"),
        (
            "steps/s",
            f"{single['steps'] / single['seconds']:.1f}",
            f"{job['steps'] / job['seconds']:.1f}",
        ),
        ("MB a rank moved", "0", f"{job['bytes_moved'] / 1e6:.1f}"),
        ("largest weight difference", "", f"{job['weight_spread']:g}"),
        ("weights identical in bits", "", "yes" if identical else "NO"),
        (f"loss drift, {DRIFT_STEPS} steps", "", f"{drift:.1e}"),
    ]
    for name, left, right in rows:
        print(f"  {name:<27} {left:>12} {right:>12}")
    good = True
    for name, result in (("one process", single), (f"{job['size']} ranks", job)):
        if result["accuracy"] < ACCURACY_MIN:
            print(f"FAILED: {name}: accuracy is {result['accuracy']:.2%}, below {ACCURACY_MIN:.0%}")
            good = False
    if not identical or job["weight_spread"] != 0:
        print("FAILED: the ranks' weights differ")
        good = False
    return good


def run(arguments: argparse.Namespace) -> int:
    output: Path = arguments.output
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    begin_s = time.monotonic()
    status, lines = run_bazel(["build", *TARGETS], "build")
    if status != 0:
        raise Failed("the build failed:\n" + "\n".join(lines))
    print(f"built in {time.monotonic() - begin_s:.0f} s")

    python = [sys.executable, str(PROGRAM), f"--epochs={arguments.epochs}"]
    shape = [f"--nodes={NODES}", f"--ranks-per-node={RANKS_PER_NODE}"]
    trace = output / "trace"
    trace.mkdir()
    line = [str(TOOL), "run", *shape, f"--aggregators={AGGREGATORS}", f"--trace={trace / 'agent'}"]
    program = [*python, f"--output={output / 'job'}", f"--trace-step={TRACE_STEP}"]
    run_shown("train over Talweg", [*line, "--", *program], output / "job.log")
    single_line = [*python, "--single", f"--output={output / 'single'}"]
    run_shown("train in one process", single_line, output / "single.log")

    single, ranks = read_results(output / "single")[0], read_results(output / "job")
    draw_losses(single, ranks[0], output / "losses.png")
    events = write_timeline(ranks, sorted(trace.iterdir()), output / "timeline.json")
    good = report(single, ranks)
    here = output.relative_to(ROOT) if output.is_relative_to(ROOT) else output
    print(f"loss curves:   {here / 'losses.png'}")
    print(f"timeline:      {here / 'timeline.json'} ({events} events; open it in ui.perfetto.dev)")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="./quickstart", description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "quickstart")
    arguments = parser.parse_args()
    arguments.output = arguments.output.absolute()
    try:
        with interruptible():
            return run(arguments)
    except Interrupted as interruption:
        print(f"quickstart: ended by {interruption}", file=sys.stderr)
        return 128 + interruption.number
    except Failed as failure:
        print(f"quickstart: {failure}", file=sys.stderr)
        return 1
    finally:
        shut_down()


if __name__ == "__main__":
    sys.exit(main())
