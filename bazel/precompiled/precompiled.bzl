# SPDX-License-Identifier: Apache-2.0
"""Precompiles headers, with the flags that every file is compiled with."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

_COMPILE = "c++-compile"

# g++ 12 does not know a precompiled header's system headers as such. So it warns of what it wrongly
# suspects in the code of std::string.
PRECOMPILED_COPTS = [
    "-Wno-array-bounds",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
]

# The standard library's headers that many files include.
STANDARD_HEADERS = [
    "algorithm",
    "array",
    "atomic",
    "charconv",
    "chrono",
    "condition_variable",
    "deque",
    "filesystem",
    "fstream",
    "functional",
    "map",
    "memory",
    "mutex",
    "optional",
    "set",
    "span",
    "string",
    "string_view",
    "thread",
    "unordered_map",
    "utility",
    "variant",
    "vector",
]

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    header = ctx.actions.declare_file(ctx.label.name + ".hpp")
    ctx.actions.write(header, "".join(["#include <%s>\n" % each for each in ctx.attr.headers]))
    compiled = ctx.actions.declare_file(ctx.label.name + ".hpp.gch")
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = compiled.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
        use_pic = True,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = _COMPILE,
        ),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = _COMPILE,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = _COMPILE,
            variables = variables,
        ),
        inputs = depset([header], transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "PrecompileHeader",
        progress_message = "Precompiling %s" % ctx.label,
    )
    return [DefaultInfo(files = depset([header, compiled]))]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    doc = "NAME.hpp, which includes headers, and NAME.hpp.gch, which g++ takes in its place.",
    attrs = {
        "copts": attr.string_list(doc = "Further flags of those who use it: g++ wants the same."),
        "headers": attr.string_list(mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
