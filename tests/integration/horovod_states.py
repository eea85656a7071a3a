# SPDX-License-Identifier: Apache-2.0
"""The case of horovod_torch.py that checks hvd.elastic in a job whose nodes stay."""

from __future__ import annotations

import importlib
from typing import Any

import talweg
import talweg.horovod.torch as hvd
import torch
from expected_errors import expect


def disagreeing_once() -> None:
    """An operation that fails at all ranks has them restore the state, and begin again."""
    state, begun = hvd.elastic.ObjectState(batch=3 + hvd.rank(), run="first"), [0]

    @hvd.elastic.run
    def train(state: Any) -> None:
        begun[0] += 1
        assert (state.batch, state.run) == (3, "first"), (state.batch, state.run)
        state.batch, state.run = 4, "second"
        rows = 2 + hvd.rank() if begun[0] == 1 else 2
        hvd.allreduce(torch.ones(rows), name="disagreeing_once")

    train(state)
    assert begun == [2 if hvd.size() > 1 else 1], begun
    assert (state.batch, state.run) == (4, "second")


def elastic_where_nodes_stay() -> None:
    """hvd.elastic.run returns its function's result. A state goes back to its last commit."""
    state = hvd.elastic.ObjectState(batch=0)

    @hvd.elastic.run
    def train(state: Any) -> int:
        while state.batch < 3:
            state.batch += 1
            state.commit()
        return int(state.batch)

    assert train(state) == 3
    state.batch = 9
    state.restore()
    assert state.batch == 3
    disagreeing_once()
    sampler = hvd.elastic.ElasticSampler(range(8 * hvd.size()))
    alone = hvd.elastic.TorchState(sampler=sampler)  # A state needs no model.
    alone.sync()
    sampler.record_batch(0, 2)
    alone.commit()
    sampler.record_batch(1, 2)
    alone.restore()
    assert sampler.processed_num == 2 * hvd.size()
    alone.sync()
    assert len(sampler) == 6
    assert importlib.import_module("horovod.torch.elastic.state").TorchState is type(alone)
    assert isinstance(
        sampler, importlib.import_module("horovod.torch.elastic.sampler").ElasticSampler
    )
    state_module = importlib.import_module("talweg.horovod.torch.elastic.state")
    for call in (
        state_module.get_handler_registry,
        lambda: state_module.set_handler_registry([]),
        lambda: type("Mine", (state_module.StateHandler,), {}),
    ):
        expect(talweg.errors.Unsupported, "load_state_dict", call)
