# SPDX-License-Identifier: Apache-2.0
"""Measures a job's steps while another job misuses their aggregator, and without the other job."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from netns import Network

from harness.contender import Command, Contender, ContenderFailed
from harness.contenders import TALWEG, Programs, talweg_rank
from harness.cpu_cap import CpuCap, NoCap
from harness.figures import format_bytes, format_seconds, median, parse_bytes, rounds_for
from harness.hosts import when_ready
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section, noted

TITLE = "Fairness"
_RATIO_MAX = 1.10
_TIMEOUT_S = 300.0
_RANK_HOSTS = ("host0", "host1")
_SERVER, _RUDE = "server", "rude"
_PORT = 7447
# The rates of all other links and of the attacker's link.
_LINK, _RUDE_LINK = 1_000_000_000, 50_000_000
_RUDE_CORES = 0.2
_MANNERS = {
    "greedy": "sums 64 tensors of 256 KiB without end",
    "refused": "contributes to tensors that nobody has declared",
    "garbage": "sends bytes that are not a frame",
    "silent": "holds 400 connections and says nothing",
    "deaf": "asks without end for answers of 2000 bytes, and hardly reads them",
}
_SIZES = {
    "smoke": ("64KiB",),
    "quick": ("4MiB",),
    "default": ("64KiB", "4MiB", "25MB"),
    "full": ("64KiB", "4MiB", "25MB"),
}
_TCP, _FABRIC = "tcp", "libfabric"
# The data transports of both jobs, and the manners that are tried over each.
_MANNERS_OVER: dict[str, Sequence[str]] = {_TCP: tuple(_MANNERS), _FABRIC: ("garbage",)}
_SMOKE_MANNERS_OVER: dict[str, Sequence[str]] = {_TCP: ("greedy", "deaf"), _FABRIC: ("garbage",)}
# How often the attacker comes and goes.
_TURNS = {"smoke": 1, "quick": 3, "default": 7, "full": 15}
# A measurement lasts so many of the mode's batches.
_BATCHES = 4


@dataclass
class _Measured:
    """Steps of one size with and without one manner of attack, in turn."""

    size: int
    transport: str
    manner: str
    alone_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return median([beside / alone for beside, alone in zip(self.beside_s, self.alone_s)])


def run(context: Context) -> Section:
    section = Section(TITLE)
    measured: list[_Measured] = []
    with noted(context, section), ExitStack() as stack:
        hosts = (*_RANK_HOSTS, _SERVER, _RUDE)
        network = stack.enter_context(Network(hosts, context.programs.congestion_control))
        for host in hosts:
            network.shape(host, _RUDE_LINK if host == _RUDE else _LINK)
        cap: tuple[str, ...] = ("nice", "-n", "19")
        try:
            cap = stack.enter_context(CpuCap(_RUDE_CORES)).enter()
        except NoCap as refusal:
            context.notes.append(f"{TITLE}: the attacker's CPU is not capped: {refusal}")
        manners_over = _SMOKE_MANNERS_OVER if context.mode == "smoke" else _MANNERS_OVER
        for transport, manners in manners_over.items():
            with _job(context.programs, network, transport) as job:
                for size in map(parse_bytes, _SIZES[context.mode]):
                    for manner in manners:
                        each = _Measured(size, transport, manner)
                        _measure(context, network, job, cap, each)
                        measured.append(each)
    rows = []
    for each in measured:
        rows.append(
            [
                format_bytes(each.size),
                each.manner if each.transport == _TCP else f"{each.manner}, over {each.transport}",
                format_seconds(median(each.alone_s)),
                format_seconds(median(each.beside_s)),
                f"{each.ratio:.3f}",
            ]
        )
        over = "" if each.transport == _TCP else f" over {each.transport}"
        text = f"{format_bytes(each.size)}, another job is {each.manner}{over}: step time over that without it"
        holds = each.ratio <= _RATIO_MAX
        section.bars.append(Bar(text, f"<= {_RATIO_MAX:.2f}", each.ratio, holds))
        section.data[f"{each.size} {each.manner}{over}"] = {
            "alone_s": each.alone_s,
            "beside_s": each.beside_s,
        }
    section.text = (
        f"Two hosts with a rank each, and one aggregator for all jobs, with links of {_LINK // 10**6} Mb/s.\n"
        f"The other job's one member has a link of {_RUDE_LINK // 10**6} Mb/s and {_RUDE_CORES:g} of a core.\n"
        "A step is one round of one tensor. Each turn measures steps without that member, then beside it.\n"
        "Both jobs use Talweg's own TCP, or libfabric's tcp where the table says so.\n"
        "The times are medians over turns, and the ratio is the median of each turn's.\n\n"
        + "".join(f"- {name}: {text}\n" for name, text in _MANNERS.items())
        + "\n"
        + markdown_table(["step", "other job", "without it", "beside it", "ratio"], rows)
    )
    return section


def _job(programs: Programs, network: Network, transport: str) -> Contender:
    """Returns a job with one rank on each rank host. Scheduler and aggregator are on the server."""
    environment = {"TALWEG_DATA_TRANSPORT": transport}
    tool = str(programs.tool)
    scheduler = f"{network.address(_SERVER)}:{_PORT}"
    served = (*network.enter(_SERVER), tool)
    quiet = "--log_level=off"
    line = (*served, "scheduler", f"--listen={scheduler}", "--in_memory", "--insecure", quiet)
    commands = [Command(line, is_daemon=True)]
    directory = tempfile.TemporaryDirectory(prefix="ready-")
    line = (*served, "aggregator", f"--scheduler={scheduler}", quiet)
    line += (f"--listen={network.address(_SERVER)}:0", f"--ready_file={directory.name}/0")
    commands.append(Command(line, dict(environment), is_daemon=True))
    for node_rank, host in enumerate(_RANK_HOSTS):
        shell = (*network.enter(host), *when_ready(directory.name, 1))
        run = (*shell, tool, "run", f"--scheduler={scheduler}", f"--nodes={len(_RANK_HOSTS)}")
        run += (f"--master-addr={network.address(_RANK_HOSTS[0])}", f"--node-rank={node_rank}")
        line = (*run, "--ranks-per-node=1", "--", *talweg_rank(tool))
        commands.append(Command(line, dict(environment)))
    pids = [network.pid(host) for host in (*_RANK_HOSTS, _SERVER)]
    contender = Contender(TALWEG, len(_RANK_HOSTS), commands, wire_pids=pids)
    contender.on_close(directory.cleanup)
    return contender


@contextmanager
def _attacked(
    programs: Programs, network: Network, cap: Sequence[str], name: str, manner: str
) -> Iterator[None]:
    """A context in which a member of another job attacks in that manner."""
    scheduler = f"{network.address(_SERVER)}:{_PORT}"
    line = (*network.enter(_RUDE), *cap, str(programs.rude_member))
    process = subprocess.Popen(
        [*line, scheduler, "none", name, manner], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        # The attacker has begun when it reports its first piece of work.
        words, last = "", ""
        while not words.startswith("done"):
            last, words = words.strip(), process.stdout.readline()
            if not words:
                raise ContenderFailed(f"the attacker ({manner}) ended: {last}")
        yield
        if process.poll() is not None:
            raise ContenderFailed(f"the attacker ({manner}) ended while it was measured")
    finally:
        process.kill()
        process.communicate()


def _measure(
    context: Context, network: Network, job: Contender, cap: Sequence[str], measured: _Measured
) -> None:
    size, manner = measured.size, measured.manner
    first = job.measure("f32", [size], 3, 5, _TIMEOUT_S)
    rounds = rounds_for(median(first.rounds_s), _BATCHES * context.effort.batch_s, 5, 5000)
    for turn in range(_TURNS[context.mode]):
        context.progress(f"{format_bytes(size)}, {manner}, {measured.transport}, turn {turn + 1}")
        alone = job.measure("f32", [size], 2, rounds, _TIMEOUT_S)
        measured.alone_s.append(median(alone.rounds_s))
        name = f"{manner}-{size}-{turn}"
        with _attacked(context.programs, network, cap, name, manner):
            beside = job.measure("f32", [size], 2, rounds, _TIMEOUT_S)
        measured.beside_s.append(median(beside.rounds_s))
