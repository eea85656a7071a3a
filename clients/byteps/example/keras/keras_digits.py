# SPDX-License-Identifier: Apache-2.0
"""The digits and the network of the Keras examples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras

sys.path.append(str(Path(__file__).resolve().parents[1] / "tensorflow"))

from digits_data import load_digits
from tf_speed import print_speed

__all__ = ["load_digits", "make_model", "print_speed"]


def make_model() -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Dropout(0.25),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
