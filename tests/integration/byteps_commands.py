# SPDX-License-Identifier: Apache-2.0
"""Runs launch.py with the variables of a job, for tests of BytePS's commands."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import unittest
from collections.abc import Sequence
from pathlib import Path

import job
import numpy as np

_BYTEPS = Path(job.TOOL).parents[1] / "byteps"
LAUNCH = [sys.executable, "-P", str(_BYTEPS / "launcher" / "launch.py")]
# How BytePS's launcher starts a server and a scheduler, and what its users have in scripts.
IMPORT_SERVER = [sys.executable, "-P", "-c", "import byteps.server"]
MXNET = _BYTEPS / "example" / "mxnet"
PYTORCH = _BYTEPS / "example" / "pytorch"
TENSORFLOW = _BYTEPS / "example" / "tensorflow"
KERAS = _BYTEPS / "example" / "keras"
# What the examples say of their speed, for one rank and for all.
SPEED = r"Speed: (\d+\.\d) img/sec per [CG]PU, (\d+\.\d) in all"


def environment(**variables: str) -> dict[str, str]:
    """Returns this process's environment, without a job's variables and with python on PATH."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BYTEPS_", "DMLC_"))}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    # With few threads the ranks disturb each other less on a small machine.
    return {**kept, "OMP_NUM_THREADS": "1", **variables}


def run(arguments: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs launch.py with these variables. Processes that it has started end with it."""
    return subprocess.run(
        [*LAUNCH, *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=job.TIMEOUT_S,
        check=False,
    )


def start(
    test: unittest.TestCase, arguments: list[str], launch: Sequence[str] = LAUNCH, **variables: str
) -> subprocess.Popen[str]:
    """Starts launch.py, or `launch`, with these variables. It ends with the test. Its output
    includes errors.
    """
    process = subprocess.Popen(
        [*launch, *arguments],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    test.addCleanup(process.wait)
    test.addCleanup(process.terminate)
    return process


def make_images(directory: Path) -> None:
    """Makes directories train and val, each with two classes of small images."""
    random = np.random.RandomState(0)
    for part, count in (("train", 10), ("val", 3)):
        for number, name in enumerate(("dark", "light")):
            place = directory / part / name
            place.mkdir(parents=True)
            for each in range(count):
                pixels = random.randint(0, 128, (40, 48, 3), np.uint8) + np.uint8(127 * number)
                data = pixels.tobytes()
                header = struct.pack("<2sIII", b"BM", 54 + len(data), 0, 54)
                shape = struct.pack("<IiiHHIIiiII", 40, 48, 40, 1, 24, 0, len(data), 0, 0, 0, 0)
                (place / f"{each}.bmp").write_bytes(header + shape + data)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def shared(**variables: str) -> dict[str, str]:
    """Returns the variables that all processes of a job on this machine have."""
    return {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": free_port(),
        **variables,
    }
