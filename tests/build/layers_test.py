# SPDX-License-Identifier: Apache-2.0
"""Illegal edges are refused while a BUILD file loads.

Starlark is a subset of Python: the table and the macros run here as they are, with what Bazel would
give them (`native`, `fail`, `select`) replaced.
"""

from __future__ import annotations

import ast
import re
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lint import source_tree


class Refused(Exception):
    """What fail() is here."""


def _fail(message: str) -> None:
    raise Refused(message)


def _execute(path: Path, environment: dict[str, Any]) -> dict[str, Any]:
    """Runs a .bzl file; what it loads must be in `environment`."""
    text = re.sub(r"^load\(.*?\)$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    exec(compile(text, str(path), "exec"), environment)
    return environment


def _layers(package: str) -> dict[str, Any]:
    native = types.SimpleNamespace(package_name=lambda: package)
    return _execute(Path("bazel/layers.bzl"), {"native": native, "fail": _fail})


def _macros(package: str) -> dict[str, Any]:
    """The macros of defs.bzl, called from a BUILD file of `package`; rules do nothing."""

    class Native:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda **_: None

    nothing: Callable[..., None] = lambda **_: None  # noqa: E731
    environment = {
        "native": Native(),
        "select": lambda _: [],
        "CATCH2_COPTS": [],
        "PRECOMPILED_COPTS": [],
        "check_edges": _layers(package)["check_edges"],
        "cc_fuzz_test": nothing,
        "cc_proto_codegen": nothing,
        "joined_sources": nothing,
        "runfiles_archive": nothing,
        "venv_py_binary": nothing,
        "venv_py_test": nothing,
    }
    return _execute(Path("bazel/defs.bzl"), environment)


# What a macro needs besides name and deps.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "talweg_c_shared_library": {"srcs": [], "version_script": "exports.lds"},
    "talweg_cc_benchmark": {"srcs": []},
    "talweg_cc_binary": {"srcs": []},
    "talweg_cc_fuzz_test": {"srcs": []},
    "talweg_cc_library": {},
    "talweg_cc_test": {"srcs": []},
    "talweg_grpc_library": {"src": "a.proto"},
    "talweg_kernel_libraries": {},
    "talweg_name_wheel": {
        "out": "t.whl",
        "version": "1",
        "packer": "pack.py",
        "libraries": [],
        "package": "t",
    },
    "talweg_proto_library": {"src": "a.proto"},
    "talweg_py_binary": {"srcs": []},
    "talweg_py_library": {},
    "talweg_py_test": {"srcs": []},
    "talweg_runfiles_archive": {"out": "t.tar.xz", "entry": "run", "programs": []},
    "talweg_wheel": {
        "out": "t.whl",
        "version": "1",
        "packer": "pack.py",
        "package": ":package",
        "libraries": [":library"],
    },
}


class EdgeTest(unittest.TestCase):
    def error(self, package: str, dep: str, is_test: bool = False) -> str | None:
        error: str | None = _layers(package)["edge_error"](package, "t", dep, is_test)
        return error

    def test_allowed(self) -> None:
        for package, dep in [
            ("libs/base", ":other"),
            ("libs/shm/client", "//libs/shm"),
            ("libs/shm", "//libs/shm/layout:golden"),
            ("libs/wire", "//libs/view"),
            ("libs/config", "//proto/config:config"),
            ("libs/rpc", "//proto/talweg/scheduler/v1:scheduler"),
            ("libs/rpc", "//bazel/deps/grpc:reflection"),
            ("libs/status", "//bazel/deps/absl"),
            ("services/agent", "//libs/transport/libfabric"),
            ("services/agent/data", "//services/agent:wiring"),
            ("tests/sim", "//services/agent"),
            ("clients/c", "//libs/shm/client"),
            ("clients/python", "//clients/c:libtalweg.so"),
            ("libs/base", "@bazel_tools//tools/cpp:malloc"),
        ]:
            self.assertIsNone(self.error(package, dep), f"{package} -> {dep}")

    def test_refused(self) -> None:
        for package, dep in [
            ("libs/base", "//libs/wire"),
            ("libs/base", "@talweg//libs/wire"),
            ("libs/wire/testing", "//libs/transport:transport"),
            ("libs/config", "//proto/talweg/scheduler/v1"),
            ("libs/transport", "//bazel/deps/grpc"),
            ("libs/aggregation", "//bazel/deps/absl"),
            ("libs/telemetry", "//bazel/deps/sqlite"),
            ("services/agent", "//services/aggregator"),
            ("services/agent", "//tests/sim"),
            ("services/agent", "//bazel/deps/catch2"),
            ("clients/c", "//libs/status"),
            ("clients/python", "//libs/base"),
            ("proto/talweg/agent/v1", "//libs/base"),
            ("libs/shm", "//libs/shmother"),
            ("libs/unheard_of", "//libs/base"),
            ("libs/base", "//bazel/deps/unheard_of"),
        ]:
            self.assertIsNotNone(self.error(package, dep), f"{package} -> {dep}")

    def test_tests_may_use_the_test_libraries_and_nothing_else(self) -> None:
        self.assertIsNone(self.error("libs/base", "//bazel/deps/catch2", is_test=True))
        self.assertIsNotNone(self.error("libs/base", "//bazel/deps/catch2"))
        self.assertIsNotNone(self.error("libs/base", "//bazel/deps/grpc", is_test=True))
        self.assertIsNotNone(self.error("libs/base", "//libs/wire", is_test=True))

    def test_the_message_names_target_dependency_layer_and_what_is_allowed(self) -> None:
        message = self.error("libs/membership/core", "//libs/transport")
        assert message is not None
        for part in (
            "//libs/membership/core:t",
            "//libs/transport",
            "'libs/membership'",
            "libs/wire",
        ):
            self.assertIn(part, message)

    def test_the_table_names_layers_only_and_has_no_cycle(self) -> None:
        layers = _layers("")["LAYERS"]
        edges = {
            layer: [
                other
                for other in layers
                if other != layer
                and any(other == each or other.startswith(each + "/") for each in allowed)
            ]
            for layer, allowed in layers.items()
        }
        for layer, allowed in layers.items():
            for each in allowed:
                self.assertTrue(
                    any(other == each or other.startswith(each + "/") for other in layers),
                    f"{layer} may use {each}, which is not a layer",
                )
        done: set[str] = set()

        def visit(layer: str, path: list[str]) -> None:
            self.assertNotIn(layer, path, "a cycle")
            if layer not in done:
                for other in edges[layer]:
                    visit(other, [*path, layer])
                done.add(layer)

        for layer in layers:
            visit(layer, [])


class MacroTest(unittest.TestCase):
    def test_every_macro_refuses_an_illegal_edge_and_takes_a_legal_one(self) -> None:
        macros = {
            name: value
            for name, value in _macros("libs/wire").items()
            if name.startswith("talweg_") and callable(value)
        }
        self.assertEqual(set(macros), set(_ARGUMENTS), "a macro came or went: mend _ARGUMENTS")
        for name, macro in macros.items():
            with self.subTest(name):
                with self.assertRaisesRegex(Refused, "//libs/wire:t must not depend on //libs/rpc"):
                    macro(name="t", deps=["//libs/rpc"], **_ARGUMENTS[name])
                if "_proto_" in name or "_grpc_" in name:
                    continue  # No library holds a .proto file: its runtime is refused there.
                macro(name="t", deps=["//libs/base"], **_ARGUMENTS[name])

    def test_data_is_an_edge(self) -> None:
        for name in ("talweg_cc_library", "talweg_cc_test", "talweg_py_test"):
            with self.assertRaises(Refused):
                _macros("libs/wire")[name](name="t", data=["//libs/rpc"], **_ARGUMENTS[name])


class PageTest(unittest.TestCase):
    """docs/architecture.md has the same table, for people."""

    @staticmethod
    def layer(name: str, layers: dict[str, list[str]]) -> str:
        name = name.removeprefix("//")
        return f"libs/{name}" if f"libs/{name}" in layers else name

    def test_the_page_says_what_may_be_used(self) -> None:
        layers: dict[str, list[str]] = _layers("libs/base")["LAYERS"]
        page = (source_tree.root() / "docs/architecture.md").read_text()
        said: dict[str, list[str]] = {}
        rows = page.split("| library | may use | what |\n|---|---|---|\n")[1].split("\n\n")[0]
        for row in rows.splitlines():
            names, used, _ = (cell.strip() for cell in row.strip("|").split("|"))
            uses = [] if used == "-" else [self.layer(n.strip(), layers) for n in used.split(",")]
            for name in names.split(","):
                layer = self.layer(name.strip(), layers)
                if layer.endswith("/*"):
                    said |= {each: uses for each in layers if each.startswith(layer[:-1])}
                else:
                    said[layer] = uses
        for layer, uses in layers.items():
            if layer.startswith(("libs/", "services/", "clients/")) or layer in said:
                self.assertEqual(sorted(said.get(layer, ["not said"])), sorted(uses), layer)
        self.assertLessEqual(said.keys(), layers.keys())
        for directory in (source_tree.root() / "libs").iterdir():
            self.assertIn(f"libs/{directory.name}", layers)


class TreeTest(unittest.TestCase):
    """What the macros cannot see: targets that are made without them."""

    def build_files(self) -> list[str]:
        found = source_tree.files("BUILD.bazel", "BUILD")
        self.assertIn("libs/base/BUILD.bazel", found)
        return [path for path in found if not path.startswith("bazel/")]

    def test_targets_are_made_by_macros(self) -> None:
        allowed = re.compile(
            r"^(talweg_\w+|load|package|exports_files|filegroup|glob|licenses|alias)$"
        )
        also = {
            "tests/lint/BUILD.bazel": {"clang_tidy_test"},
            # Rules of ours that compile nothing.
            "deploy/BUILD.bazel": {"genrule"},
        }
        for path in self.build_files():
            tree = ast.parse((source_tree.root() / path).read_text())
            for node in ast.walk(tree):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                    continue
                name = node.func.id
                keywords = {keyword.arg for keyword in node.keywords}
                if "name" not in keywords or allowed.match(name) or name in also.get(path, set()):
                    continue
                native = re.match(r"^(cc|py|sh|java|proto)_|^genrule$|_test$", name)
                self.assertFalse(
                    native, f"{path}:{node.lineno}: '{name}' is not of //bazel:defs.bzl"
                )

    def test_nothing_is_visible_to_all_by_default(self) -> None:
        for path in self.build_files():
            text = (source_tree.root() / path).read_text()
            self.assertNotRegex(
                text,
                r"default_visibility\s*=\s*\[\s*\"//visibility:public\"",
                f"{path}: private by default; export a target by its own visibility",
            )


if __name__ == "__main__":
    unittest.main()
