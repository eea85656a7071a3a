# SPDX-License-Identifier: Apache-2.0
"""Measures contenders in turn: one repetition of each, then the next of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.contender import Batch, Contender, ContenderFailed
from harness.figures import median, quantile, rounds_for

Progress = Callable[[str], None]

_TIMEOUT_S = 300.0
_ROUNDS_MAX = 5000


@dataclass(frozen=True)
class Case:
    """The tensors of one measurement, which every contender makes."""

    label: str
    tensor_bytes: tuple[int, ...]
    dtype: str = "f32"
    # Contenders that get all bytes as one tensor.
    merged_for: frozenset[str] = frozenset()

    def tensors_of(self, contender: str) -> tuple[int, ...]:
        return (self.total_bytes,) if contender in self.merged_for else self.tensor_bytes

    @property
    def total_bytes(self) -> int:
        return sum(self.tensor_bytes)


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    repetitions: int = 7
    batch_s: float = 0.25
    # If a round takes so long, the first few rounds are warm-up enough.
    long_round_s: float = 0.5
    rounds_min: int = 1  # The fewest rounds of a repetition, however long they are.


@dataclass
class Result:
    """One contender in one case."""

    scenario: str
    setting: str  # For instance "2 ranks".
    case: str
    contender: str
    dtype: str
    rank_count: int
    tensor_count: int
    total_bytes: int
    rounds: int = 0
    gigabytes_per_s: list[float] = field(default_factory=list)  # By repetition.
    gigabytes_per_s_median: float = 0.0  # GB of each worker's gradient.
    median_s: float = 0.0
    medians_s: list[float] = field(default_factory=list)  # By repetition.
    p99_s: float = 0.0
    cpu_s_per_gigabyte: float = 0.0  # CPU time of all processes, for each GB of all workers.
    wire_bytes_per_round: float | None = None  # Sent by all interfaces together.
    wire_bytes_of_hosts: list[float] = field(default_factory=list)  # Sent by each host.
    memory_bytes: int = 0
    failure: str = ""
    ratios: dict[str, float] = field(default_factory=dict)  # Its GB/s over each contender's.
    extra: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Running:
    """A contender's measurements of one case."""

    contender: Contender
    rounds: int = 0
    warm_up: int = 1
    batches: list[Batch] = field(default_factory=list)
    memory_bytes: int = 0
    failure: str = ""


def measure_beside(
    scenario: str,
    setting: str,
    contenders: Sequence[Contender],
    rank_count: int,
    cases: Sequence[Case],
    effort: Effort,
    progress: Progress,
) -> list[Result]:
    """Measures every case of every contender.

    A contender that fails is left out from then on, and its result has the text of the failure.
    """
    failures: dict[str, str] = {}
    results: list[Result] = []
    for case in cases:
        running = [_Running(contender) for contender in contenders]
        for each in running:
            each.failure = failures.get(each.contender.name, "")
        _measure_case(running, case, effort, lambda text: progress(f"{setting}, {text}"))
        for each in running:
            if each.failure:
                failures[each.contender.name] = each.failure
            result = Result(
                scenario,
                setting,
                case.label,
                each.contender.name,
                case.dtype,
                rank_count,
                len(case.tensors_of(each.contender.name)),
                case.total_bytes,
                failure=each.failure,
            )
            if each.batches and not each.failure:
                summarize(result, each.batches, each.memory_bytes)
            results.append(result)
    add_ratios(results)
    return results


def _measure_case(
    running: Sequence[_Running], case: Case, effort: Effort, progress: Progress
) -> None:
    @contextlib.contextmanager
    def remembering(each: _Running) -> Any:
        try:
            yield
        except ContenderFailed as failure:
            each.failure = str(failure)
            progress(f"FAILED: {failure}")

    def batch(each: _Running, rounds: int, warm_up: int) -> Batch:
        tensors = case.tensors_of(each.contender.name)
        return each.contender.measure(case.dtype, tensors, warm_up, rounds, _TIMEOUT_S)

    for each in running:
        if each.failure:
            continue
        progress(f"{case.label}: {each.contender.name} warms up")
        with remembering(each):
            each.warm_up, each.rounds = 1, 1
            last = batch(each, 1, 1)
            while last.rounds < _ROUNDS_MAX and last.elapsed_s < effort.batch_s / 4:
                # With few rounds, a cold cache or the first touch of memory distorts the time.
                last = batch(each, min(_ROUNDS_MAX, last.rounds * 4), 1)
            round_s = last.elapsed_s / last.rounds
            each.rounds = rounds_for(round_s, effort.batch_s, effort.rounds_min, _ROUNDS_MAX)
            each.warm_up = 0 if round_s > effort.long_round_s else max(1, min(50, each.rounds // 4))
    for repetition in range(effort.repetitions):
        # The contender that comes first in one repetition comes last in the next.
        turn = repetition % max(1, len(running))
        for each in [*running[turn:], *running[:turn]]:
            if each.failure:
                continue
            progress(
                f"{case.label}: {each.contender.name}, {repetition + 1} of {effort.repetitions}"
            )
            with remembering(each):
                each.batches.append(batch(each, each.rounds, each.warm_up))
                if repetition == effort.repetitions - 1:
                    each.memory_bytes = each.contender.memory_held_bytes()


def summarize(result: Result, batches: Sequence[Batch], memory_bytes: int) -> None:
    """Computes a result's figures from its repetitions."""
    size = result.total_bytes
    result.rounds = batches[0].rounds
    result.gigabytes_per_s = [size * each.rounds / each.elapsed_s * 1e-9 for each in batches]
    result.gigabytes_per_s_median = median(result.gigabytes_per_s)
    rounds_s = [round_s for each in batches for round_s in each.rounds_s]
    result.median_s = median(rounds_s)
    result.medians_s = [median(each.rounds_s) for each in batches]
    result.p99_s = quantile(rounds_s, 0.99)
    gigabytes = size * 1e-9 * result.rank_count
    result.cpu_s_per_gigabyte = median([each.cpu_s / each.rounds / gigabytes for each in batches])
    wire = [[sent / each.rounds for sent in each.wire_bytes] for each in batches]
    if all(wire):
        result.wire_bytes_per_round = median([sum(hosts) for hosts in wire])
        result.wire_bytes_of_hosts = [median(of_host) for of_host in zip(*wire)]
    result.memory_bytes = memory_bytes


def add_ratios(results: Sequence[Result]) -> None:
    """Adds to each result its speed as a multiple of each other contender's in the same case."""
    for one in results:
        for other in results:
            if one is other or (one.setting, one.case) != (other.setting, other.case):
                continue
            if one.gigabytes_per_s_median and other.gigabytes_per_s_median:
                ratio = one.gigabytes_per_s_median / other.gigabytes_per_s_median
                one.ratios[other.contender] = ratio
