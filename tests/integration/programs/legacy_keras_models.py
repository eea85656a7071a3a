# SPDX-License-Identifier: Apache-2.0
"""Checks load_model() with TF_USE_LEGACY_KERAS, by which tf.keras is tf-keras, beside Keras 3."""

from __future__ import annotations

import os
import tempfile

import byteps.keras
import byteps.tensorflow.keras
import horovod.keras
import horovod.tensorflow.keras
import keras
import numpy as np
import tensorflow as tf

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
