#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what `talweg status` says as metrics for Prometheus.

    talweg_metrics.py DIRECTORY [OPTION OF TALWEG STATUS...]

DIRECTORY is that of node_exporter's textfile collector; the metrics are in its file talweg.prom.
Where the scheduler does not answer, `talweg_up 0` is all there is, and the exit status is 1. Where
`talweg status` takes longer than two minutes the file stays as it was, and the status is 1, too.
`$TALWEG` is the program that is asked: talweg. Needs Python 3.9 or later, and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from typing import Any

_TIMEOUT_S = 120


class Metrics:
    """Samples by metric, in the text format of Prometheus."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, kind: str, help_: str, value: Any, **labels: str) -> None:
        header = [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
        within = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        sample = (
            f"{name}{{{within}}} {float(value):.17g}" if within else f"{name} {float(value):.17g}"
        )
        self._lines.setdefault(name, header).append(sample)

    def text(self) -> str:
        return "".join(f"{line}\n" for lines in self._lines.values() for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unix_s(text: str) -> float:
    # Older versions of Python read six digits at most.
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")


# What a daemon tells: its key, the kind of metric, and help.
_Field = tuple[str, str, str]


def _of_daemon(
    metrics: Metrics, daemon: str, told: dict[str, Any], fields: tuple[_Field, ...], **labels: str
) -> None:
    for key, kind, help_ in fields:
        name = f"talweg_{daemon}_{key}{'_total' if kind == 'counter' else ''}"
        metrics.add(name, kind, help_, told[key], **labels)
    for key, value in sorted(told["counters"].items()):
        text = "What the daemon counts; some are sizes."
        metrics.add(f"talweg_{daemon}_counter", "untyped", text, value, **labels, counter=key)


def _of_scheduler(metrics: Metrics, told: dict[str, Any]) -> None:
    scheduler = told["scheduler"]
    name = "talweg_scheduler_start_time_seconds"
    metrics.add(name, "gauge", "When it started.", _unix_s(scheduler["started_at"]))
    name = "talweg_scheduler_store_writes_total"
    metrics.add(name, "counter", "Writes to its store.", scheduler["store_write_count"])
    for reason, count in sorted(scheduler["refused_by_code"].items()):
        name = "talweg_scheduler_refused_total"
        metrics.add(name, "counter", "Calls that it refused.", count, code=reason)
    name = "talweg_joins_waiting"
    metrics.add(name, "gauge", "Nodes that wait for room.", len(told.get("waiting", [])))


def _of_job(metrics: Metrics, told: dict[str, Any]) -> None:
    summary, members = told["job"]["summary"], told["job"]["members"]
    job = summary["name"]
    state = summary["state"].removeprefix("JOB_STATE_").lower()
    metrics.add("talweg_job_state", "gauge", "1: the job's state.", 1, job=job, state=state)
    for key, help_ in (
        ("epoch", "The number of its view."),
        ("member_count", "Nodes in its view."),
        ("rank_count", "Ranks in its view."),
        ("aggregator_count", "Aggregators in its view."),
    ):
        name = f"talweg_job_{key.removesuffix('_count')}{'s' if key != 'epoch' else ''}"
        metrics.add(name, "gauge", help_, summary[key], job=job)
    need = summary["spec"]["min_members"]
    metrics.add("talweg_job_members_needed", "gauge", "The fewest nodes.", need, job=job)
    for each in members:
        labels = {"job": job, "node": str(each["member"]["id"]["node_rank"])}
        there = each["state"] in ("MEMBER_STATE_JOINED", "MEMBER_STATE_PENDING")
        if there:
            name = "talweg_member_attached"
            metrics.add(name, "gauge", "1: connected to the scheduler.", each["attached"], **labels)
    for node, agent in sorted(told.get("agents", {}).items()):
        of_agent(metrics, agent, job=job, node=node)


def of_agent(metrics: Metrics, agent: dict[str, Any], **labels: str) -> None:
    answers = "state" in agent
    metrics.add("talweg_agent_up", "gauge", "1: the agent answers.", answers, **labels)
    if not answers:
        return
    fields = (
        ("rounds_done", "counter", "Rounds of tensors."),
        ("bytes_pushed", "counter", "Bytes that its ranks gave."),
        ("bytes_sent", "counter", "Bytes sent to aggregators."),
        ("bytes_received", "counter", "Bytes received from aggregators."),
        ("memory_bytes", "gauge", "Shared memory of its ranks."),
        ("open_round_count", "gauge", "Rounds that are not done."),
        ("tensor_count", "gauge", "Tensors."),
    )
    _of_daemon(metrics, "agent", agent, fields, **labels)


def of_aggregator(metrics: Metrics, name: str, told: dict[str, Any]) -> None:
    labels = {"aggregator": name}
    answers = "counters" in told
    metrics.add("talweg_aggregator_up", "gauge", "1: it answers.", answers, **labels)
    if not answers:
        return
    metrics.add("talweg_aggregator_draining", "gauge", "1: it leaves.", told["draining"], **labels)
    jobs = len(told["jobs"])
    metrics.add("talweg_aggregator_jobs", "gauge", "Jobs that it has heard of.", jobs, **labels)
    fields = (
        ("bytes_received", "counter", "Bytes received from agents."),
        ("bytes_sent", "counter", "Bytes sent to agents."),
        ("bytes_summed", "counter", "Bytes of results."),
        ("memory_bytes", "gauge", "Memory for slots and results that is used."),
        ("memory_bytes_max", "gauge", "Memory for slots and results."),
    )
    _of_daemon(metrics, "aggregator", told, fields, **labels)
    for job in told["jobs"]:
        for member in job["members"] if job["sums_known"] else []:
            share = member["came_last"] / job["sums_known"]
            of = {**labels, "job": job["name"], "node": str(member["node_rank"])}
            help_ = "In which share of the newest sums its contribution came last."
            metrics.add("talweg_member_last_share", "gauge", help_, share, **of)
            behind = float(member.get("behind", "0s").removesuffix("s"))
            help_ = "How long after the one before it, on average then."
            metrics.add("talweg_member_behind_seconds", "gauge", help_, behind, **of)


def metrics_of(told: dict[str, Any]) -> str:
    """`told` is the JSON of `talweg status`."""
    metrics = Metrics()
    metrics.add("talweg_up", "gauge", "1: the scheduler answers.", 1)
    _of_scheduler(metrics, told)
    for job in told["jobs"]:
        _of_job(metrics, job)
    for name, aggregator in sorted(told["aggregators"].items()):
        of_aggregator(metrics, name, aggregator)
    return metrics.text()


def _path(directory: str) -> str:
    return os.path.join(directory, "talweg.prom")


def _write(directory: str, text: str) -> None:
    # The collector reads files that end in .prom, and must see no half of one.
    path = _path(directory)
    unfinished = f"{path}.{os.getpid()}"
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(unfinished, 0o644)
    os.replace(unfinished, path)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    line = [os.environ.get("TALWEG", "talweg"), "status", "--json", *sys.argv[2:]]
    try:
        done = subprocess.run(
            line, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        print(
            f"talweg_metrics.py: {line[0]} status has not ended within {_TIMEOUT_S:g} s; "
            f"{_path(sys.argv[1])} stays as it was; --timeout-ms is how long each daemon may take",
            file=sys.stderr,
        )
        return 1
    if done.returncode == 0:
        _write(sys.argv[1], metrics_of(json.loads(done.stdout)))
        return 0
    metrics = Metrics()
    metrics.add("talweg_up", "gauge", "1: the scheduler answers.", 0)
    _write(sys.argv[1], metrics.text())
    return 1


if __name__ == "__main__":
    sys.exit(main())
