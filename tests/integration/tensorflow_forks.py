# SPDX-License-Identifier: Apache-2.0
"""Forks ranks from a process that has imported TensorFlow, so they need not import it."""

from __future__ import annotations

import functools
import os
import unittest

from torch_forks import TorchForks

# The variables turn off TensorFlow's log lines, GPUs, which tests do not use, and the kernel, which
# takes a minute to build.
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "TALWEG_TENSORFLOW_OPS": "python",
}


@functools.cache
def tensorflow_forks(**variables: str) -> TorchForks:
    """Returns forks with TensorFlow and both versions of Keras, for all tests of a program.

    They end after the last test. They import TensorFlow with these environment variables.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    forks = TorchForks(("tensorflow", "keras", "tf_keras"), variables).__enter__()
    unittest.addModuleCleanup(forks.__exit__)
    return forks
