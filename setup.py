# SPDX-License-Identifier: Apache-2.0
"""python setup.py install: builds what is missing with Bazel and installs the wheels with pip.

    python setup.py install [--user | --prefix DIR]   talweg, and the name byteps for it
    python setup.py bdist_wheel [-d DIR]              the three wheels, into dist/ unless said

`pip install .` installs talweg alone. BytePS's variables are honoured, or said to be needless.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "deploy" / "wheel"))

import checkout_backend


def _install(options: argparse.Namespace) -> int:
    wheels = checkout_backend.build(["talweg", "talweg_byteps"])
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    place = ["--user"] if options.user else []
    place += [f"--prefix={options.prefix}"] if options.prefix else []
    # As a setup.py has always installed, also where a distribution would have its users ask first.
    environment = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1"}
    anew = ["--force-reinstall", "--no-deps", *map(str, wheels)]
    # Then what they need and is not there.
    for arguments in (anew, list(map(str, wheels))):
        done = subprocess.run([*pip, *place, *arguments], env=environment, check=False)
        if done.returncode != 0:
            return done.returncode
    return 0


def _bdist_wheel(options: argparse.Namespace) -> int:
    directory = Path(options.dist_dir)
    directory.mkdir(parents=True, exist_ok=True)
    for wheel in checkout_backend.build(list(checkout_backend.LABELS)):
        shutil.copy(wheel, directory)
        print(directory / wheel.name)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    install = commands.add_parser("install")
    install.add_argument("--user", action="store_true")
    install.add_argument("--prefix")
    install.set_defaults(run=_install)
    wheel = commands.add_parser("bdist_wheel")
    wheel.add_argument("-d", "--dist-dir", default="dist")
    wheel.set_defaults(run=_bdist_wheel)
    options = parser.parse_args()
    try:
        for note in checkout_backend.notes(os.environ):
            print(f"talweg: {note}", file=sys.stderr)
        checkout_backend.require_frameworks(os.environ, sys.executable)
        status: int = options.run(options)
        return status
    except checkout_backend.BuildError as error:
        print(f"talweg: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
