# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of a checkout: the backend of `pip install .`, and what setup.py does.

Bazel builds what is missing and shows how far it is, on the terminal where there is one: pip keeps
back what a backend writes. It needs the Debian packages of bazel/packages.txt, and names those that
are missing. The standard library is all that this module uses, so pip has nothing to fetch for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[2]
_WHEELS = ROOT / "bazel-bin" / "deploy" / "wheel"
# Labels of the wheels by the names of the packages.
LABELS = {
    "talweg": "//deploy/wheel",
    "talweg_byteps": "//deploy/wheel:byteps_wheel",
    "talweg_horovod": "//deploy/wheel:horovod_wheel",
}

_NO_PLUGIN = "no module is compiled against a framework; each finds its own when it is imported"
_NO_CUDA = "nothing is compiled against CUDA or NCCL; the agent opens a GPU's driver when it runs"
_NO_UCX = "libfabric carries the data, by the provider that DMLC_ENABLE_RDMA chooses at run time"
_NO_MPI = "there is no MPI; mpirun starts programs without it"
# Variables of BytePS's setup.py that there is no need for, and why. talweg.byteps gives the same
# reasons when a program runs.
_NEEDLESS = {
    **{f"BYTEPS_WITHOUT_{name}": _NO_PLUGIN for name in ("TENSORFLOW", "PYTORCH", "MXNET")},
    "BYTEPS_SERVER_MXNET_PATH": _NO_PLUGIN,
    "BYTEPS_WITHOUT_PRESETUP": "nothing is fetched before the build",
    "MXNET_SOURCE_ROOT": _NO_PLUGIN,
    "MXNET_USE_MKLDNN": _NO_PLUGIN,
    **{f"BYTEPS_NCCL_{name}": _NO_CUDA for name in ("HOME", "INCLUDE", "LIB", "LINK")},
    **{f"BYTEPS_CUDA_{name}": _NO_CUDA for name in ("HOME", "INCLUDE", "LIB")},
    **{f"BYTEPS_{name}": _NO_UCX for name in ("WITH_UCX", "UCX_HOME", "UCX_PREFIX")},
    "BYTEPS_UCX_TARBALL_PATH": _NO_UCX,
    "BYTEPS_USE_MPI": _NO_MPI,
    "BYTEPS_MPICXX_SHOW": _NO_MPI,
}
_FRAMEWORKS = {"TENSORFLOW": "tensorflow", "PYTORCH": "torch", "MXNET": "mxnet"}


class BuildError(Exception):
    """What is missing, or did not build, with the remedy."""


def notes(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable of BytePS's setup.py that is set and has no effect."""
    return [
        f"{name} is needless: {why}" for name, why in _NEEDLESS.items() if environment.get(name)
    ]


def _is_there(module: str, environment: Mapping[str, str], python: str) -> bool:
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    # By these two variables pip hides what is installed from a backend. A user's own PYTHONPATH may
    # also hold the framework.
    hiding = ("PYTHONPATH", "PYTHONNOUSERSITE")
    plain = {name: value for name, value in environment.items() if name not in hiding}
    return any(
        subprocess.run([python, "-c", find], env=each, check=False).returncode == 0
        for each in (plain, environment)
    )


def require_frameworks(environment: Mapping[str, str], python: str) -> None:
    """BytePS's BYTEPS_WITH_X=1: BuildError when that framework cannot be imported."""
    for name, module in _FRAMEWORKS.items():
        if environment.get(f"BYTEPS_WITH_{name}") != "1":
            continue
        if not _is_there(module, environment, python):
            raise BuildError(
                f"BYTEPS_WITH_{name} is 1, and {python} has no {module}: install it first, or unset "
                "the variable"
            )


def missing_packages() -> list[str]:
    """The Debian packages of bazel/packages.txt that are not installed."""
    text = (ROOT / "bazel" / "packages.txt").read_text()
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    wanted = {line for line in lines if line}
    query = ["dpkg-query", "-W", "-f=${db:Status-Abbrev} ${binary:Package}\\n"]
    try:
        listing = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        raise BuildError(
            "this machine has no dpkg: build the wheel on a Debian 12 (bazel build //deploy/wheel), and "
            "install it here"
        ) from None
    installed = {
        line.split()[1].partition(":")[0] for line in listing.splitlines() if line.startswith("ii")
    }
    return sorted(wanted - installed)


def require_packages() -> None:
    missing = missing_packages()
    if missing:
        raise BuildError(
            f"the build needs Debian packages that are missing: {' '.join(missing)}\n"
            "run bazel/prepare --for=build, or as root: apt-get install --no-install-recommends "
            + " ".join(missing)
        )


@contextlib.contextmanager
def _terminal() -> Iterator[TextIO]:
    """Where progress is seen: the terminal, also when pip keeps the backend's output back."""
    try:
        with open("/dev/tty", "w") as terminal:
            yield terminal
    except OSError:
        yield sys.stderr


def build(names: list[str]) -> list[Path]:
    """Has Bazel build these wheels. BuildError when something is missing, or does not build."""
    require_packages()
    line = [sys.executable, str(ROOT / "bazel" / "bazel_progress.py")]
    if os.environ.get("TALWEG_KEEP_BAZEL") != "1":
        line.append("--shutdown")
    line += ["build", *(LABELS[name] for name in names)]
    # What pip gives a backend to find its modules by is not for Bazel's programs.
    environment = {name: value for name, value in os.environ.items() if "PYTHONPATH" not in name}
    with _terminal() as terminal:
        print("talweg: Bazel builds what is missing", file=terminal, flush=True)
        done = subprocess.run(
            line, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=terminal, check=False
        )
    if done.returncode != 0:
        raise BuildError(f"Bazel did not build the wheel (above): {' '.join(line[2:])}")
    found = []
    for name in names:
        wheels = sorted(_WHEELS.glob(f"{name}-*.whl"))
        if len(wheels) != 1:
            raise BuildError(f"Bazel has built, and {_WHEELS} holds {len(wheels)} wheels of {name}")
        found.append(wheels[0])
    return found


# ----- The hooks that pip calls (PEP 517) -----


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    return []


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Puts the wheel into the directory; returns its file name."""
    try:
        with _terminal() as terminal:
            for note in notes(os.environ):
                print(f"talweg: {note}", file=terminal, flush=True)
        require_frameworks(os.environ, sys.executable)
        [wheel] = build(["talweg"])
    except BuildError as error:
        # pip shows what a backend has written when it fails, and a traceback says nothing more.
        sys.exit(f"talweg: {error}")
    shutil.copy(wheel, wheel_directory)
    return wheel.name


def build_sdist(sdist_directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    sys.exit("talweg: there is no source distribution: use a checkout, or its wheel (pip wheel .)")
