# SPDX-License-Identifier: Apache-2.0
"""One rank of mxnet_test.py. It checks what BytePS's documents and source say of byteps.mxnet."""

from __future__ import annotations

import inspect
import os
import tempfile
from typing import Any

import mxnet as mx
import mxnet_models as models
import numpy as np
import talweg
import talweg.byteps.mxnet as bps
from expected_errors import expect, expect_warning
from mxnet import gluon

_DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")


def _parameters(function: Any) -> str:
    return ", ".join(
        each.name if each.default is each.empty else f"{each.name}={each.default}"
        for each in inspect.signature(function).parameters.values()
    )


def signatures() -> None:
    wanted = {
        bps.init: "lazy=True",
        bps.resume: "num_workers, num_servers, global_rank, context=None",
        bps.byteps_push_pull: "tensor, version=0, priority=0, name=None, is_average=True",
        bps.byteps_declare_tensor: "name, kwargs",
        bps.broadcast_parameters: "params, root_rank=0",
        bps.DistributedOptimizer: "optimizer",
        bps.DistributedTrainer: "params, optimizer, optimizer_params=None, root_rank=0, "
        "compression_params=None",
    }
    for function, text in wanted.items():
        assert _parameters(function) == text, (function, _parameters(function))
    for name in bps.__all__:
        assert hasattr(bps, name), name


def before_init() -> None:
    assert (bps.rank(), bps.size()) == (0, 1)
    expect(mx.MXNetError, "not initialized", bps.byteps_push_pull, mx.nd.ones((2,)))
    expect(mx.MXNetError, "not initialized", bps.byteps_declare_tensor, "x")
    expect(mx.MXNetError, "not initialized", mx.kv.create, "byteps")


def push_pulls() -> None:
    size, rank = bps.size(), bps.rank()
    ranks: np.ndarray = np.arange(size) + 1
    for dtype in _DTYPES:
        for shape in ((4,), (3, 2), (2, 2, 2)):
            tensor = mx.nd.array(np.full(shape, rank + 1), dtype=dtype)
            name = f"{dtype}.{len(shape)}"
            bps.byteps_declare_tensor(name)
            bps.byteps_push_pull(tensor, 0, -1, name, False)
            assert (tensor.asnumpy() == ranks.sum()).all() and tensor.dtype == np.dtype(dtype).type
            bps.byteps_push_pull(tensor)  # The call has no name, and averages.
            assert np.allclose(tensor.asnumpy(), ranks.sum(), rtol=1e-3)
    # The push waits until the product is computed, and the reader waits for the average.
    product = mx.nd.ones((200, 200)) * (rank + 1)
    for _ in range(20):
        product = mx.nd.dot(product, mx.nd.ones((200, 200))) / 200
    bps.byteps_push_pull(product, name="product")
    product = product * 2
    assert np.allclose(product.asnumpy(), size + 1, rtol=1e-5)
    expect(ValueError, "version", bps.byteps_push_pull, product, version="x")
    expect(ValueError, "NDArray", bps.byteps_push_pull, np.ones(1))
    expect(ValueError, "byteps_k is no keyword", bps.byteps_declare_tensor, "x", byteps_k="1")
    expect(ValueError, "str", bps.byteps_declare_tensor, 1)


def broadcasts() -> None:
    size, rank = bps.size(), bps.rank()
    for _ in range(2):
        params = {"a": mx.nd.ones((2,)) * rank, "b": mx.nd.ones((2, 2)) * rank}
        bps.broadcast_parameters(params, root_rank=size - 1)
        assert all((each.asnumpy() == size - 1).all() for each in params.values())
    expect(ValueError, "invalid params", bps.broadcast_parameters, [mx.nd.ones((1,))])
    gluons = models.network(0).collect_params()
    expect(TypeError, "DistributedTrainer", bps.broadcast_parameters, gluons)


def stores() -> None:
    size, rank = bps.size(), bps.rank()
    store = mx.kv.create("byteps")
    assert (store.type, store.rank, store.num_workers) == ("byteps", rank, size)
    assert not store.is_capable("optimizer")
    value, out = mx.nd.ones((2, 3)) * rank, mx.nd.zeros((2, 3))
    store.broadcast("w", value, out)
    assert (out.asnumpy() == 0).all()
    total = size * (size - 1) / 2
    store.pushpull("w", value, out=out)
    assert (out.asnumpy() == total).all() and (value.asnumpy() == rank).all()
    store.pushpull(3, value)
    assert (value.asnumpy() == total).all()
    store.pushpull(
        ["x", "y"], [[mx.nd.ones((1,))] * 2, mx.nd.ones((2,))], out=[out[0, :1], out[1, :2]]
    )
    assert out.asnumpy()[0, 0] == 2 * size and out.asnumpy()[1, :2].tolist() == [size, size]
    expect(ValueError, "update_on_kvstore", store.set_optimizer, mx.optimizer.create("sgd"))
    compressing = "use byteps.mxnet.DistributedTrainer(compression_params=...)"
    expect(ValueError, compressing, store.set_gradient_compression, {"type": "2bit"})
    expect(ValueError, "sparse", store.push, "w", value)


def training() -> None:
    size, rank = bps.size(), bps.rank()
    options = {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3}
    wanted = models.reference(7, "sgd", options, size)

    net = models.network(7 if rank == size - 1 else rank)
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", dict(options), root_rank=size - 1)
    losses = models.train(net, _broadcasting_first(trainer, net), size, rank)
    models.check_training(net, losses, wanted, "trainer")

    # Gluon's trainer with the KVStore of this name sums, as with MXNet's distributed stores.
    net = models.network(7 + rank)
    trainer = gluon.Trainer(net.collect_params(), "sgd", dict(options), kvstore="byteps")
    trainer._init_kvstore()
    trainer._init_params()  # Its first step does this. Without it the first loss is the rank's own.
    losses = models.train(net, lambda batch: trainer.step(batch * size), size, rank)
    models.check_training(net, losses, wanted, "store")

    # Adam as the optimizer, whose states are saved and loaded in between.
    options = {"learning_rate": 0.003}
    wanted = models.reference(7, "adam", options, size)
    net = models.network(7 + rank)
    arrays = {name: param.data() for name, param in net.collect_params().items()}
    bps.broadcast_parameters({str(n): array for n, (_, array) in enumerate(sorted(arrays.items()))})
    optimizer = bps.DistributedOptimizer(mx.optimizer.create("adam", **options))
    trainer = gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
    steps = 0

    def step(batch: int) -> None:
        nonlocal steps
        trainer.step(batch)
        steps += 1
        if steps == 2:
            with tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "states")
                trainer.save_states(path)
                trainer.load_states(path)

    losses = models.train(net, step, size, rank)
    models.check_training(net, losses, wanted, "optimizer")


def _broadcasting_first(trainer: Any, net: gluon.Block) -> Any:
    """Returns the trainer's step, after all ranks have got the parameters for the first loss."""
    trainer._init_kvstore()
    trainer._init_params()
    return trainer.step


def symbols() -> None:
    """MXNet's older Module works as in the tutorial's ImageNet program."""
    size, rank = bps.size(), bps.rank()
    images, classes = models.digits()
    data = mx.sym.Variable("data")
    layer = mx.sym.FullyConnected(mx.sym.flatten(data), num_hidden=10)
    net = mx.sym.SoftmaxOutput(layer, name="softmax")
    count = 4 * models.BATCH
    own = slice(rank * count, (rank + 1) * count)
    batches = mx.io.NDArrayIter(images[own], classes[own], models.BATCH)
    module = mx.mod.Module(net)
    module.bind(batches.provide_data, batches.provide_label)
    mx.random.seed(rank)
    module.init_params(mx.init.Uniform(0.1))
    arguments, auxiliary = module.get_params()
    bps.broadcast_parameters(arguments, root_rank=0)
    bps.broadcast_parameters(auxiliary, root_rank=0)
    module.set_params(arguments, auxiliary)
    sgd = mx.optimizer.create("sgd", learning_rate=0.1, rescale_grad=1.0 / models.BATCH)
    module.init_optimizer(kvstore=None, optimizer=bps.DistributedOptimizer(sgd))
    for batch in batches:
        module.forward_backward(batch)
        module.update()
    trained, _ = module.get_params()
    every = talweg.all_gather_object({k: v.asnumpy().tobytes() for k, v in trained.items()})
    assert all(each == every[0] for each in every) and len(every) == size


def refusals() -> None:
    params = models.network(0).collect_params()
    expect(ValueError, "collect_params", bps.DistributedTrainer, [], "sgd")
    expect(ValueError, "Optimizer", bps.DistributedOptimizer, "sgd")
    half = expect_warning(
        UserWarning,
        "no compressor",
        bps.DistributedTrainer,
        params,
        "sgd",
        compression_params={"fp16": True},
    )
    with mx.autograd.record():
        loss = sum(param.data().sum() for param in params.values())
    loss.backward()
    half.step(1)
    for param in params.values():
        assert (param.grad().asnumpy() == 1).all()


def disagreements() -> None:
    rank = bps.rank()
    wrong = mx.nd.ones((2 + rank % 2,))

    def push() -> None:
        bps.byteps_push_pull(wrong, name="shape")
        wrong.wait_to_read()

    expect(mx.MXNetError, "rank", push)
    again = mx.nd.ones((2,))
    bps.byteps_push_pull(again, name="shape")
    assert again.asnumpy().tolist() == [1.0, 1.0]
    models.check_lengths_that_differ(lambda params: bps.DistributedTrainer(params, "sgd"))


def another_life() -> None:
    bps.suspend()
    expect(mx.MXNetError, "not initialized", bps.byteps_push_pull, mx.nd.ones((2,)))
    bps.resume(1, 1, 0)
    tensor = mx.nd.ones((2,))
    bps.byteps_push_pull(tensor, name="another")
    assert tensor.asnumpy().tolist() == [1.0, 1.0]


def main() -> None:
    signatures()
    before_init()
    bps.init()
    print(f"rank {bps.rank()} of {bps.size()}, local {bps.local_rank()} of {bps.local_size()}")
    for check in (push_pulls, broadcasts, stores, training, symbols, refusals):
        check()
    if bps.size() == 1:
        another_life()
    else:
        disagreements()
    bps.shutdown()


if __name__ == "__main__":
    main()
