# SPDX-License-Identifier: Apache-2.0
"""Makes an archive of programs with everything that they need at run time."""

def _runfiles_archive_impl(ctx):
    files = []
    for target in ctx.attr.programs + ctx.attr.data:
        files += [target[DefaultInfo].files, target[DefaultInfo].default_runfiles.files]
    files = depset(transitive = files)
    programs = [target[DefaultInfo].files_to_run.executable.short_path for target in ctx.attr.programs]
    arguments = ctx.actions.args()
    arguments.use_param_file("@%s", use_always = True)
    arguments.set_param_file_format("multiline")
    arguments.add(ctx.outputs.out)
    arguments.add(ctx.file.entry, format = "--entry=%s")
    arguments.add_all(programs, format_each = "--program=%s")
    arguments.add_all(files, format_each = "--file=%s", map_each = _named, expand_directories = False)
    ctx.actions.run(
        executable = "/usr/bin/python3",
        arguments = [ctx.file._packer.path, arguments],
        inputs = depset([ctx.file.entry, ctx.file._packer, ctx.file._libraries], transitive = [files]),
        outputs = [ctx.outputs.out],
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ctx.file._libraries.dirname},
        mnemonic = "Archive",
        progress_message = "Packing " + ctx.outputs.out.short_path,
    )
    return [DefaultInfo(files = depset([ctx.outputs.out]))]

def _named(file):
    return file.short_path + "=" + file.path

runfiles_archive = rule(
    implementation = _runfiles_archive_impl,
    doc = "A .tar.xz with the runfiles tree of some programs, and a program that starts them.",
    attrs = {
        "data": attr.label_list(doc = "Further files of the archive."),
        "entry": attr.label(doc = "The script at the top.", allow_single_file = True, mandatory = True),
        "out": attr.output(mandatory = True),
        "programs": attr.label_list(doc = "Programs whose names the script finds in programs.txt."),
        "_libraries": attr.label(default = "//deploy/wheel:build_wheel.py", allow_single_file = True),
        "_packer": attr.label(default = "//deploy/gpu:pack.py", allow_single_file = True),
    },
)
