# SPDX-License-Identifier: Apache-2.0
"""Another user of this machine, for tests that root runs."""

from __future__ import annotations

import os
import subprocess
import sys

UID = 65534
# Becomes that user. It may still read the tree that is tested, which may lie in root's home: nothing
# more, and it may write nowhere that its uid may not.
BECOME = (
    "setpriv",
    f"--reuid={UID}",
    f"--regid={UID}",
    "--clear-groups",
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
    "--securebits=+no_setuid_fixup",  # Else access() forgets what open() may.
    "--",
)


def why_not() -> str | None:
    """Why no process of another user can be started here; None when it can."""
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
