# SPDX-License-Identifier: Apache-2.0
"""Gives a package a second name: `import byteps.torch` returns the module talweg.byteps.torch.

A second copy of a module would have a second state. The packages of the extra wheels call
install().
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

from talweg._frameworks import needed_by


class _Loader(importlib.abc.Loader):
    def __init__(self, target: str) -> None:
        self._target = target
        self._own_spec: importlib.machinery.ModuleSpec | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        with needed_by(spec.name):
            module = importlib.import_module(self._target)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has set the alias's spec. reload() and pickle need the module's own.
        module.__spec__ = self._own_spec

    def get_code(self, fullname: str) -> CodeType | None:
        """Returns the module's code, for `python -m`."""
        own = importlib.util.find_spec(self._target)
        assert own is not None and isinstance(own.loader, importlib.abc.InspectLoader)
        return own.loader.get_code(self._target)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, alias: str, package: str) -> None:
        self.alias = alias
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(self.alias + "."):
            return None
        real = self._package + name[len(self.alias) :]
        try:
            own = importlib.util.find_spec(real)
        except ModuleNotFoundError:  # A parent package is missing.
            return None
        if own is None:
            return None
        is_package = own.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(name, _Loader(real), is_package=is_package)


def install(alias: str, package: str) -> None:
    """Makes `alias` a second name of `package` and of all modules below it. May be called again."""
    if any(isinstance(each, _Finder) and each.alias == alias for each in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder(alias, package))
    sys.modules[alias] = importlib.import_module(package)
