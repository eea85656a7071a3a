# SPDX-License-Identifier: Apache-2.0
"""The common part of the other systems' Keras modules: values, global variables, saved models."""

from __future__ import annotations

import json
import os
import types
import zipfile
from collections.abc import Callable, Iterable
from typing import Any

import h5py
import tensorflow as tf

from talweg._arguments import compressed, factors_of
from talweg._declaration import Op
from talweg.tensorflow import _graphs, _ops, _variables
from talweg.tensorflow._compression import NoneCompressor
from talweg.tensorflow._rounds import Reduction


def reduce_value(
    value: Any,
    name: str | None,
    op: Op,
    prescale: float = 1.0,
    postscale: float = 1.0,
    compression: Any = NoneCompressor,
) -> Any:
    """Reduces a number, an array or a tensor, or each of a list of tensors."""
    if isinstance(value, (list, tuple)) and any(tf.is_tensor(each) for each in value):
        names = _ops.group_names("keras", value, name)
        return [
            reduce_value(each, own, op, prescale, postscale, compression)
            for each, own in zip(value, names)
        ]
    pushed, context = compressed(tf.convert_to_tensor(value), compression, "allreduce")
    how = Reduction(op, *factors_of(prescale, postscale, "allreduce"))
    [reduced] = _ops.reduce_tensors([pushed], [_ops.unique_name("keras", pushed, name)], how)
    return _graphs.evaluated(compression.decompress(reduced, context))


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns the operation that assigns the root's values to the graph's global variables.

    Raises RuntimeError if TensorFlow executes eagerly.
    """
    return _variables.assign_from_root(_variables.global_variables(), root_rank)


def load_model(
    keras: Any,
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: dict[str, Any] | None,
    distribute: Callable[[Any], Any],
) -> Any:
    """Loads a model with its optimizer's state, and makes the optimizer combine its gradients.

    `keras` loads it. If tf.keras is tf-keras, that loads models that Keras 2 has saved. An optimizer
    that a function of `custom_objects` makes may be distributed already; it stays as it is.
    """
    if tf.keras.Model.__module__.startswith("tf_keras.") and _is_of_keras_2(filepath):
        keras = tf.keras
    objects = {cls.__name__: cls for cls in custom_optimizers or []}
    objects.update(custom_objects or {})
    name = _optimizer_of_keras_3(filepath)
    if isinstance(objects.get(name), types.FunctionType):
        objects[name] = _class_of(objects[name])
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not hasattr(optimizer, "_talweg_steps"):
        distribute(optimizer)
    return model


def _class_of(make: Callable[..., Any]) -> type:
    """Returns a class that stands for `make`: Keras 3 takes an optimizer from a class alone."""

    class Made:
        @classmethod
        def from_config(cls, config: dict[str, Any], **_: Any) -> Any:
            return make(**config)

    return Made


def _optimizer_of_keras_3(filepath: Any) -> str:
    """Returns the name of the optimizer's class in a .keras file; an empty name if there is none."""
    if not isinstance(filepath, (str, os.PathLike)) or not zipfile.is_zipfile(filepath):
        return ""
    with zipfile.ZipFile(filepath) as archive:
        if "config.json" not in archive.namelist():
            return ""
        compiled = json.loads(archive.read("config.json")).get("compile_config") or {}
    optimizer = compiled.get("optimizer")
    return str(optimizer.get("registered_name") or "") if isinstance(optimizer, dict) else ""


def _is_of_keras_2(filepath: Any) -> bool:
    """Whether Keras 2 has saved the model: the file says so. Only Keras 2 saves a directory."""
    if not isinstance(filepath, (str, os.PathLike)):
        return False
    if os.path.isdir(filepath):
        return True
    version = ""
    if zipfile.is_zipfile(filepath):
        with zipfile.ZipFile(filepath) as archive:
            if "metadata.json" in archive.namelist():
                version = json.loads(archive.read("metadata.json")).get("keras_version", "")
    elif os.path.isfile(filepath) and h5py.is_hdf5(filepath):
        with h5py.File(filepath, "r") as file:
            version = file.attrs.get("keras_version", "")
    return str(version).startswith("2.")
