# SPDX-License-Identifier: Apache-2.0
"""Measures Talweg beside its peers on this machine. See ./bench."""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).absolute().parent
ROOT = HERE.parent
for _directory in (HERE, HERE / "peers", ROOT / "bazel", ROOT / "tests" / "netns"):
    if str(_directory) not in sys.path:
        sys.path.insert(0, str(_directory))

from bazel_progress import Interrupted, ProgressLine, interruptible, run_bazel, shut_down  # noqa: E402
from harness import google_benchmark, machine, report  # noqa: E402
from harness.contenders import Programs  # noqa: E402
from harness.gpus import count_gpus  # noqa: E402
from harness.measure import Effort  # noqa: E402
from harness.scenario import Context, Section  # noqa: E402
from harness.scenarios import (  # noqa: E402
    aggregator_host,
    collectives,
    compressed_steps,
    fairness,
    first_step,
    gpu_device,
    gpu_push_pull,
    gpu_training_step,
    growth,
    idle,
    jax_training_step,
    kernels,
    lanes,
    local_steps,
    long_links,
    loss_curve,
    model_tensors,
    mxnet_step,
    one_node,
    own_aggregators,
    priorities,
    recovery,
    shaped_links,
    sparse,
    tensorflow_step,
    tensorflow_step_hosts,
    torch_backend,
    training_step,
    training_step_hosts,
    transports,
)
from harness.scratch import scratch  # noqa: E402
from run_tests import find_nvcc  # noqa: E402

SCENARIOS: dict[str, Any] = {
    "one_node": one_node,
    "aggregator_host": aggregator_host,
    "own_aggregators": own_aggregators,
    "shaped_links": shaped_links,
    "long_links": long_links,
    "local_steps": local_steps,
    "compressed_steps": compressed_steps,
    "model_tensors": model_tensors,
    "first_step": first_step,
    "idle": idle,
    "kernels": kernels,
    "transports": transports,
    "training_step": training_step,
    "training_step_hosts": training_step_hosts,
    "jax_training_step": jax_training_step,
    "tensorflow_step": tensorflow_step,
    "tensorflow_step_hosts": tensorflow_step_hosts,
    "mxnet_step": mxnet_step,
    "growth": growth,
    "lanes": lanes,
    "fairness": fairness,
    "priorities": priorities,
    "collectives": collectives,
    "sparse": sparse,
    "torch_backend": torch_backend,
    "recovery": recovery,
    "loss_curve": loss_curve,
}
# These take long. They run only if they are named, or with --full or --smoke.
LONG_SCENARIOS = {"recovery", "loss_curve", "local_steps", "compressed_steps"}
# These need a machine with a GPU. They run only with --gpu.
GPU_SCENARIOS: dict[str, Any] = {
    "gpu_device": gpu_device,
    "gpu_push_pull": gpu_push_pull,
    "gpu_training_step": gpu_training_step,
}
TARGETS = [
    "//benchmarks/baselines/...",
    "//clients/c:libtalweg.so",
    "//clients/cli:talweg",
    "//clients/jax:libtalweg_jax.so",
    "//libs/gpu/testing:device_benchmark",
    "//libs/reduce:reduce_benchmark",
    "//libs/transport/testing:transport_benchmark",
    "//services/agent:talweg-agent",
    "//services/aggregator:talweg-aggregator",
    "//services/scheduler:talweg-scheduler",
    "//tests/attackers:rude_member",
]
EFFORTS = {
    "smoke": Effort(repetitions=1, batch_s=0.01),
    "quick": Effort(repetitions=7, batch_s=0.08),
    "default": Effort(repetitions=7, batch_s=0.25),
    "full": Effort(repetitions=15, batch_s=0.5),
}


class Failed(Exception):
    """The bench cannot go on. The text says why."""


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./bench",
        description=__doc__,
        epilog="Scenarios: "
        + "; ".join(f"{name}: {each.TITLE}" for name, each in SCENARIOS.items())
        + ". With --gpu: "
        + "; ".join(f"{name}: {each.TITLE}" for name, each in GPU_SCENARIOS.items()),
    )
    mode = parser.add_mutually_exclusive_group()
    for name, text in (
        ("quick", "only the named cases, under 3 minutes"),
        ("full", "fine curves, more repetitions, as long as it takes"),
        ("smoke", "tiny sizes once: shows that it runs; its figures say nothing"),
    ):
        mode.add_argument(f"--{name}", dest="mode", action="store_const", const=name, help=text)
    parser.set_defaults(mode="default")
    parser.add_argument(
        "--scenario",
        metavar="NAME[,NAME...]",
        help="which scenarios (default: all but those that take long: "
        + ", ".join(sorted(LONG_SCENARIOS))
        + ")",
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="the scenarios of this machine's GPUs instead, under 8 minutes (--smoke: fake ones)",
    )
    parser.add_argument(
        "--repetitions",
        type=int,
        metavar="N",
        help="how many repetitions, instead of the mode's (7)",
    )
    parser.add_argument(
        "--congestion-control",
        default="reno",
        metavar="NAME",
        help="for every TCP connection measured: reno (default), bbr, cubic",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench", metavar="DIR")
    parser.add_argument(
        "--binaries",
        type=Path,
        metavar="DIR",
        help="built programs, laid out as bazel-bin is (default: builds them)",
    )
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="DIR",
        help="another build's programs, as one more contender of one_node, aggregator_host and shaped_links",
    )
    options = parser.parse_args(arguments)
    scenarios = GPU_SCENARIOS if options.gpu else SCENARIOS
    if options.scenario:
        options.scenario = options.scenario.split(",")
    elif options.mode in ("full", "smoke"):
        options.scenario = list(scenarios)
    else:
        options.scenario = [name for name in scenarios if name not in LONG_SCENARIOS]
    for name in options.scenario:
        if name not in scenarios:
            parser.error(f"there is no scenario '{name}'; there are: {', '.join(scenarios)}")
    if options.repetitions is not None and options.repetitions < 1:
        parser.error(f"--repetitions: {options.repetitions} is less than 1")
    if options.beside is not None and not _tool(options.beside).exists():
        parser.error(f"--beside: {_tool(options.beside)} is not there; build //clients/cli:talweg")
    return options


def _tool(binaries: Path) -> Path:
    return binaries.absolute() / "clients" / "cli" / "talweg"


def build(with_kernels: bool) -> None:
    """Builds the programs to measure; `with_kernels` also GPU kernels, if there is a compiler."""
    begin_s = time.monotonic()
    flags = ["--config=cuda"] if with_kernels and find_nvcc() else []
    status, lines = run_bazel(["build", *flags, *TARGETS], "build")
    if status != 0:
        raise Failed("the build failed:\n" + "\n".join(lines))
    print(f"built in {time.monotonic() - begin_s:.0f} s")
    # Bazel's server would take memory that the measurements need.
    if not os.environ.get("TALWEG_KEEP_BAZEL"):
        shut_down()


def require_gpu(programs: Programs, scenarios: list[str]) -> None:
    """Raises Failed if there is no GPU. Otherwise each scenario would fail late."""
    try:
        google_benchmark.names(programs.device_benchmark)
    except google_benchmark.BenchmarkFailed as failure:
        raise Failed(f"--gpu: {failure}") from None
    if scenarios != ["gpu_device"] and count_gpus() == 0:
        raise Failed(
            f"--gpu: the torch of {sys.executable} sees no GPU: put one that is built for CUDA there "
            "(TALWEG_TORCH_CUDA=1 bazel/prepare --for=bench), or take --scenario=gpu_device alone"
        )


def section_body(section: Section, name: str, output: Path) -> str:
    body = report.tables(section.results) if section.results else ""
    plot = output / f"{name}.png"
    if section.draw is not None:
        section.draw(plot)
    if section.draw is not None or report.plot_curves(section.results, section.title, plot):
        body += f"![{section.title}]({name}.png)\n\n"
    if section.bars:
        body += report.bars_table(section.bars) + "\n"
    return body + section.text


def run_scenarios(
    options: argparse.Namespace, context: Context, show: Callable[[int, int, str], None]
) -> dict[str, Section]:
    sections: dict[str, Section] = {}
    for index, name in enumerate(options.scenario):

        def progress(text: str, index: int = index, name: str = name) -> None:
            show(index, len(options.scenario), f"{name}: {text}")

        context.progress = progress
        begin_s = time.monotonic()
        sections[name] = (SCENARIOS | GPU_SCENARIOS)[name].run(context)
        sections[name].text += f"\nIt took {time.monotonic() - begin_s:.0f} s.\n"
    return sections


def run(options: argparse.Namespace) -> int:
    output: Path = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    if options.binaries is None:
        build(options.gpu)
    binaries: Path = options.binaries or ROOT / "bazel-bin"
    programs = Programs(
        tool=_tool(binaries),
        baselines=binaries.absolute() / "benchmarks" / "baselines",
        reduce_benchmark=binaries.absolute() / "libs" / "reduce" / "reduce_benchmark",
        device_benchmark=binaries.absolute() / "libs" / "gpu" / "testing" / "device_benchmark",
        transport_benchmark=binaries.absolute()
        / "libs"
        / "transport"
        / "testing"
        / "transport_benchmark",
        library=binaries.absolute() / "clients" / "c" / "libtalweg.so",
        python=ROOT / "clients" / "python",
        peers=HERE / "peers",
        # Only the results of a run are kept.
        build=output / "programs" if options.binaries else ROOT / "build" / "bench-programs",
        congestion_control=options.congestion_control,
        other_tool=_tool(options.beside) if options.beside else None,
        rude_member=binaries.absolute() / "tests" / "attackers" / "rude_member",
    )
    if options.gpu and options.mode != "smoke":  # Smoke runs take fake GPUs.
        require_gpu(programs, options.scenario)
    effort = EFFORTS[options.mode]
    if options.repetitions:
        effort = Effort(options.repetitions, effort.batch_s)
    document: dict[str, Any] = {
        "command": shlex.join(["./bench", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine.facts(ROOT),
        "congestion_control": programs.congestion_control,
        "repetitions": effort.repetitions,
        "mode": options.mode,
    }
    context = Context(programs, options.mode, effort, print)
    progress = ProgressLine("bench")
    try:
        with scratch():
            sections = run_scenarios(options, context, progress.show)
    finally:
        progress.clear()
    document["notes"] = context.notes
    document["bars"] = [bar.__dict__ for section in sections.values() for bar in section.bars]
    document["data"] = {name: section.data for name, section in sections.items() if section.data}
    document["results"] = [r.as_json() for section in sections.values() for r in section.results]
    parts = [
        (section.title, section_body(section, name, output)) for name, section in sections.items()
    ]
    if context.notes:
        parts.append(("Notes", "".join(f"- {note}\n" for note in context.notes)))
    report.write_json(document, output / "results.json")
    (output / "results.md").write_text(report.page(document, parts))
    for section in sections.values():
        print(f"{section.title}\n\n{report.tables(section.results)}")
        if section.bars:
            print(report.bars_table(section.bars))
    for note in context.notes:
        print(f"note: {note}")
    here = output.relative_to(ROOT) if output.is_relative_to(ROOT) else output
    print(f"results: {here / 'results.md'}, {here / 'results.json'}, plots beside them")
    return 1 if any(section.has_failed for section in sections.values()) else 0


def main() -> int:
    options = parse_arguments(sys.argv[1:])
    try:
        with interruptible():
            return run(options)
    except Interrupted as interruption:
        print(f"bench: ended by {interruption}", file=sys.stderr)
        return 128 + interruption.number
    except Failed as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    finally:
        if options.binaries is None and not os.environ.get("TALWEG_KEEP_BAZEL"):
            shut_down()


if __name__ == "__main__":
    sys.exit(main())
