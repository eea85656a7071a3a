# SPDX-License-Identifier: Apache-2.0
"""Calls get values of wrong types. Each raises a TypeError that says what it was given.

The values that are no tensors come first, then other arguments, whose names the errors say.
"""

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


def _refuse(named: str, value: Any, call: Callable[..., Any], *arguments: Any) -> None:
    expect(TypeError, f"{named} is {value!r}; it must be", call, *arguments, **{named: value})


def _check_calls(hvd: Any, tensor: Any, integers: Any) -> None:
    """Checks the calls that Horovod's modules have alike."""
    for call in (hvd.allreduce, hvd.reducescatter):
        for factor in ("prescale_factor", "postscale_factor"):
            _refuse(factor, "2", call, tensor)
            _refuse(factor, "2", call, integers)
    for call in (hvd.grouped_allreduce, hvd.grouped_reducescatter):
        _refuse("postscale_factor", "2", call, [tensor])
    for root in ("0", 0.0):
        _refuse("root_rank", root, hvd.broadcast, tensor)
        _refuse("root_rank", root, hvd.broadcast_object, "an object")


def _check_compression(hvd: Any, tensor: Any) -> None:
    for call in (hvd.allreduce, hvd.reducescatter):
        _refuse("compression", "fp16", call, tensor)
    for call in (hvd.grouped_allreduce, hvd.grouped_reducescatter):
        _refuse("compression", "fp16", call, [tensor])


def _torch_arguments() -> None:
    import talweg.byteps.torch as bps
    import talweg.byteps.torch.cross_barrier as barrier
    import talweg.byteps.torch.parallel as parallel
    import talweg.horovod.torch as hvd
    import torch

    _check_calls(hvd, torch.ones(2), torch.ones(2, dtype=torch.int32))
    _check_compression(hvd, torch.ones(2))
    _refuse("compression", "fp16", bps.push_pull, torch.ones(2))
    model = torch.nn.Linear(2, 2)
    _refuse("compression", "fp16", parallel.DistributedDataParallel, model, None)
    for module in (hvd, bps):
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        pairs = list(model.named_parameters())
        _refuse("compression", "fp16", module.DistributedOptimizer, sgd, pairs)
        for passes in (1.5, "2"):
            _refuse("backward_passes_per_step", passes, module.DistributedOptimizer, sgd, pairs)
            _refuse("backward_passes_per_step", passes, barrier.CrossBarrier, model, sgd, pairs)
        _refuse("root_rank", "0", module.broadcast_parameters, model.state_dict())
        _refuse("root_rank", "0", module.broadcast_optimizer_state, sgd)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    _refuse("gradient_predivide_factor", "2", hvd.DistributedOptimizer, sgd)
    distributed = hvd.DistributedOptimizer(sgd)
    expect(TypeError, "step is '2'; it must be", distributed.set_backward_passes_per_step, "2")


def _tensorflow_arguments() -> None:
    import keras
    import talweg.byteps.keras as bps_keras
    import talweg.byteps.tensorflow as bps
    import talweg.horovod.keras as hvd_keras
    import talweg.horovod.tensorflow as hvd
    import talweg.horovod.tensorflow.keras as hvd_tensorflow_keras
    import tensorflow as tf

    tensor = tf.ones(2)
    _check_calls(hvd, tensor, tf.ones(2, tf.int32))
    _check_compression(hvd, tensor)
    _refuse("compression", "fp16", bps.push_pull, tensor)
    _refuse("root_rank", "0", bps.broadcast, tensor)
    for module in (hvd_keras, hvd_tensorflow_keras):
        _refuse("compression", "fp16", module.allreduce, tensor)
        _refuse("prescale_factor", "2", module.allreduce, tensor)
        _refuse("root_rank", "0", module.broadcast, tensor)
        _refuse("root_rank", "0", module.callbacks.BroadcastGlobalVariablesCallback)
    for module in (hvd, bps, bps_keras, hvd_keras, hvd_tensorflow_keras):
        _refuse("compression", "fp16", module.DistributedOptimizer, keras.optimizers.SGD())
    with tf.GradientTape() as tape:
        pass
    for module in (hvd, bps):
        _refuse("compression", "fp16", module.DistributedGradientTape, tape)
        _refuse("root_rank", "0", module.broadcast_variables, [tf.Variable([1.0])])
        _refuse("root_rank", "0", module.BroadcastGlobalVariablesHook)
    _refuse("gradient_predivide_factor", "2", hvd.DistributedOptimizer, keras.optimizers.SGD())
    for passes in (1.5, "2"):
        for distribute in (
            hvd.DistributedOptimizer,
            bps.DistributedOptimizer,
            hvd_tensorflow_keras.DistributedOptimizer,
            hvd_keras.PartialDistributedOptimizer,
        ):
            sgd = keras.optimizers.SGD()
            _refuse("backward_passes_per_step", passes, distribute, sgd)
        legacy = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        _refuse("backward_passes_per_step", passes, hvd.DistributedOptimizer, legacy)


def _mxnet_arguments() -> None:
    import mxnet as mx
    import talweg.byteps.mxnet as bps
    import talweg.horovod.mxnet as hvd

    _check_calls(hvd, mx.nd.ones((2,)), mx.nd.ones((2,), dtype="int32"))
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize()
    params = net.collect_params()
    _refuse("compression", "fp16", hvd.DistributedTrainer, params, "sgd")
    _refuse("compression_params", "fp16", bps.DistributedTrainer, params, "sgd")
    _refuse("gradient_predivide_factor", "2", hvd.DistributedTrainer, params, "sgd")
    for module in (hvd, bps):
        _refuse("root_rank", "0", module.broadcast_parameters, {"x": mx.nd.ones((2,))})
    no_rank: Any = "0"
    trainer = bps.DistributedTrainer(params, "sgd", root_rank=no_rank)
    expect(TypeError, "root_rank is '0'; it must be", trainer._init_params)


_ARGUMENTS: dict[str, Callable[[], None]] = {
    "numpy": lambda: None,
    "torch": _torch_arguments,
    "tensorflow": _tensorflow_arguments,
    "mxnet": _mxnet_arguments,
}


def main() -> None:
    framework = sys.argv[1]
    for name, calls in _CALLS[framework].items():
        module = importlib.import_module(name)
        module.init()
        for call in calls.split():
            print(f"case {name}.{call}", flush=True)
            _check(getattr(module, call.rstrip("*")), call.endswith("*"), framework)
    print(f"case arguments of {framework}", flush=True)
    _ARGUMENTS[framework]()


if __name__ == "__main__":
    main()
