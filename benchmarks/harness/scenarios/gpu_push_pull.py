# SPDX-License-Identifier: Apache-2.0
"""Measures push_pull of GPU tensors by two ranks of a node, beside peers and a training stream."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from harness import google_benchmark
from harness.contender import Command, Contender
from harness.contenders import GLOO, TALWEG, Programs, python_ranks, talweg_python
from harness.figures import format_bytes, format_seconds, parse_bytes
from harness.gpus import count_gpus, device_variables
from harness.measure import Case
from harness.report import markdown_table
from harness.scenario import Context, Make, Section, run_beside

TITLE = "Tensors on GPUs"
_RANKS = 2
_NCCL = "NCCL"
_TIMEOUT_S = 300.0
_SIZES = {
    "smoke": ("4 KB",),
    "quick": ("4 KB", "25 MB", "256 MB"),
    "default": ("4 KB", "256 KB", "4 MB", "25 MB", "256 MB"),
}
_SIZES["full"] = _SIZES["default"]


def _talweg(
    programs: Programs, network: tuple[str, ...], variables: Mapping[str, str]
) -> Contender:
    run = [str(programs.tool), "run", "--nodes=1", f"--ranks-per-node={_RANKS}", "--"]
    rank = talweg_python(programs, str(programs.peers / "torch_allreduce.py"), "talweg")
    command = Command((*network, *run, *rank.line), {**rank.environment, **variables})
    return Contender(TALWEG, _RANKS, [command])


def run(context: Context) -> Section:
    programs = context.programs
    network = programs.in_own_network()
    variables = device_variables(context.mode)
    gpus = count_gpus()
    peer = str(programs.peers / "torch_allreduce.py")
    peers = {GLOO: "gloo", **({_NCCL: "nccl"} if gpus > 1 else {})}  # NCCL takes one rank on a GPU.
    makers: list[tuple[str, Make]] = [(TALWEG, partial(_talweg, programs, network, variables))]
    makers += [
        (name, partial(python_ranks, name, _RANKS, network, [peer, backend], variables))
        for name, backend in peers.items()
    ]
    section = Section(TITLE)
    sizes = _SIZES[context.mode]
    cases = [Case(size, (parse_bytes(size),), dtype) for size in sizes for dtype in ("f32", "bf16")]
    for dtype in ("f32", "bf16"):
        of_dtype = [case for case in cases if case.dtype == dtype]
        setting = f"{_RANKS} ranks, {gpus} GPUs, {dtype}"
        section.results += run_beside(context, "gpu_push_pull", setting, makers, _RANKS, of_dtype)
    context.progress("beside a training stream")
    try:
        streams = _streams(context, variables)
        speeds = _speeds(context)
    except (subprocess.SubprocessError, ValueError, google_benchmark.BenchmarkFailed) as error:
        context.notes.append(f"{TITLE}: {error}")
        section.failed = True
        return section
    section.data = {"streams": streams, **asdict(speeds)}
    section.text = stream_table(streams, speeds, min(gpus, _RANKS)) + (
        "\nThe training stream multiplies matrices, once alone and once during a push_pull. Then a push_pull\n"
        "runs by itself. Its time goes from the last gradient to the last result, and includes the kernels\n"
        "and copies that it gives to the trainer's own streams. For B bytes with n ranks on each of g GPUs,\n"
        "its limit is the sum of two times. In a GPU's memory, n tensors are read and written: 2n B at the\n"
        "speed of a copy there. With several GPUs the sum is also written, and copied into the tensors:\n"
        "(3n + 1) B. Between GPUs, an all-reduce sends 2 (g - 1) / g B from each GPU and as much to it, at\n"
        "the speed of one of two copies that go both ways at once.\n"
    )
    return section


def _streams(context: Context, variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the figures of gpu_stream.py for each size."""
    programs = context.programs
    sizes = [str(parse_bytes(size)) for size in _SIZES[context.mode]]
    worker = str(programs.peers / "gpu_stream.py")
    rank = talweg_python(programs, worker, str(context.effort.repetitions), *sizes)
    run = [
        str(programs.tool),
        "run",
        "--nodes=1",
        f"--ranks-per-node={_RANKS}",
        "--no-prefix",
        "--",
    ]
    done = subprocess.run(
        [*run, *rank.line],
        env={**os.environ, **rank.environment, **variables},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise ValueError(f"gpu_stream.py failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@dataclass(frozen=True)
class Speeds:
    """Bytes a second on the first GPU."""

    memory_bytes_per_s: float  # Bytes that a copy in the GPU's memory touches.
    # Bytes to the second GPU while as many come from it. None if there is none, or no way to it.
    peer_bytes_per_s: float | None = None


def speeds_of(medians: Mapping[str, float]) -> Speeds:
    named = {name.partition("/")[0]: speed for name, speed in medians.items()}
    if "Copy" not in named:
        raise ValueError("device_benchmark has measured no copy in the GPU's memory")
    both_ways = named.get("PeerBothWays")
    return Speeds(named["Copy"], None if both_ways is None else both_ways / 2)


def _speeds(context: Context) -> Speeds:
    document = google_benchmark.run(
        context.programs.device_benchmark,
        context.effort.repetitions,
        0.05,
        "--benchmark_filter=^BM_(Copy|PeerBothWays)/",
        *(["--fake"] if context.mode == "smoke" else []),
    )
    for name, why in google_benchmark.failures(document).items():
        context.notes.append(f"{TITLE}: {name}: {why}")
    return speeds_of(google_benchmark.medians(document))


def limit_s(nbytes: int, speeds: Speeds, gpus: int) -> float | None:
    """Returns the least time in which the ranks, equally many on each GPU, can have their sum.

    None if it is not known.
    """
    if gpus == 0 or (gpus > 1 and speeds.peer_bytes_per_s is None):
        return None
    ranks = _RANKS // gpus
    touched = 2 * ranks  # Each rank's tensor is read and written.
    if gpus > 1:
        touched += ranks + 1  # The GPU's sum is written, and read once for each tensor.
    limit = nbytes * touched / speeds.memory_bytes_per_s
    if speeds.peer_bytes_per_s is not None:
        # An all-reduce is a reduce-scatter and an all-gather.
        limit += nbytes * 2 * (gpus - 1) / gpus / speeds.peer_bytes_per_s
    return limit


def stream_table(streams: list[dict[str, Any]], speeds: Speeds, gpus: int) -> str:
    rows = []
    limits = [limit_s(each["bytes"], speeds, gpus) for each in streams]
    for each, limit in zip(streams, limits, strict=True):
        row = [format_bytes(each["bytes"])]
        row += [format_seconds(each[name]) for name in ("alone_s", "beside_s")]
        row.append(f"{each['beside_s'] / each['alone_s']:.3f}")
        row += [str(each["device_calls"]), format_seconds(each["latency_s"])]
        if limit is not None:
            row += [format_seconds(limit), f"{each['latency_s'] / limit:.2f}"]
        rows.append(row)
    head = ["tensor", "work alone", "beside it", "ratio", "kernels, copies", "gradient to result"]
    if None not in limits:
        head += ["its limit", "over it"]
    return markdown_table(head, rows)
