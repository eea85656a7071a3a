# SPDX-License-Identifier: Apache-2.0
"""Link flags for Debian's static archives. With -lNAME the linker would take the shared library."""

def archives(names):
    """Returns linkopts that link the named archives, whatever order they refer to each other in.

    Under TSan their shared libraries are linked instead. Their code is not instrumented, and TSan tells it from
    ours by the library that a call comes from (bazel/sanitizers/options.cc).
    """
    return select({
        "//bazel/sanitizers:tsan": ["-Wl,--push-state,--as-needed"] +
                                   ["-l%s" % name[len("lib"):-len(".a")] for name in names] +
                                   ["-Wl,--pop-state"],
        "//conditions:default": ["-Wl,--start-group"] +
                                ["-l:%s" % name for name in names] +
                                ["-Wl,--end-group"],
    })
