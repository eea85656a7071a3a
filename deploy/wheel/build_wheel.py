# SPDX-License-Identifier: Apache-2.0
"""Packs the Python package, libtalweg.so and what calls it, the daemons and the tool into one wheel.

    build_wheel.py OUTPUT.whl --package DIR_FILE... --library FILE.so... --binary FILE...

The package is pure Python over a C ABI, so one wheel serves every Python from 3.9. The binaries
carry their libraries, except libc's own. The libraries that they load (libfabric and what it needs)
are packed beside them, where their RPATH finds them. The same inputs give the same bytes.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import stat
import subprocess
import zipfile
from pathlib import Path

# Every glibc has these, and they must not be mixed with another one's.
_OF_LIBC = ("linux-vdso", "ld-linux", "libc.", "libm.", "libdl.", "libpthread.", "librt.")
_DATE = (2026, 1, 1, 0, 0, 0)


def shared_libraries(binaries: list[Path]) -> dict[str, Path]:
    """The libraries that the binaries load, keyed by the names under which they load them."""
    found: dict[str, Path] = {}
    for binary in binaries:
        listing = subprocess.run(["ldd", str(binary)], check=True, capture_output=True, text=True)
        for line in listing.stdout.splitlines():
            name, _, place = line.strip().partition(" => ")
            if not place or name.startswith(_OF_LIBC):
                continue
            if place.startswith("not found"):
                raise SystemExit(f"build_wheel: {binary} needs {name}, which is not installed")
            found[name] = Path(place.split(" (")[0])
    return found


class Wheel:
    """A zip with a RECORD of what is in it."""

    def __init__(
        self,
        path: Path,
        name: str,
        version: str,
        tag: str,
        summary: str,
        requires: list[str],
        entry_points: dict[str, dict[str, str]],
    ) -> None:
        """`entry_points`: by group, names with the functions that they stand for."""
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        file_name = f"{name.replace('-', '_')}-{version}"
        self._info = f"{file_name}.dist-info"
        self.data = f"{file_name}.data/data"  # What lies below goes to the environment's root.
        self._record: list[str] = []
        metadata = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            f"Summary: {summary}",
            "License: Apache-2.0",
            "Requires-Python: >=3.9",
            *(f"Requires-Dist: {package}" for package in requires),
        ]
        self.add(f"{self._info}/METADATA", ("\n".join(metadata) + "\n").encode())
        is_pure = str(tag.endswith("-none-any")).lower()
        wheel = [
            "Wheel-Version: 1.0",
            "Generator: talweg",
            f"Root-Is-Purelib: {is_pure}",
            f"Tag: {tag}",
        ]
        self.add(f"{self._info}/WHEEL", ("\n".join(wheel) + "\n").encode())
        lines: list[str] = []
        for group, functions in entry_points.items():
            lines += [f"[{group}]", *(f"{name} = {each}" for name, each in functions.items()), ""]
        if lines:
            self.add(f"{self._info}/entry_points.txt", "\n".join(lines).encode())

    def add(self, name: str, data: bytes, executable: bool = False) -> None:
        entry = zipfile.ZipInfo(name, _DATE)
        entry.compress_type = zipfile.ZIP_DEFLATED
        # pip makes a file executable only if it is said to be a regular one.
        mode = stat.S_IFREG | (0o755 if executable else 0o644)
        entry.external_attr = mode << 16
        self._zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self._record.append(f"{name},sha256={digest},{len(data)}")

    def close(self) -> None:
        record = f"{self._info}/RECORD"
        self.add(record, ("\n".join([*self._record, f"{record},,"]) + "\n").encode())
        self._zip.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--package", type=Path, nargs="+", required=True)
    parser.add_argument("--library", type=Path, nargs="+", required=True)
    parser.add_argument("--binary", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()
    # The binaries need glibc 2.35, libtalweg.so alone 2.17.
    wheel = Wheel(
        arguments.output,
        "talweg",
        arguments.version,
        "py3-none-linux_x86_64",
        "Gradient aggregation for data-parallel training over ordinary networks",
        ["numpy"],
        {
            "console_scripts": {"talweg": "talweg._cli:main"},
            "torch.backends": {"talweg": "talweg._torch_backend:register"},
        },
    )
    for source in sorted(arguments.package):
        is_header = source.suffix == ".h"  # Kernels are built with it on the machine they run on.
        place = source.parts[source.parts.index("clients" if is_header else "talweg") :]
        wheel.add(
            "/".join(["talweg", "include", *place] if is_header else place), source.read_bytes()
        )
    for library in sorted(arguments.library):
        wheel.add(f"talweg/lib/{library.name}", library.read_bytes(), executable=True)
    for binary in sorted(arguments.binary):
        wheel.add(f"talweg/bin/{binary.name}", binary.read_bytes(), executable=True)
    for name, library in sorted(shared_libraries(arguments.binary).items()):
        wheel.add(f"talweg/lib/{name}", library.read_bytes(), executable=True)
    wheel.close()


if __name__ == "__main__":
    main()
