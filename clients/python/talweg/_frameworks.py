# SPDX-License-Identifier: Apache-2.0
"""What parts of this package need that users install."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

# By the module that is imported: its name, and what pip installs.
_FRAMEWORKS = {
    "jax": ("JAX", "jax"),
    "keras": ("Keras", "keras"),
    "mxnet": ("MXNet", "mxnet==1.9.1 numpy==1.23.5"),
    "tensorflow": ("TensorFlow", "tensorflow"),
    "torch": ("PyTorch", "torch"),
    "torchvision": ("torchvision", "torchvision"),
}


@contextlib.contextmanager
def needed_by(module: str) -> Iterator[None]:
    """Has an import of a framework that is missing fail with what to install for that module."""
    try:
        yield
    except ModuleNotFoundError as missing:
        root = (missing.name or "").partition(".")[0]
        if root not in _FRAMEWORKS:
            raise
        framework, packages = _FRAMEWORKS[root]
        raise ModuleNotFoundError(
            f"{module} needs {framework}, and {sys.executable} has no module '{missing.name}': "
            f"{sys.executable} -m pip install {packages}",
            name=missing.name,
        ) from None
