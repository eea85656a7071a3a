# SPDX-License-Identifier: Apache-2.0
"""Measures the gain by priorities in training steps over slow links, replayed and real."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from netns import Network

from harness import hosts, models
from harness.contender import Batch
from harness.contenders import talweg_python
from harness.figures import format_seconds, median, optimum_s
from harness.goodput import goodput_bytes_per_s
from harness.hosts import Cluster
from harness.measure import Case, Effort
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, noted, run_beside

TITLE = "Priorities"
_MANNERS = ("priority", "arrival", "apart")
_TITLES = {
    "priority": "priorities, preemption",
    "arrival": "first come, first served",
    "apart": "no overlap",
}
_OVER_ARRIVAL = 1.25
_QUARTER, _THIRD = 1 / 4, 1 / 3
_HOSTS, _MORE_HOSTS = 2, 2
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class _Replay:
    model: str
    megabits_per_s: int
    turns: int  # How many orders each manner gets.
    steps: int  # How many steps of each order count.
    divisor: int = 1  # The sizes of all tensors are divided by it.
    manners: tuple[str, ...] = _MANNERS
    forward_share: float = _QUARTER  # The forward pass, as a share of the communication's optimum.

    @property
    def title(self) -> str:
        name = models.TITLES[self.model]
        if self.divisor > 1:
            name = f"1/{self.divisor} of {name}"
        share = "a quarter" if self.forward_share == _QUARTER else "a third"
        return f"{name} over {self.megabits_per_s} Mb/s, forward {share} of the communication"


_REPLAYS: dict[str, tuple[_Replay, ...]] = {
    "smoke": (),
    "quick": (_Replay("vgg16", 500, 2, 2, divisor=8, manners=_MANNERS[:2]),),
    "default": (_Replay("vgg16", 500, 2, 2),),
    "full": (
        _Replay("vgg16", 500, 7, 4),
        _Replay("vgg16", 500, 4, 4, forward_share=_THIRD),
        _Replay("vgg16", 1000, 7, 4),
    ),
}
# A model of torch, its batch, and the rate of the links.
_REAL: dict[str, tuple[tuple[str, int, int], ...]] = {
    "smoke": (),
    "quick": (),
    "default": (("resnet18", 16, 1000),),
    "full": (("mlp", 32, 1000), ("resnet18", 16, 500), ("resnet18", 16, 1000)),
}
_OVERLAP, _ARRIVAL, _OPTIMIZER, _DDP = (
    "DistributedOptimizer, forward waits layer by layer",
    "the same, first come, first served",
    "DistributedOptimizer, backward waits for all",
    "DDP over Gloo",
)


def run(context: Context) -> Section:
    section = Section(TITLE)
    for replay in _REPLAYS[context.mode]:
        with noted(context, section, f", {replay.title}"):
            section.text += _run_replay(context, section, replay)
    for model, batch, rate in _REAL[context.mode]:
        with noted(context, section, f", {model}"):
            section.text += _run_real(context, section, model, batch, rate)
    if not _REPLAYS[context.mode] and not _REAL[context.mode]:
        section.text = "Not in this mode: steps over slow links take long.\n"
    return section


def _cluster(stack: ExitStack, context: Context, megabits_per_s: int) -> Cluster:
    rank_hosts = tuple(f"host{index}" for index in range(_HOSTS))
    more = tuple(f"aggregator{index}" for index in range(_MORE_HOSTS))
    names = (*rank_hosts, *more)
    network = stack.enter_context(Network(names, context.programs.congestion_control))
    for host in names:
        network.shape(host, megabits_per_s * 1_000_000)
    return Cluster(network, rank_hosts, names)


def _run_replay(context: Context, section: Section, replay: _Replay) -> str:
    programs = context.programs
    title = replay.title
    tensors = models.DIRECTORY / f"{replay.model}.tsv"
    profile_path = models.DIRECTORY / f"{replay.model}_profile.tsv"
    profile = models.read_profile(profile_path)
    model = models.read(replay.model)
    size = sum(models.backward_bytes(model, replay.divisor))
    times_s: dict[str, list[float]] = {manner: [] for manner in replay.manners}
    with ExitStack() as stack:
        context.progress(f"{title} starts")
        cluster = _cluster(stack, context, replay.megabits_per_s)
        network = cluster.network
        goodput = goodput_bytes_per_s(network, "host0", "host1", replay.megabits_per_s)
        communication_s = optimum_s(_HOSTS, _MORE_HOSTS, size, goodput)
        forward_s = replay.forward_share * communication_s
        peer = str(programs.peers / "replay.py")
        line = (peer, str(tensors), str(profile_path), str(replay.divisor))
        rank = talweg_python(programs, *line)
        job = stack.enter_context(hosts.talweg(programs, cluster, rank=rank))
        for turn in range(replay.turns):
            for manner in replay.manners:
                context.progress(f"{title}: {_TITLES[manner]}, {turn + 1} of {replay.turns}")
                order = [round(forward_s * 1e6)]
                batch = job.measure(manner, order, 0, 1 + replay.steps, _TIMEOUT_S)
                times_s[manner] += without_first(batch)
    scale = forward_s / sum(row[1] for row in profile)
    compute_s = scale * sum(row[1] + row[2] for row in profile)
    bound_s = max(compute_s, communication_s)
    steps_s = {manner: median(each_s) for manner, each_s in times_s.items()}
    ratio = steps_s["arrival"] / steps_s["priority"]
    best = ideal_gain(profile, model, replay.forward_share)
    text = (
        f"{title}: first come, first served over priorities ({best:.3g} if neither lost any time)"
    )
    section.bars.append(Bar(text, f">= {_OVER_ARRIVAL}", ratio, ratio >= _OVER_ARRIVAL))
    section.data[title] = {
        "steps_s": steps_s,
        "bound_s": bound_s,
        "compute_s": compute_s,
        "ideal_gain": best,
        "communication_optimum_s": communication_s,
        "goodput_bytes_per_s": goodput,
        "profile": profile_path.read_text().splitlines()[0].removeprefix("# "),
        "profile_scale": scale,
    }
    rows = [
        [_TITLES[manner], f"{steps_s[manner]:.3f} s", f"{steps_s[manner] / bound_s:.3f}"]
        for manner in replay.manners
    ]
    rows.append(["bound: max(compute, optimum of communication)", f"{bound_s:.3f} s", "1"])
    return (
        f"{title}, {_HOSTS} hosts and {_MORE_HOSTS} more for aggregators. Computing is replayed by sleeping\n"
        f"(as if on a GPU) from the profile {section.data[title]['profile']}, times {scale:.3g}, so that the\n"
        f"forward pass is that part of the optimum of the communication, {communication_s:.2f} s:\n\n"
        + markdown_table(["how", "a step", "over the bound"], rows)
        + "\n"
    )


def ideal_gain(
    profile: list[tuple[str, float, float]], model: models.Tensors, forward_share: float
) -> float:
    """Returns what priorities gain over first come, first served, if neither loses any time.

    In both cases the link is always busy. With first come, first served the gradient of the first
    layer comes last, and the whole forward pass follows. With priorities the gradient of the
    largest layer comes last, and only the forward pass from that layer on follows.
    """
    count = {name: 0 for name, _, _ in profile}
    for tensor, shape in model:
        count[tensor.rpartition(".")[0]] += math.prod(shape)
    largest = max(count, key=lambda name: count[name])
    names = [name for name, _, _ in profile]
    forward_s = [row[1] for row in profile]
    behind = sum(forward_s[names.index(largest) :]) / sum(forward_s)
    return (1 + forward_share) / (1 + forward_share * behind)


def without_first(batch: Batch) -> list[float]:
    """Returns the steps of all ranks without their first steps, which have nothing to wait for."""
    each = batch.rounds
    return [
        round_s
        for begin in range(0, len(batch.rounds_s), each)
        for round_s in batch.rounds_s[begin + 1 : begin + each]
    ]


def _run_real(context: Context, section: Section, model: str, batch: int, rate: int) -> str:
    programs = context.programs
    peer = str(programs.peers / "training_step.py")
    setting = f"{model}, batch {batch}, over {rate} Mb/s"
    effort = context.effort
    with ExitStack() as stack:
        cluster = _cluster(stack, context, rate)
        makers: list[tuple[str, Make]] = [
            (name, partial(hosts.talweg, programs, cluster, name, index, rank))
            for index, (name, rank) in enumerate(
                (
                    (_OVERLAP, talweg_python(programs, peer, "overlap")),
                    (_ARRIVAL, talweg_python(programs, peer, "arrival")),
                    (_OPTIMIZER, talweg_python(programs, peer, "optimizer")),
                )
            )
        ]
        makers.append((_DDP, partial(hosts.python_ranks, cluster, _DDP, [peer, "ddp"])))
        # A turn has several steps, because the first one has less to wait for.
        context.effort = Effort(effort.repetitions, 20 * effort.batch_s)
        try:
            case = Case(setting, (batch,), model)
            results = run_beside(context, "priorities", setting, makers, _HOSTS, [case])
        finally:
            context.effort = effort
    section.failed = section.failed or any(result.failure for result in results)
    rows = []
    for result in results:
        # It takes the mean and not the median, because with overlap one step may save time for
        # which another one waits.
        step_s = result.total_bytes * 1e-9 / result.gigabytes_per_s_median if result.rounds else 0
        rows.append([result.contender, format_seconds(step_s) if step_s else "failed"])
        section.data.setdefault(setting, {})[result.contender] = step_s
    return f"A real step, {setting}:\n\n" + markdown_table(["how", "a step"], rows) + "\n"
