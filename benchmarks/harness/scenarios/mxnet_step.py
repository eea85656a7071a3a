# SPDX-License-Identifier: Apache-2.0
"""Measures what byteps.mxnet adds to MXNet's training steps, beside MXNet's parameter server."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial

from harness.contender import Command, Contender
from harness.contenders import Missing, Programs
from harness.figures import format_seconds
from harness.measure import Result
from harness.report import Bar, markdown_table
from harness.scenario import Context, Make, Section, find
from harness.scenarios.training_step import added_bar, cpu_s_per_step, measure_steps

TITLE = "A training step of MXNet's"
_SETTING = "2 nodes"
_RANKS = 2
_NONE, _DIST_SYNC, _TRAINER, _STORE = (
    "no communication",
    "MXNet's dist_sync",
    "byteps.mxnet.DistributedTrainer",
    'kvstore="byteps"',
)
_OURS = {_TRAINER: "trainer", _STORE: "store"}
_OF_DIST_SYNC = 1 / 2
_CASES: dict[str, tuple[tuple[str, int], ...]] = {
    "smoke": (("tiny", 2),),
    "quick": (("mlp", 32),),
    "default": (("mlp", 32),),
    "full": (("mlp", 8), ("mlp", 32), ("mlp", 128)),
}
# Each rank and MXNet's server compute with one thread, as in the scenario training_step.
_THREADS = {"OMP_NUM_THREADS": "1", "MXNET_CPU_WORKER_NTHREADS": "1"}


def _python(programs: Programs) -> str:
    python = programs.peers.parents[1] / ".cache" / "venv-mxnet" / "bin" / "python"
    if not python.exists():
        raise Missing("MXNet is not installed; bazel/prepare --for=test installs it")
    return str(python)


def _talweg(programs: Programs, name: str, network: Sequence[str]) -> Contender:
    run = [str(programs.tool), "run", "--nodes=2", "--ranks-per-node=1", "--"]
    rank = [_python(programs), str(programs.peers / "mxnet_step.py"), _OURS[name]]
    environment = {
        **_THREADS,
        "PYTHONPATH": str(programs.python),
        "TALWEG_LIBRARY": str(programs.library),
    }
    command = Command((*network, *run, *rank), environment)
    return Contender(name, _RANKS, [command], counts_loopback=bool(network))


def _alone(programs: Programs, name: str) -> Contender:
    line = (_python(programs), str(programs.peers / "mxnet_step.py"), "none")
    return Contender(
        name, _RANKS, [Command((*line, str(rank)), _THREADS) for rank in range(_RANKS)]
    )


def _dist_sync(programs: Programs, name: str, network: Sequence[str]) -> Contender:
    """Returns one shell in one network. It starts scheduler, server and workers, and ends with the
    last worker.
    """
    script = (
        "python=$1; peer=$2; count=$3; trap 'kill $(jobs -p) 2>/dev/null' EXIT; "
        'for role in scheduler server; do DMLC_ROLE=$role "$python" -c "import mxnet" & done; '
        'workers=; for rank in $(seq 0 $((count - 1))); do DMLC_ROLE=worker "$python" "$peer" '
        'dist_sync $rank & workers="$workers $!"; done; wait $workers'
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **_THREADS,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(_RANKS),
        "DMLC_INTERFACE": "lo",
        "DMLC_NODE_HOST": "127.0.0.1",
    }
    peer = str(programs.peers / "mxnet_step.py")
    line = (*network, "bash", "-c", script, "bash", _python(programs), peer, str(_RANKS))
    return Contender(name, _RANKS, [Command(line, environment)], counts_loopback=bool(network))


def run(context: Context) -> Section:
    programs = context.programs
    try:
        _python(programs)
    except Missing as missing:
        context.notes.append(f"{TITLE} is left out: {missing}")
        return Section(TITLE)
    network = programs.in_own_network()
    makers: list[tuple[str, Make]] = [
        (_NONE, partial(_alone, programs, _NONE)),
        (_DIST_SYNC, partial(_dist_sync, programs, _DIST_SYNC, network)),
        *((name, partial(_talweg, programs, name, network)) for name in _OURS),
    ]
    results = measure_steps(context, "mxnet_step", _SETTING, makers, _CASES[context.mode])
    return _section(results)


def _section(results: list[Result]) -> Section:
    section = Section(TITLE)
    section.failed = any(result.failure for result in results)
    rows = []
    for result in results:
        base = find(results, _SETTING, result.case, _NONE)
        if result.failure:
            rows.append([result.case, result.contender, "failed", "", ""])
            continue
        added_s = result.median_s - base.median_s if base else None
        rows.append(
            [
                result.case,
                result.contender,
                format_seconds(result.median_s),
                "" if added_s is None or result is base else f"{added_s * 1e3:+.3g} ms",
                format_seconds(cpu_s_per_step(result)),
            ]
        )
        section.data.setdefault(result.case, {})[result.contender] = {
            "step_s": result.median_s,
            "added_s": added_s,
            "cpu_s_per_step": cpu_s_per_step(result),
        }
    section.bars = _bars(results)
    section.text = markdown_table(["model", "how", "step", "added", "CPU a step"], rows) + (
        "\nTwo nodes of one rank each on this machine, over loopback, with one aggregator or one of MXNet's\n"
        "servers. One thread a process, SGD with momentum; `mlp` has 24.9 M parameters. A step is over when\n"
        "MXNet's engine has nothing left to do. `added` is the median step less that of two processes that\n"
        "do not communicate.\n"
    )
    return section


def _bars(results: Sequence[Result]) -> list[Bar]:
    return [
        added_bar(
            results,
            _SETTING,
            case,
            (_NONE, _DIST_SYNC, name),
            _OF_DIST_SYNC,
            f"{name}: added time over what MXNet's dist_sync adds",
        )
        for case in dict.fromkeys(result.case for result in results)
        for name in _OURS
    ]
