# SPDX-License-Identifier: Apache-2.0
"""Checks timelines, for horovod_torch.py."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import talweg.horovod.torch as hvd
import torch
from expected_errors import expect


def _events(text: str) -> list[Any]:
    """Returns the events of a timeline, which may still be open, as Chrome reads it."""
    events: list[Any] = json.loads(text if text.rstrip().endswith("]") else f"{text}]")
    return events


def _rows_of_calls(path: Path) -> None:
    """Calls without a name, and an optimizer's gradients, have rows. Talweg's own rounds have none."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    distributed = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.start_timeline(str(path))
    for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
        call(torch.ones(hvd.size()))
    hvd.broadcast(torch.ones(2), 0)
    hvd.grouped_allreduce([torch.ones(2)] * 2, name="group")
    model(torch.ones(1, 3)).sum().backward()
    distributed.step()
    hvd.stop_timeline()
    if hvd.rank() != 0:
        return
    events = json.loads(path.read_text())
    names = {event["pid"]: event["args"].get("name") for event in events if event["ph"] == "M"}
    rows = [(names[event["pid"]], event["name"]) for event in events if event["ph"] == "X"]
    kinds = ("allreduce", "allgather", "alltoall", "reducescatter", "broadcast")
    if hvd.size() > 1:
        assert rows[:5] == [(f"{kind}.noname", kind.upper()) for kind in kinds], rows
    assert [kind for _, kind in rows[:5]] == [kind.upper() for kind in kinds], rows
    assert [kind for _, kind in rows[5:]] == ["ALLREDUCE"] * 4, rows
    of_group = [f"grouped_allreduce.group_{number}of2" for number in (1, 2)]
    assert [name for name, _ in rows[5:7]] == of_group, rows
    gradients = [name.partition(".gradient.")[2] for name, _ in rows[7:]]
    assert gradients == ["weight", "bias"], rows


def timelines() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "timeline.json"
        expect(ValueError, "HOROVOD_TIMELINE", hvd.start_timeline, str(path))
        with mock.patch.dict(os.environ, HOROVOD_TIMELINE="DYNAMIC"):
            for marks in (True, False):
                hvd.start_timeline(str(path), mark_cycles=marks)
                hvd.allreduce(torch.ones(3), name="traced")
                before = path.read_text() if hvd.rank() == 0 else ""
                hvd.allreduce(torch.ones(3), name=f"traced.{marks}")
                hvd.stop_timeline()
                if hvd.rank() != 0:
                    assert not path.exists()
                    continue
                assert len([e for e in _events(before) if e["name"] == "ALLREDUCE"]) == 1
                events = json.loads(path.read_text())
                told = [event["args"] for event in events if event["ph"] == "M"]
                assert "start_time_since_epoch_in_micros" in told[0]
                names = [each.get("name") for each in told[1:]]
                assert names == ["allreduce.traced", f"allreduce.traced.{marks}"]
                kinds = [event["name"] for event in events if event["ph"] != "M"]
                turn = ["CYCLE_START"] * marks + ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"]
                assert kinds == turn * 2, kinds
            expect(ValueError, "start_timeline", hvd.stop_timeline)
            _rows_of_calls(path)
