# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits without a download: Keras's MNIST if its file is there, else those of
mnist_digits.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

import mnist_digits
from mnist_digits import Digits


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
    training, test = mnist_digits.load(says, f"at {path}")
    return (training[0][..., None], training[1]), (test[0][..., None], test[1])
