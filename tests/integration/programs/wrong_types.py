# SPDX-License-Identifier: Apache-2.0
"""Calls get values that are no tensors. Each raises a TypeError that says what it was given."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from expected_errors import expect

# The calls that take a tensor, by module. A star marks those that take a list of tensors.
_CALLS = {
    "numpy": {"talweg": "push_pull all_gather all_to_all reduce_scatter"},
    "torch": {
        "talweg.torch": "push_pull",
        "talweg.byteps.torch": "push_pull push_pull_async push_pull_inplace push_pull_async_inplace",
        "talweg.horovod.torch": "allreduce allreduce_async allgather alltoall reducescatter "
        "grouped_allreduce* grouped_allreduce_async*",
    },
    "tensorflow": {
        "talweg.tensorflow": "push_pull",
        "talweg.byteps.tensorflow": "push_pull",
        "talweg.horovod.tensorflow": "allreduce allgather alltoall reducescatter "
        "grouped_allreduce*",
    },
    "mxnet": {
        "talweg.byteps.mxnet": "byteps_push_pull",
        "talweg.horovod.mxnet": "allreduce allgather alltoall reducescatter grouped_allreduce*",
    },
}


class NoTensor:
    """Nothing that a framework makes a tensor of."""


def _check(call: Callable[..., Any], takes_list: bool, framework: str) -> None:
    named = ("x",) if framework == "numpy" and call.__name__.startswith("push_pull") else ()
    expect(TypeError, f"got {NoTensor.__name__}", call, NoTensor(), *named)
    if takes_list:
        expect(TypeError, f"got {NoTensor.__name__}", call, [NoTensor()])


def main() -> None:
    framework = sys.argv[1]
    for name, calls in _CALLS[framework].items():
        module = importlib.import_module(name)
        module.init()
        for call in calls.split():
            print(f"case {name}.{call}", flush=True)
            _check(getattr(module, call.rstrip("*")), call.endswith("*"), framework)


if __name__ == "__main__":
    main()
