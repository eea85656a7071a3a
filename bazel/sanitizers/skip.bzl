# SPDX-License-Identifier: Apache-2.0
"""Skips tests that a sanitizer cannot check."""

def skip_under_sanitizer(ctx, runner, reason):
    """Writes a test's executable that prints why it is skipped, which ./test counts."""
    ctx.actions.write(
        output = runner,
        is_executable = True,
        content = "#!/bin/bash\necho 'SKIPPED: %s'\n" % reason,
    )
