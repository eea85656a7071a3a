# SPDX-License-Identifier: Apache-2.0
"""Copies of the cores' sources with the deliberate bugs of a list planted in them."""

load("//bazel/together:together.bzl", "units_of")

_Sources = provider(
    doc = "What is compiled of a library and of all that it depends on (units_of).",
    fields = ["units"],
)

def _sources_impl(_, ctx):
    own = [unit for unit in units_of(ctx.rule) if unit.sources[0].is_source]
    deps = [dep[_Sources].units for dep in getattr(ctx.rule.attr, "deps", []) if _Sources in dep]
    return [_Sources(units = depset(own, transitive = deps))]

_sources = aspect(implementation = _sources_impl, attr_aspects = ["deps"])

def _mutated_sources_impl(ctx):
    units = depset(transitive = [library[_Sources].units for library in ctx.attr.libraries])
    sources = []
    copies = []
    arguments = ctx.actions.args()
    arguments.use_param_file("@%s")
    arguments.set_param_file_format("multiline")
    arguments.add(ctx.file.list, format = "--list=%s")
    arguments.add(ctx.outputs.table, format = "--table=%s")
    for unit in units.to_list():
        copy = ctx.actions.declare_file(ctx.label.name + "/" + unit.file.short_path)
        copies.append(copy)
        sources += list(unit.sources)
        arguments.add_all(list(unit.sources), format_each = "--source=%s=" + copy.path)
    ctx.actions.run(
        executable = "/usr/bin/python3",
        arguments = [ctx.file._mutate.path, arguments],
        inputs = sources + [ctx.file.list, ctx.file._mutate],
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
objects whose symbols it has not seen yet. Sources that are compiled as one have one copy. It is empty
if none of them has a bug, so that what is compiled for everybody is linked.""",
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
