# SPDX-License-Identifier: Apache-2.0
"""What Talweg's groups tell torch.distributed and its callers, which Gloo has not or has otherwise."""

from __future__ import annotations

import os
from unittest import mock

import talweg
import talweg.torch
import torch
import torch.distributed as dist
from expected_errors import expect

_RANK, _SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def check_devices_that_are_named() -> None:
    """device_id, on a machine that seems to have a GPU."""
    gpu = torch.device("cuda", 0)
    seems = [
        mock.patch.object(torch.accelerator, "current_accelerator", lambda: gpu),
        mock.patch.object(torch.accelerator, "device_count", lambda: 1),
    ]
    with seems[0], seems[1]:
        expect(
            talweg.InvalidArgument,
            'name one, as in "cpu:talweg,cuda:nccl"',
            dist.init_process_group,
            "talweg",
            device_id=gpu,
        )
        dist.init_process_group("cpu:talweg,cuda:gloo", device_id=gpu)
    group = dist.group.WORLD
    assert group._device_types == [torch.device("cpu"), torch.device("cuda")]
    assert isinstance(group._get_backend(gpu), dist.ProcessGroupGloo)
    assert group._get_backend(torch.device("cpu")) is group
    every = [None] * _SIZE
    dist.all_gather_object(every, _RANK)  # In host memory, where both are.
    assert every == list(range(_SIZE))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    check_devices_that_are_named()
    talweg.barrier()
