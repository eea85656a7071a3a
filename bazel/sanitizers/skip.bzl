# SPDX-License-Identifier: Apache-2.0
"""Tests that a sanitizer has nothing to do with say so instead of running."""

def skip_under_sanitizer(ctx, runner, reason):
    """Writes a test's executable that prints why it is skipped, which ./test counts."""
    ctx.actions.write(
        output = runner,
        is_executable = True,
        content = "#!/bin/bash\necho 'SKIPPED: %s'\n" % reason,
    )
