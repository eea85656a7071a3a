# SPDX-License-Identifier: Apache-2.0
"""Horovod's way to ask programs for their version. Talweg does not offer it."""

from talweg.horovod._absent import missing

raise missing(
    "horovod.runner.common.util.tiny_shell_exec",
    "use subprocess.run(), or horovod.runner.common.util.safe_shell_exec.execute()",
)
