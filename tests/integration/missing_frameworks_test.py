# SPDX-License-Identifier: Apache-2.0
"""Tests the errors of modules whose framework is not installed, also of BytePS and Horovod."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import unittest
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from unittest import mock

import byteps
import horovod

_FRAMEWORKS = ("jax", "keras", "mxnet", "tensorflow", "torch", "torchvision")


class _Hidden(importlib.abc.MetaPathFinder):
    """Hides all frameworks from imports, also installed ones."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in _FRAMEWORKS:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return None


def _modules_of(package: ModuleType) -> Iterator[str]:
    """Yields all modules of the package, except for packages of programs."""
    root = Path(str(package.__file__)).parent
    for path in sorted(root.rglob("*.py")):
        parts = [package.__name__.removeprefix("talweg."), *path.relative_to(root).parts]
        parts[-1] = parts[-1].removesuffix(".py")
        if parts[-1] == "__main__":
            continue
        yield ".".join(parts if parts[-1] != "__init__" else parts[:-1])


class MissingFrameworksTest(unittest.TestCase):
    def setUp(self) -> None:
        hidden = _Hidden()
        sys.meta_path.insert(0, hidden)
        self.addCleanup(sys.meta_path.remove, hidden)

    def _error_of(self, name: str) -> str:
        with self.assertRaises(ModuleNotFoundError) as caught:
            importlib.import_module(name)
        return str(caught.exception)

    def test_the_framework_and_the_remedy_are_named(self) -> None:
        for name, framework, packages in (
            ("horovod.torch", "PyTorch", "torch"),
            ("horovod.tensorflow", "TensorFlow", "tensorflow"),
            ("horovod.tensorflow.keras", "TensorFlow", "tensorflow"),
            ("horovod.keras", "Keras", "keras"),
            ("horovod.mxnet", "MXNet", "mxnet==1.9.1 numpy==1.23.5"),
            ("byteps.torch", "PyTorch", "torch"),
            ("byteps.tensorflow", "TensorFlow", "tensorflow"),
            ("byteps.keras", "Keras", "keras"),
            ("byteps.mxnet", "MXNet", "mxnet==1.9.1 numpy==1.23.5"),
            ("torch", "PyTorch", "torch"),
            ("tensorflow", "TensorFlow", "tensorflow"),
            ("jax", "JAX", "jax"),
        ):
            # A module has two names, or only talweg's own.
            for full in (f"talweg.{name}", *([name] if "." in name else [])):
                text = self._error_of(full)
                root = full.partition(".")[0]
                self.assertRegex(text, rf"^{root}[.].* needs {framework}, ")
                self.assertTrue(text.endswith(f"{sys.executable} -m pip install {packages}"), text)

    def test_keras_on_another_backend_than_tensorflow(self) -> None:
        """Keras is there then, and TensorFlow need not be."""
        with mock.patch.dict(sys.modules, {"keras": ModuleType("keras")}):
            for name in ("horovod.keras", "byteps.keras"):
                text = self._error_of(f"talweg.{name}")
                self.assertRegex(text, rf"^talweg.{name} needs TensorFlow, .* install tensorflow$")

    def test_every_module(self) -> None:
        refused = 0
        for package in (byteps, horovod):
            names = [*_modules_of(package)]
            for name in [*names, *(f"talweg.{each}" for each in names)]:
                try:
                    importlib.import_module(name)
                except ModuleNotFoundError as error:
                    refused += 1
                    self.assertRegex(str(error), "-m pip install|is not offered by Talweg", name)
        self.assertGreater(refused, 50)

    def test_the_versions_are_those_of_what_is_offered(self) -> None:
        for name, version in (("horovod", "0.28.1"), ("byteps", "0.2.5")):
            self.assertEqual(importlib.import_module(name).__version__, version)

    def test_another_module_is_named_as_ever(self) -> None:
        self.assertEqual(self._error_of("horovod.nothing"), "No module named 'horovod.nothing'")


if __name__ == "__main__":
    unittest.main()
