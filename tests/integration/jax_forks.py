# SPDX-License-Identifier: Apache-2.0
"""Forks ranks from a process that has imported JAX, and lets them share what XLA compiles."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import unittest

from torch_forks import TorchForks

# What starts no threads.
_IMPORTED = ("jax", "jax.numpy", "optax")


@functools.cache
def jax_forks() -> TorchForks:
    """Returns forks with JAX, for all tests of a program. They end after the last test.

    Each process that the tests start writes its compiled programs into one directory, also small
    ones, and takes those of others from there.
    """
    directory = tempfile.mkdtemp(prefix="talweg.")
    unittest.addModuleCleanup(shutil.rmtree, directory)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = directory
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    forks = TorchForks(_IMPORTED).__enter__()
    unittest.addModuleCleanup(forks.__exit__)
    return forks
