# SPDX-License-Identifier: Apache-2.0
"""Which rooms of the Python package may import which: docs/architecture.md, "The Python package"."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "clients/python/talweg"

# A room imports those that stand before it. "talweg" is the package's own __init__.py.
ROOMS = (
    "errors",
    "_version",
    "_calls",
    "_counted",
    "_call_site",
    "_frameworks",
    "_at_exit",
    "_interrupts",
    "_declaration",
    "compression",
    "_arguments",
    "_programs",
    "_cli",
    "_library",
    "_digest",
    "_node",
    "_client",
    "_collectives",
    "_declaring",
    "_gpu",
    "_exchange",
    "_elastic",
    "_joining_names",
    "_joining",
    "talweg",
    "_torch_backend",
    "torch",
    "tensorflow",
    "jax",
    "_compat",
    "byteps",
    "horovod",
)

# torch knows the backend before anybody imports talweg.torch, and asks for it when it is wanted.
LATER = {("_torch_backend", "torch")}


@dataclass(frozen=True)
class Import:
    """One room's import of another's."""

    path: str
    line: int
    room: str
    imported: str

    @property
    def is_allowed(self) -> bool:
        way = (self.room, self.imported)
        return way in LATER or ROOMS.index(self.imported) < ROOMS.index(self.room)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.room} imports {self.imported}"


def room_of(path: str) -> str:
    """The room of a file, whose path is one within the package."""
    first = path.partition("/")[0].removesuffix(".py")
    return "talweg" if first == "__init__" else first


def _imported(module: str, name: str) -> str | None:
    """The room that `from module import name` imports; None: it is not of the package."""
    package, _, inner = module.partition(".")
    if package != "talweg":
        return None
    if inner:
        return inner.partition(".")[0]
    return name if name in ROOMS else "talweg"


def imports(path: str, text: str) -> list[Import]:
    """What the file imports from other rooms, also where only types need it."""
    found = []
    for node in ast.walk(ast.parse(text)):
        rooms: list[str | None] = []
        if isinstance(node, ast.Import):
            rooms = [_imported(each.name, "") for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            rooms = [_imported(node.module or "", each.name) for each in node.names]
        for room in rooms:
            if room is not None and room != room_of(path):
                assert isinstance(node, (ast.Import, ast.ImportFrom))
                found.append(Import(path, node.lineno, room_of(path), room))
    return found


def imports_of_package(root: Path) -> list[Import]:
    """Those of all files of the package in the tree at `root`."""
    package = root / PACKAGE
    return [
        each
        for path in sorted(package.rglob("*.py"))
        for each in imports(str(path.relative_to(package)), path.read_text())
    ]
