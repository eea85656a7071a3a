# SPDX-License-Identifier: Apache-2.0
"""Checks load_model() with TF_USE_LEGACY_KERAS, by which tf.keras is tf-keras, beside Keras 3."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import byteps.keras
import byteps.tensorflow.keras
import horovod.keras
import horovod.tensorflow.keras
import keras
import numpy as np
import tensorflow as tf
from talweg._declaration import Op

ONES: np.ndarray = np.ones((4, 2), np.float32)

assert tf.keras.Model is not keras.Model, "run it with TF_USE_LEGACY_KERAS=1"
modules = (byteps.keras, byteps.tensorflow.keras, horovod.keras, horovod.tensorflow.keras)
for module in modules:
    module.init()
    # Keras 3 itself cannot go on with the training of a model that it has saved as HDF5.
    kinds = [(tf.keras, name) for name in ("model.h5", "model.keras", "directory")]
    if module in (byteps.keras, horovod.keras):
        kinds += [(keras, "model.keras")]
    for kind, name in kinds:
        model = kind.Sequential([kind.layers.Dense(1)])
        optimizer = kind.optimizers.SGD(0.1, momentum=0.9)
        model.compile(module.DistributedOptimizer(optimizer), "mse")
        model.fit(ONES, ONES[:, :1], verbose=0)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, name)
            model.save(path)
            loaded = module.load_model(path)
        case = f"{module.__name__}: {kind.__name__}, {name}"
        assert isinstance(loaded, kind.Model), f"{case}: a {type(loaded)} was loaded"
        assert "talweg" in type(loaded.optimizer).__mro__[1].__module__, case
        # tf-keras itself does not load an optimizer's state from a directory.
        before = 0 if name == "directory" else 1
        assert int(loaded.optimizer.iterations) == before, case
        loaded.fit(ONES, ONES[:, :1], verbose=0)
        assert int(loaded.optimizer.iterations) == before + 1, case


def made_by_a_function(kind: Any) -> None:
    """A function makes the optimizer, with options of its own, which load_model() keeps."""
    own: Any = type("Own", (kind.optimizers.SGD,), {})

    def make(**options: Any) -> Any:
        return horovod.keras.DistributedOptimizer(own(**options), op=horovod.keras.Sum)

    model = kind.Sequential([kind.layers.Dense(1)])
    model.compile(own(0.25, momentum=0.9), "mse")
    model.fit(ONES, ONES[:, :1], verbose=0)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.keras")
        model.save(path)
        loaded = horovod.keras.load_model(path, custom_objects={"Own": make})
    optimizer = loaded.optimizer
    assert isinstance(optimizer, own), (kind, type(optimizer))
    assert float(optimizer.learning_rate) == 0.25 and int(optimizer.iterations) == 1, kind
    assert optimizer._talweg_steps.choices.op == Op.SUM, kind
    loaded.fit(ONES, ONES[:, :1], verbose=0)
    assert int(optimizer.iterations) == 2, kind


made_by_a_function(tf.keras)
made_by_a_function(keras)
