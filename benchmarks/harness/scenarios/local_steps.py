# SPDX-License-Identifier: Apache-2.0
"""Compares training over slow links that meets in each step with ranks that meet now and then."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netns import Network

from harness import hosts
from harness.contender import Command, ContenderFailed
from harness.contenders import Programs, talweg_python
from harness.hosts import Cluster
from harness.links import rate_text
from harness.report import Bar, markdown_table
from harness.scenario import Context, Section, noted

TITLE = "Local steps"
_MEGABITS_PER_S = 100
_HOSTS = ("host0", "host1")
_BATCH = 32  # What each of the two ranks takes.
_TIMEOUT_S = 900.0
_SYNCHRONOUS, _LOCAL_SGD, _STREAMING_INT8 = (
    "synchronous",
    "LocalSGD",
    "DiLoCo, streaming, int8",
)
# How near to the accuracy of synchronous training the others come.
_ACCURACY_WITHIN = 0.02
# A model travels once in `every` steps, and 65 of 256 bytes of it travel as int8. The links also
# carry headers.
_BYTES_OVER_EXPECTED = 1.15


@dataclass(frozen=True)
class Shape:
    """How many steps are made, and the arguments of those that meet now and then."""

    model: str
    steps: int
    every: int
    fragments: int
    delay: int


_SHAPES = {
    "smoke": Shape("tiny", 8, 4, 2, 1),
    "quick": Shape("mlp", 40, 20, 4, 10),
    "default": Shape("mlp", 400, 50, 4, 10),
    "full": Shape("mlp", 1000, 50, 4, 10),
}


def _ways(shape: Shape) -> dict[str, tuple[str, str]]:
    """Returns the peer's words and the encoding, by the name of the contender."""
    every = f"every={shape.every}"
    streaming = f"DiLoCo {every} fragments={shape.fragments} delay={shape.delay} mix=0.5"
    return {
        _SYNCHRONOUS: ("synchronous", "plain"),
        f"{_SYNCHRONOUS}, int8": ("synchronous", "int8"),
        _LOCAL_SGD: (f"LocalSGD {every}", "plain"),
        "DiLoCo": (f"DiLoCo {every}", "plain"),
        "DiLoCo, streaming": (streaming, "plain"),
        _STREAMING_INT8: (streaming, "int8"),
    }


def _measure(
    context: Context, network: Network, shape: Shape, name: str, index: int
) -> dict[str, Any]:
    """Makes all steps of one contender. Returns its figures."""
    programs: Programs = context.programs
    words, encoding = _ways(shape)[name]
    with tempfile.TemporaryDirectory(prefix="learned-") as directory:
        peer = str(programs.peers / "local_steps.py")
        command = talweg_python(programs, peer, directory, *words.split())
        variables = {"OMP_NUM_THREADS": "1", "TALWEG_ENCODING": encoding}
        rank = Command(command.line, {**command.environment, **variables})
        cluster = Cluster(network, _HOSTS, _HOSTS)
        context.progress(f"{name}: {shape.steps} steps")
        with hosts.talweg(programs, cluster, name, index, rank) as contender:
            batch = contender.measure(shape.model, [_BATCH], 0, shape.steps, _TIMEOUT_S)
        learned = Path(directory) / "learned.json"
        if not learned.exists():
            raise ContenderFailed(f"{name}: its ranks have not said what they have learned")
        figures: dict[str, Any] = json.loads(learned.read_text())
    figures["step_s"] = batch.elapsed_s / shape.steps
    figures["wire_bytes"] = sum(batch.wire_bytes) / shape.steps
    figures["longest_s"] = max(batch.rounds_s)
    return figures


def run(context: Context) -> Section:
    section = Section(TITLE)
    shape = _SHAPES[context.mode]
    with noted(context, section), Network(_HOSTS, context.programs.congestion_control) as network:
        for host in _HOSTS:
            network.shape(host, _MEGABITS_PER_S * 1_000_000)
        for index, name in enumerate(_ways(shape)):
            section.data[name] = _measure(context, network, shape, name, index)
        _tell(section, shape)
    return section


def _tell(section: Section, shape: Shape) -> None:
    data = section.data
    base = data[_SYNCHRONOUS]
    rows = [
        [
            name,
            f"{each['step_s'] * 1e3:.1f} ms",
            f"{base['step_s'] / each['step_s']:.1f}",
            f"{each['longest_s'] * 1e3:.0f} ms",
            f"{each['wire_bytes'] / 1e3:.1f} kB",
            f"{each['loss']:.4f}",
            f"{each['accuracy']:.4f}",
        ]
        for name, each in data.items()
    ]
    head = ["how", "a step", "as fast", "the longest", "travels a step", "test loss", "accuracy"]
    samples = len(_HOSTS) * _BATCH * shape.steps
    section.text = markdown_table(head, rows) + (
        f"\nTwo hosts with a rank and an aggregator each; links of {rate_text(_MEGABITS_PER_S)}. An MLP of\n"
        f"{base['parameters']:,} parameters learns scikit-learn's digits with AdamW, in {shape.steps} steps\n"
        f"({samples:,} samples). every={shape.every}; streaming: fragments={shape.fragments}, "
        f"delay={shape.delay}, mix=0.5.\n"
        "`a step` is the time of all steps, with their meetings, divided by their number; `travels` is\n"
        "what both hosts send.\n"
    )
    section.bars = bars(data, shape)


def bars(data: dict[str, Any], shape: Shape) -> list[Bar]:
    base = data[_SYNCHRONOUS]
    found = []
    for name in (_LOCAL_SGD, _STREAMING_INT8):
        share = data[name]["wire_bytes"] / base["wire_bytes"]
        expected = (65 / 256 if "int8" in name else 1.0) / shape.every
        text = f"{name}: bytes of a step over 1/{shape.every} of synchronous ones"
        text += " as int8" if "int8" in name else ""
        over = share / expected
        found.append(Bar(text, f"<= {_BYTES_OVER_EXPECTED}", over, over <= _BYTES_OVER_EXPECTED))
    worst = min(each["accuracy"] for each in data.values()) - base["accuracy"]
    text = "the least accuracy less that of synchronous training"
    found.append(Bar(text, f">= -{_ACCURACY_WITHIN}", worst, worst >= -_ACCURACY_WITHIN))
    return found
