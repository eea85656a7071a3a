# SPDX-License-Identifier: Apache-2.0
"""Compiles several sources of a library as one, in a third of the time.

Most of a compiler's time goes into headers, and into templates that many sources use. So the sources of a
library do not give two things one name, not even in unnamed namespaces, and undefine their macros.
"""

TogetherInfo = provider(
    "The sources of a library.",
    fields = {"units": "list of struct(file: what is compiled, sources: tuple of the Files that it consists of)"},
)

# The more, the less time for all, and the longer the compiler takes after a change of one.
_SOURCES_MAX = 8

# The compiler names the source and its line, not the copy's.
_SCRIPT = """
for source in "${@:2}"; do
  printf '#line 1 "%s"\\n' "$source"
  cat "$source"
done >"$1"
"""

def _joined(ctx, sources, number):
    file = ctx.actions.declare_file("%s/%d.cc" % (ctx.label.name, number))
    arguments = ctx.actions.args()
    arguments.add(file)
    arguments.add_all(sources)
    ctx.actions.run_shell(
        command = _SCRIPT,
        arguments = [arguments],
        inputs = sources,
        outputs = [file],
        mnemonic = "TalwegJoin",
        progress_message = "Joining sources of %s" % ctx.label,
    )
    return file

def _apart(files):
    return [struct(file = file, sources = (file,)) for file in files if file.extension == "cc"]

def _joined_sources_impl(ctx):
    sources = [file for file in ctx.files.srcs if file.extension == "cc"]
    others = [file for file in ctx.files.srcs if file.extension != "cc"]
    if ctx.var["COMPILATION_MODE"] == "dbg":
        # Who debugs changes one source after the other. And this finds an include that is missing.
        units = _apart(sources)
    else:
        units = []
        count = (len(sources) + _SOURCES_MAX - 1) // _SOURCES_MAX
        for i in range(count):
            part = sources[i * len(sources) // count:(i + 1) * len(sources) // count]
            units.append(struct(file = _joined(ctx, part, i + 1), sources = tuple(part)))
    return [
        DefaultInfo(files = depset([unit.file for unit in units] + others)),
        TogetherInfo(units = units),
    ]

joined_sources = rule(
    implementation = _joined_sources_impl,
    doc = "The sources and private headers of a library; of its sources a few large ones are made.",
    attrs = {"srcs": attr.label_list(allow_files = True, mandatory = True)},
)

def units_of(rule):
    """Returns what is compiled for a target, as TogetherInfo has it.

    Args:
      rule: the target's context; an aspect has it as ctx.rule.
    """
    units = []
    for target in getattr(rule.attr, "srcs", []):
        if TogetherInfo in target:
            units += target[TogetherInfo].units
        else:
            units += _apart(target.files.to_list())
    return units
