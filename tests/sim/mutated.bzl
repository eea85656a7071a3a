# SPDX-License-Identifier: Apache-2.0
"""Copies of the cores' sources with the deliberate bugs of a list planted in them."""

def _mutated_sources_impl(ctx):
    copies = []
    arguments = ctx.actions.args()
    arguments.add(ctx.file.list, format = "--list=%s")
    arguments.add(ctx.outputs.table, format = "--table=%s")
    for source in ctx.files.srcs:
        copy = ctx.actions.declare_file(ctx.label.name + "/" + source.short_path)
        copies.append(copy)
        arguments.add("--source=%s=%s=%s" % (source.short_path, source.path, copy.path))
    ctx.actions.run(
        executable = "/usr/bin/python3",
        arguments = [ctx.file._mutate.path, arguments],
        inputs = ctx.files.srcs + [ctx.file.list, ctx.file._mutate],
        outputs = copies + [ctx.outputs.table],
        env = {"PATH": "/usr/bin:/bin"},
        mnemonic = "Mutate",
        progress_message = "Planting bugs in " + ctx.label.name,
    )
    return [DefaultInfo(files = depset(copies))]

mutated_sources = rule(
    implementation = _mutated_sources_impl,
    doc = "Under its name, the sources by their paths from the workspace root, each bug behind a switch.",
    attrs = {
        "list": attr.label(allow_single_file = True, mandatory = True),
        "srcs": attr.label_list(allow_files = True, mandatory = True),
        "table": attr.output(doc = "The list as rows of a C++ table.", mandatory = True),
        "_mutate": attr.label(default = "//tests/sim:mutate.py", allow_single_file = True),
    },
)
