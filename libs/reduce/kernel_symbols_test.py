# SPDX-License-Identifier: Apache-2.0
"""What the units compiled for one instruction set leave for the linker to see: their table alone.

An inline function that the compiler emitted there would be a weak symbol. The linker keeps one copy of
such a function for the whole program, and the one with AVX-512 in it would stop every other processor.
"""

import os
import subprocess
import sys

LIBRARIES = {
    "libkernels_portable.a": "kPortableKernels",
    "libkernels_avx2.a": "kAvx2Kernels",
    "libkernels_avx512.a": "kAvx512Kernels",
}


def global_symbols(path: str) -> list[str]:
    """Names of the symbols that `path` defines and that are not local to it."""
    listing = subprocess.run(
        ["nm", "--demangle", "--defined-only", "--extern-only", "--format=posix", path],
        check=True,
        capture_output=True,
        text=True,
    )
    return [
        line.split(" ")[0]
        for line in listing.stdout.splitlines()
        # Headings of archive members end in a colon; what sanitizers add for themselves is theirs.
        if line and not line.endswith(":") and not line.startswith(("__", "DW.ref."))
    ]


def main() -> int:
    directory = os.path.join(os.environ["RUNFILES_DIR"], "talweg", "libs", "reduce")
    failures = 0
    for library, table in LIBRARIES.items():
        symbols = global_symbols(os.path.join(directory, library))
        if symbols != ["talweg::reduce::internal::" + table]:
            print(
                f"{library} defines {symbols}, not only {table}: give the others internal linkage"
            )
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
