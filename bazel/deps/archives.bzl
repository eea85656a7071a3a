# SPDX-License-Identifier: Apache-2.0
"""Link flags for Debian's static archives, which -lNAME would pass over for the shared library."""

def archives(names):
    """Returns linkopts that link the named archives, whatever order they refer to each other in."""
    return ["-Wl,--start-group"] + ["-l:%s" % name for name in names] + ["-Wl,--end-group"]
