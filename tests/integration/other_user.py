# SPDX-License-Identifier: Apache-2.0
"""Starts processes of another user, for tests that root runs."""

from __future__ import annotations

import os
import subprocess
import sys

UID = 65534
# Becomes that user. The process may still read the tested tree, which may lie in root's home. It
# may write only where its uid may.
BECOME = (
    "setpriv",
    f"--reuid={UID}",
    f"--regid={UID}",
    "--clear-groups",
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
    "--securebits=+no_setuid_fixup",  # Without it access() denies files that open() may read.
    "--",
)


def why_not() -> str | None:
    """Returns why no process of another user can be started here; None if it can."""
    if os.geteuid() != 0:
        return "only root can start processes of another user"
    try:
        done = subprocess.run(
            [*BECOME, sys.executable, "-c", "import os; print(os.getuid())"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return f"setpriv: {error}"
    return None if done.stdout == f"{UID}\n" else f"setpriv: {done.stderr.strip()}"
