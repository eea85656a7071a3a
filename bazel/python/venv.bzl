# SPDX-License-Identifier: Apache-2.0
"""Makes Python programs and tests that the workspace's .venv runs, or a framework's environment.

Bazel's native py_test starts with a command named `python`, which Debian has not, and knows no virtual
environment; py_library is used as it is.
"""

def _venv_py_impl(ctx):
    launcher = ctx.actions.declare_file(ctx.label.name)
    package_dir = ctx.label.package
    imports = [
        "/".join([part for part in [ctx.workspace_name, package_dir, path] if part and part != "."])
        for path in ctx.attr.imports
    ]
    imports = depset(imports, transitive = [dep[PyInfo].imports for dep in ctx.attr.deps])
    ctx.actions.expand_template(
        template = ctx.file._launcher,
        output = launcher,
        is_executable = True,
        substitutions = {
            "%{imports}": " ".join(imports.to_list()),
            "%{interpreter}": ctx.workspace_name + "/" + ctx.file._interpreter.short_path,
            "%{is_test}": "true" if ctx.attr.is_test else "false",
            "%{main}": ctx.workspace_name + "/" + ctx.file.main.short_path,
            "%{venv}": ctx.attr.venv,
        },
    )
    runfiles = ctx.runfiles(
        files = ctx.files.srcs + [ctx.file.main, ctx.file._interpreter, ctx.file.requirements],
        transitive_files = depset(
            transitive = [dep[PyInfo].transitive_sources for dep in ctx.attr.deps] +
                         [target[DefaultInfo].files for target in ctx.attr.data],
        ),
    )
    for target in ctx.attr.deps + ctx.attr.data:
        runfiles = runfiles.merge(target[DefaultInfo].default_runfiles)
    return [
        DefaultInfo(executable = launcher, runfiles = runfiles),
        testing.TestEnvironment(ctx.attr.env),
    ]

_ATTRS = {
    "data": attr.label_list(allow_files = True),
    "deps": attr.label_list(providers = [PyInfo]),
    "env": attr.string_dict(),
    "imports": attr.string_list(),
    "main": attr.label(allow_single_file = [".py"], mandatory = True),
    "srcs": attr.label_list(allow_files = [".py"]),
    # Where the environment is, from the workspace's root.
    "venv": attr.string(default = ".venv"),
    "_interpreter": attr.label(default = "//bazel/python:venv_python.sh", allow_single_file = True),
    "_launcher": attr.label(default = "//bazel/python:launcher.sh.tpl", allow_single_file = True),
    # The list of the environment's packages is an input, and stands for the environment.
    "requirements": attr.label(default = "//bazel:requirements.txt", allow_single_file = True),
}

def _attrs(is_test):
    return dict(_ATTRS, is_test = attr.bool(default = is_test))

venv_py_binary = rule(implementation = _venv_py_impl, attrs = _attrs(is_test = False), executable = True)

venv_py_test = rule(implementation = _venv_py_impl, attrs = _attrs(is_test = True), test = True)
