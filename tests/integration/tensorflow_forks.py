# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not import TensorFlow each."""

from __future__ import annotations

import os

from torch_forks import TorchForks

# What TensorFlow logs at its start, the GPUs that the tests do not use, and the kernel, which takes
# a minute to build.
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "TALWEG_TENSORFLOW_OPS": "python",
}


def tensorflow_forks() -> TorchForks:
    """A process that has imported TensorFlow and both Keras, and forks for every rank."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    return TorchForks(("tensorflow", "keras", "tf_keras"))
