# SPDX-License-Identifier: Apache-2.0
"""What the units compiled for one instruction set leave for the linker to see: their table alone.

Each argument is LIBRARY=TABLE: the library's path in the workspace, and its table's name.

An inline function that the compiler emitted there would be a weak symbol. The linker keeps one copy of
such a function for the whole program, and the one with AVX-512 in it would stop every other processor.
"""

import os
import subprocess
import sys


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
    workspace = os.path.join(os.environ["RUNFILES_DIR"], "talweg")
    failures = 0
    for library, table in (argument.split("=") for argument in sys.argv[1:]):
        symbols = global_symbols(os.path.join(workspace, library))
        if symbols != [table]:
            print(
                f"{library} defines {symbols}, not only {table}: give the others internal linkage"
            )
            failures += 1
    return 1 if failures or not sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
