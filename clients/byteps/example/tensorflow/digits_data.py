# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits: Keras's MNIST where its file is, else scikit-learn's, without a download."""

from __future__ import annotations

import os

import numpy as np

Digits = tuple[np.ndarray, np.ndarray]


def load_digits(says: bool) -> tuple[Digits, Digits]:
    """For training and for the test: f32[n, 28, 28, 1] of 0 to 1, and i64[n]."""
    path = os.path.expanduser("~/.keras/datasets/mnist.npz")
    if os.path.isfile(path):
        with np.load(path) as found:
            parts = [(found[f"x_{kind}"], found[f"y_{kind}"]) for kind in ("train", "test")]
        training, test = (
            ((x[..., None] / 255.0).astype(np.float32), y.astype(np.int64)) for x, y in parts
        )
        return training, test
    from sklearn.datasets import load_digits as scikit_digits

    if says:
        print(f"MNIST is not at {path}: training on scikit-learn's digits", flush=True)
    digits = scikit_digits()
    images = np.kron(digits.images / 16.0, np.ones((3, 3)))  # 24 x 24.
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None].astype(np.float32)
    classes = digits.target.astype(np.int64)
    order = np.random.RandomState(0).permutation(len(classes))
    held_out, rest = np.split(order, [len(order) // 5])
    return (images[rest], classes[rest]), (images[held_out], classes[held_out])
