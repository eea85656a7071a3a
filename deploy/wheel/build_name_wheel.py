# SPDX-License-Identifier: Apache-2.0
"""Packs a small wheel that gives a part of the package `talweg` another system's name.

    build_name_wheel.py OUTPUT.whl --version V --name byteps --file FILE... [--script COMMAND=FUNCTION]

FILEs below a directory `python` are the package; the others go where that system has them, into
NAME of the environment's root: /usr/local/byteps/launcher/launch.py, for a Python in /usr/local.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from build_wheel import Wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--file", type=Path, nargs="+", required=True)
    parser.add_argument("--script", action="append", default=[])
    arguments = parser.parse_args()
    name, version = arguments.name, arguments.version
    wheel = Wheel(
        arguments.output,
        f"talweg-{name}",
        version,
        "py3-none-any",
        f"The name {name} for the package talweg.{name}",
        [f"talweg=={version}"],
        {"console_scripts": dict(script.split("=", 1) for script in arguments.script)},
    )
    for source in sorted(arguments.file):
        place = source.parts[source.parts.index("clients") + 2 :]
        if place[0] == "python":
            target = "/".join(place[1:])
        else:
            target = "/".join([wheel.data, name, *place])
        wheel.add(target, source.read_bytes(), executable=os.access(source, os.X_OK))
    wheel.close()


if __name__ == "__main__":
    main()
