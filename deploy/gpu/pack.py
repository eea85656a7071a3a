# SPDX-License-Identifier: Apache-2.0
"""Packs programs with all that they have at run time into one .tar.xz.

    pack.py OUTPUT.tar.xz --entry=SCRIPT --program=PLACE... --file=PLACE=FILE...

It unpacks into one directory, talweg/, with the script at its top as `run`, the files in their places, and the
programs' places in programs.txt. Programs are stripped. The shared libraries that they load lie in lib/, except those
of libc and of the C++ runtime, which every system with a framework has. The same inputs give the same bytes.
"""

from __future__ import annotations

import argparse
import io
import lzma
import subprocess
import tarfile
import tempfile
from pathlib import Path

from build_wheel import shared_libraries

_OF_CXX = ("libstdc++.", "libgcc_s.")
# A higher level makes it hardly smaller, in ten times the time.
_LZMA_PRESET = 1


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def stripped(path: Path, scratch: Path) -> bytes:
    copy = scratch / "stripped"
    subprocess.run(["strip", "--strip-unneeded", "-o", str(copy), str(path)], check=True)
    return copy.read_bytes()


def add(archive: tarfile.TarFile, name: str, data: bytes, executable: bool) -> None:
    entry = tarfile.TarInfo(f"talweg/{name}")
    entry.size = len(data)
    entry.mode = 0o755 if executable else 0o644
    archive.addfile(entry, io.BytesIO(data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, fromfile_prefix_chars="@")
    parser.add_argument("output", type=Path)
    parser.add_argument("--entry", type=Path, required=True)
    parser.add_argument("--program", action="append", required=True)
    parser.add_argument("--file", action="append", required=True)
    arguments = parser.parse_args()
    files = {
        place: Path(path) for place, _, path in (each.partition("=") for each in arguments.file)
    }
    with (
        tempfile.TemporaryDirectory() as scratch,
        lzma.open(arguments.output, "wb", preset=_LZMA_PRESET) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        add(archive, "run", arguments.entry.read_bytes(), True)
        add(
            archive,
            "programs.txt",
            "".join(f"{each}\n" for each in arguments.program).encode(),
            False,
        )
        binaries = []
        for place, path in sorted(files.items()):
            elf = is_elf(path)
            data = stripped(path, Path(scratch)) if elf else path.read_bytes()
            add(archive, place, data, elf or data.startswith(b"#!"))
            if elf:
                binaries.append(path)
        for name, library in sorted(shared_libraries(binaries).items()):
            if not name.startswith(_OF_CXX):
                add(archive, f"lib/{name}", library.read_bytes(), True)


if __name__ == "__main__":
    main()
