# SPDX-License-Identifier: Apache-2.0
"""One rank of mxnet_test.py. BytePS's compression_params beside a model of its rules in NumPy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import byteps.mxnet as bps
import mxnet as mx
import numpy as np
import talweg
from cases import run_cases
from expected_errors import expect

_LARGE, _SMALL = (40, 30), (5,)
_STEPS = 6
_LEAST = "1024"  # Bytes. The small parameter has fewer.
_BATCH = 2
_SGD = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}

Code = Callable[[np.ndarray], np.ndarray]


def _topk(k: int) -> Code:
    def code(p: np.ndarray) -> np.ndarray:
        sent = np.zeros_like(p)
        places = np.argsort(-np.abs(p), kind="stable")[:k]
        sent[places] = p[places]
        return sent

    return code


def _onebit(p: np.ndarray) -> np.ndarray:
    scale = np.float32(np.abs(p.astype(np.float64)).mean())
    return np.where(p < 0, -scale, scale).astype(np.float32)


def _given(rank: int, step: int, shape: tuple[int, ...]) -> np.ndarray:
    random = np.random.default_rng(1000 * step + 10 * rank + len(shape))
    return random.standard_normal(shape).astype(np.float32)


def _rate(step: int) -> float:
    return 0.1 if step < 3 else 0.02


class Model:
    """All ranks' large parameter, by the rules of docs/byteps.md. It shares no code with them."""

    def __init__(self, code: Code, mu: float, wd: float, partition: int | None = None) -> None:
        self._code, self._mu, self._wd, self._partition = code, mu, wd, partition
        self._errors: list[np.ndarray] = [
            np.zeros(_LARGE, np.float32).ravel() for _ in range(bps.size())
        ]
        self._momenta: list[np.ndarray] = [
            np.zeros(_LARGE, np.float32).ravel() for _ in range(bps.size())
        ]
        self._decay: np.ndarray = np.zeros(_LARGE, np.float32)

    def sum_of(self, step: int, weight: np.ndarray) -> np.ndarray:
        """Returns the update that a step makes of the weight, before the learning rate."""
        total: np.ndarray = np.zeros(_LARGE, np.float64).ravel()
        ratio = np.float32(_rate(max(step - 1, 0)) / _rate(step))
        for rank, (error, momentum) in enumerate(zip(self._errors, self._momenta)):
            v = _given(rank, step, _LARGE).ravel() * np.float32(1 / _BATCH)
            if self._mu:
                momentum *= np.float32(self._mu)
                momentum += v
                v = v + np.float32(self._mu) * momentum
            p = v + ratio * error
            length = self._partition or p.size
            sent = np.concatenate(
                [self._code(p[first : first + length]) for first in range(0, p.size, length)]
            )
            error[:] = p - sent
            total += sent
        update = (total / bps.size()).reshape(_LARGE)
        if self._mu and self._wd:
            self._decay = self._mu * (self._decay + self._wd * weight)
            update = update + self._decay + self._wd * weight
        return update


class SmallModel:
    """The same of the small parameter, which is not compressed."""

    def __init__(self, mu: float, wd: float) -> None:
        self._mu, self._wd = mu, wd
        self._momentum = np.zeros(_SMALL)

    def sum_of(self, step: int, weight: np.ndarray) -> np.ndarray:
        v = sum(_given(rank, step, _SMALL) / _BATCH for rank in range(bps.size())) / bps.size()
        v = v + self._wd * weight
        self._momentum = self._mu * (self._momentum + v)
        return v + self._momentum


def _parameters(name: str) -> tuple[Any, Any, Any]:
    params = mx.gluon.ParameterDict(name)
    large = params.get("large", shape=_LARGE, init="zeros")
    small = params.get("small", shape=_SMALL, init="zeros")
    params.initialize()
    return params, large, small


def _step(trainer: Any, large: Any, small: Any, step: int) -> None:
    trainer.set_learning_rate(_rate(step))
    with mx.autograd.record():
        loss = sum(
            (param.data() * mx.nd.array(_given(bps.rank(), step, shape))).sum()
            for param, shape in ((large, _LARGE), (small, _SMALL))
        )
    loss.backward()
    trainer.step(_BATCH)


def _compare(
    name: str, compression_params: dict[str, Any], model: Model, small_model: Any, **more: Any
) -> None:
    environment = {"BYTEPS_MIN_COMPRESS_BYTES": _LEAST, **more}
    params, large, small = _parameters(name)
    given = dict(_SGD)
    if not compression_params.get("momentum"):
        given = {"learning_rate": 0.1}
    with mock.patch.dict(os.environ, environment):
        trainer = bps.DistributedTrainer(
            params, "sgd", dict(given), compression_params=compression_params
        )
    is_onebit = compression_params["compressor"] == "onebit"
    rest = 0.0 if is_onebit else given.get("wd", 0.0)  # That which the optimizer still adds.
    weight, small_weight = np.zeros(_LARGE), np.zeros(_SMALL)
    for step in range(_STEPS):
        _step(trainer, large, small, step)
        weight = weight - _rate(step) * (model.sum_of(step, weight) + rest * weight)
        np.testing.assert_allclose(
            large.data().asnumpy(), weight, rtol=1e-4, atol=1e-5, err_msg=f"{name} {step}"
        )
        if small_model is not None:
            update = small_model.sum_of(step, small_weight)
            small_weight = small_weight - _rate(step) * (update + rest * small_weight)
            np.testing.assert_allclose(
                small.data().asnumpy(), small_weight, rtol=1e-4, atol=1e-5, err_msg=name
            )
    bits = [param.data().asnumpy().tobytes() for param in (large, small)]
    assert all(each == bits for each in talweg.all_gather_object(bits)), name


def top_numbers() -> None:
    feedback = {"compressor": "topk", "k": 20, "ef": "vanilla"}
    _compare("topk_", feedback, Model(_topk(20), 0, 0), None)
    _compare(
        "topk_nesterov_",
        {**feedback, "momentum": "nesterov"},
        Model(_topk(20), 0.9, 0),
        SmallModel(0.9, 0),
    )
    _compare(
        "topk_partitions_",
        {**feedback, "k": 3},
        Model(_topk(3), 0, 0, 1024),
        None,
        BYTEPS_PARTITION_BYTES="4096",
    )


def one_bit() -> None:
    params = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
    _compare("onebit_", params, Model(_onebit, 0, 0), None)
    _compare(
        "onebit_nesterov_",
        {**params, "momentum": "nesterov"},
        Model(_onebit, 0.9, 0.01),
        SmallModel(0.9, 0.01),
    )


def numbers_at_random() -> None:
    params, large, small = _parameters("randomk_")
    compression = {"compressor": "randomk", "k": 0.1, "ef": "vanilla", "seed": 7}
    with mock.patch.dict(os.environ, BYTEPS_MIN_COMPRESS_BYTES=_LEAST):
        trainer = bps.DistributedTrainer(
            params, "sgd", {"learning_rate": 0.1}, compression_params=compression
        )
    before: np.ndarray = np.zeros(_LARGE, np.float32)
    for step in range(3):
        _step(trainer, large, small, step)
        now = large.data().asnumpy()
        assert np.count_nonzero(now - before) == 120, step
        before = now


def levels_at_random() -> None:
    for name, partition, normalize in (("dither_", "linear", "max"), ("power_", "natural", "l2")):
        params, large, small = _parameters(name)
        compression = {
            "compressor": "dithering",
            "k": 4,
            "partition": partition,
            "normalize": normalize,
        }
        with mock.patch.dict(os.environ, BYTEPS_MIN_COMPRESS_BYTES=_LEAST):
            trainer = bps.DistributedTrainer(
                params, "sgd", {"learning_rate": 0.1}, compression_params=compression
            )
        _step(trainer, large, small, 0)
        values = np.unique(large.data().asnumpy())
        assert 3 <= len(values) <= 9 ** bps.size(), len(values)
        if bps.size() == 1:
            assert len(values) <= 9, values


def declared_tensors() -> None:
    with mock.patch.dict(os.environ, BYTEPS_MIN_COMPRESS_BYTES=_LEAST):
        bps.byteps_declare_tensor(
            "declared",
            byteps_compressor_type="topk",
            byteps_compressor_k="2",
            byteps_error_feedback_type="vanilla",
        )
        bps.byteps_declare_tensor("plain")
        expect(
            ValueError, "byteps_codec is no", bps.byteps_declare_tensor, "a", byteps_codec="topk"
        )
    given: np.ndarray = np.ones(_LARGE, np.float32)
    given[0, :4] = 9, 7, 5, 3
    for wanted in ([9, 7, 0, 0], [0, 7, 10, 0]):
        tensor = mx.nd.array(given)
        tensor[0, 0] = 9 if wanted[0] else 0
        bps.byteps_push_pull(tensor, name="declared")
        found = tensor.asnumpy()
        assert found[0, :4].tolist() == wanted and np.count_nonzero(found) == 2, found[0, :4]
    tensor = mx.nd.array(given)
    bps.byteps_push_pull(tensor, name="plain")
    assert np.array_equal(tensor.asnumpy(), given)


def refusals() -> None:
    params, _, _ = _parameters("refused_")
    trainer = bps.DistributedTrainer

    def make(optimizer_params: dict[str, Any] | None = None, **compression_params: Any) -> Any:
        return bps.DistributedTrainer(
            params, "sgd", optimizer_params, compression_params=compression_params
        )

    expect(ValueError, "'huffman'; it must be one of onebit", make, compressor="huffman")
    expect(ValueError, "need a compressor", make, compressor="", ef="vanilla")
    expect(ValueError, "ef is 'sideways'", make, compressor="onebit", ef="sideways")
    expect(TypeError, "should be str", make, compressor=1)
    expect(TypeError, "should be str", make, compressor="onebit", momentum=0.9)
    expect(KeyError, "needs a k", make, compressor="topk")
    expect(ValueError, "k is 0", make, compressor="topk", k=0)
    expect(ValueError, "seed is 0", make, compressor="randomk", k=1, seed=0)
    expect(
        KeyError, "'momentum' to optimizer_params", make, compressor="onebit", momentum="nesterov"
    )
    expect(ValueError, "partition is 'log'", make, compressor="dithering", k=4, partition="log")
    expect(ValueError, "'error_feedback' is no key", make, compressor="onebit", error_feedback="")
    expect(ValueError, "'compresor' is no key: use compressor", make, compresor="onebit")
    expect(TypeError, "scaling is 'False'", make, compressor="onebit", scaling="False")
    expect(TypeError, "fp16 is 'no'", make, fp16="no")
    for wrong in (["onebit"], "onebit"):
        expect(TypeError, "must be a dict", trainer, params, "sgd", compression_params=wrong)
    scaled = {"byteps_compressor_type": "onebit", "byteps_compressor_onebit_scaling": "False"}
    bps.byteps_declare_tensor("unscaled", **scaled)
    scaled["byteps_compressor_onebit_scaling"] = "often"
    expect(TypeError, "scaling is 'often'", bps.byteps_declare_tensor, "unscaled", **scaled)


def main() -> None:
    bps.init()
    run_cases(top_numbers, one_bit, numbers_at_random, levels_at_random, declared_tensors, refusals)
    bps.shutdown()


if __name__ == "__main__":
    main()
