# SPDX-License-Identifier: Apache-2.0
"""How fast the examples of TensorFlow and Keras train."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

sys.path.append(str(Path(__file__).resolve().parents[1]))

from image_speed import ImageSpeed


def image_speed(ranks: int) -> ImageSpeed:
    device = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return ImageSpeed(ranks, device)


def print_speed(keras: Any, bps: Any, images: int, batch_size: int) -> Any:
    """Returns a callback of `keras` with which rank 0 prints the speed at each epoch's end. A rank
    trains so many images in an epoch. The time of the validation does not count.
    """

    class PrintSpeed(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._speed = image_speed(bps.size())

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._speed.add(min(batch_size, images - batch * batch_size))
            self._end = time.monotonic()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if bps.rank() == 0:
                print(self._speed.text(self._end), flush=True)

    return PrintSpeed()
