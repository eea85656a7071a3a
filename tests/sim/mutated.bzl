# SPDX-License-Identifier: Apache-2.0
"""Copies of the cores' sources with the deliberate bugs of a list planted in them."""

_Sources = provider(
    doc = "The .cc files of a library and of all that it depends on.",
    fields = ["files"],
)

def _sources_impl(_, ctx):
    own = [file for file in getattr(ctx.rule.files, "srcs", []) if file.is_source and file.extension == "cc"]
    deps = [dep[_Sources].files for dep in getattr(ctx.rule.attr, "deps", []) if _Sources in dep]
    return [_Sources(files = depset(own, transitive = deps))]

_sources = aspect(implementation = _sources_impl, attr_aspects = ["deps"])

def _mutated_sources_impl(ctx):
    sources = depset(transitive = [library[_Sources].files for library in ctx.attr.libraries])
    copies = []
    arguments = ctx.actions.args()
    arguments.use_param_file("@%s")
    arguments.set_param_file_format("multiline")
    arguments.add(ctx.file.list, format = "--list=%s")
    arguments.add(ctx.outputs.table, format = "--table=%s")
    for source in sources.to_list():
        copy = ctx.actions.declare_file(ctx.label.name + "/" + source.short_path)
        copies.append(copy)
        arguments.add("--source=%s=%s" % (source.path, copy.path))
    ctx.actions.run(
        executable = "/usr/bin/python3",
        arguments = [ctx.file._mutate.path, arguments],
        inputs = depset([ctx.file.list, ctx.file._mutate], transitive = [sources]),
        outputs = copies + [ctx.outputs.table],
        env = {"PATH": "/usr/bin:/bin"},
        mnemonic = "Mutate",
        progress_message = "Planting bugs in " + ctx.label.name,
    )
    return [DefaultInfo(files = depset(copies))]

mutated_sources = rule(
    implementation = _mutated_sources_impl,
    doc = """Copies of the .cc files of some libraries, each bug behind a switch.

A test that has the copies among its own sources runs them: the linker takes of a library only those
files whose symbols it has not seen yet. The copy of a file without a bug is empty, so that the file
itself, compiled for everybody, is linked.""",
    attrs = {
        "libraries": attr.label_list(
            doc = "Bugs may be planted in these and in all that they depend on.",
            aspects = [_sources],
            mandatory = True,
        ),
        "list": attr.label(allow_single_file = True, mandatory = True),
        "table": attr.output(doc = "The list as rows of a C++ table.", mandatory = True),
        "_mutate": attr.label(default = "//tests/sim:mutate.py", allow_single_file = True),
    },
)
