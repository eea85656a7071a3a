# SPDX-License-Identifier: Apache-2.0
"""Compiles kernels with nvcc, in builds with --config=cuda. Other builds run nothing of this."""

def cuda_image_object(name, src, hdrs, symbol):
    """An object with the fatbin of a .cu file between <symbol>_begin and <symbol>_end.

    Args:
      name: target name; the object is <name>.o.
      src: the .cu file; it includes by paths from the workspace root.
      hdrs: headers that it includes.
      symbol: prefix of the two symbols.
    """
    native.genrule(
        name = name,
        srcs = [src] + hdrs,
        outs = [name + ".o"],
        cmd = "$(execpath //bazel/deps/cuda:nvcc.sh) image $@ %s $(execpath %s)" % (symbol, src),
        tools = ["//bazel/deps/cuda:nvcc.sh"],
        message = "Compiling GPU kernels",
        tags = ["manual"],
    )

def cuda_headers(name, visibility = None):
    """cuda.h and nccl.h of the toolkit, as a library that is empty without --config=cuda.

    For tests that compare our declarations with them.

    Args:
      name: target name.
      visibility: as for cc_library.
    """
    native.genrule(
        name = name + "_files",
        outs = [
            name + "/cuda.h",
            name + "/cuda_fp16.h",
            name + "/cuda_runtime.h",
            name + "/nccl.h",
        ],
        cmd = "$(execpath //bazel/deps/cuda:nvcc.sh) headers $(RULEDIR)/" + name,
        tools = ["//bazel/deps/cuda:nvcc.sh"],
        tags = ["manual"],
    )
    native.cc_library(
        name = name + "_enabled",
        hdrs = [name + "_files"],
        includes = [name],
        tags = ["manual"],
    )
    native.cc_library(name = name + "_disabled")
    native.alias(
        name = name,
        actual = select({
            "//bazel/deps/cuda:enabled": name + "_enabled",
            "//conditions:default": name + "_disabled",
        }),
        visibility = visibility,
    )
