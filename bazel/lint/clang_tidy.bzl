# SPDX-License-Identifier: Apache-2.0
"""clang-tidy as a test: one action a library, so that only what changed is looked at again.

An action looks at all sources of its library as one file, because most of clang-tidy's time goes into the
headers.
"""

load("//bazel/sanitizers:skip.bzl", "skip_under_sanitizer")
load("//bazel/together:together.bzl", "units_of")

_TidyInfo = provider(
    "Findings of clang-tidy, one report a library; the report of a clean library is empty.",
    fields = {"reports": "depset of File"},
)

_CLANG_TIDY = "/usr/bin/clang-tidy-16"

# An action that fails would stop the build, so the test judges the report.
_SCRIPT = """
report=$1; shift
if ! {tidy} --quiet "$@" >"$report" 2>"$report.err" && [ ! -s "$report" ]; then
  cat "$report.err" >"$report"
fi
rm -f "$report.err"
sed -i "s|$PWD/||g" "$report"  # Paths as in the source tree.
"""

def _clang_tidy_aspect_impl(target, ctx):
    if ctx.rule.kind not in ["cc_library", "cc_binary"] or CcInfo not in target:
        return [_TidyInfo(reports = depset())]
    compilation = target[CcInfo].compilation_context
    sources = [src for unit in units_of(ctx.rule) for src in unit.sources if src.is_source]
    if not sources:
        return [_TidyInfo(reports = depset())]
    together = ctx.actions.declare_file("_tidy/%s.cc" % target.label.name)
    ctx.actions.write(together, "".join(["#include \"%s\"\n" % src.path for src in sources]))
    report = ctx.actions.declare_file("_tidy/%s.txt" % target.label.name)
    flags = ["-std=c++20", "-iquote", ".", "-iquote", ctx.bin_dir.path]
    flags += ["-D" + define for define in compilation.defines.to_list()]
    flags += [flag for flag in ctx.rule.attr.copts if flag.startswith("-m")]
    ctx.actions.run_shell(
        command = _SCRIPT.format(tidy = _CLANG_TIDY),
        arguments = [report.path, "--config-file=" + ctx.file._config.path, together.path, "--"] + flags,
        inputs = depset(
            [together, ctx.file._config] + sources + [src for src in ctx.rule.files.srcs if src.extension != "cc"],
            transitive = [compilation.headers],
        ),
        outputs = [report],
        mnemonic = "TalwegClangTidy",
        progress_message = "Checking %s with clang-tidy" % target.label,
    )
    return [_TidyInfo(reports = depset([report]))]

_clang_tidy_aspect = aspect(
    implementation = _clang_tidy_aspect_impl,
    attrs = {
        "_config": attr.label(default = "//:.clang-tidy", allow_single_file = True),
    },
)

def _clang_tidy_test_impl(ctx):
    reports = depset(transitive = [target[_TidyInfo].reports for target in ctx.attr.targets])
    runner = ctx.actions.declare_file(ctx.label.name)
    if ctx.var.get("talweg_sanitizer"):
        # Nothing asks for the reports, so Bazel makes none.
        skip_under_sanitizer(ctx, runner, "a sanitizer does not change the sources; ./test without one reads them")
        return [DefaultInfo(executable = runner)]
    ctx.actions.write(
        output = runner,
        is_executable = True,
        content = "\n".join(
            ["#!/bin/bash", "failed=0", "for report in \\"] +
            ["  %s \\" % report.short_path for report in reports.to_list()] +
            [
                "; do",
                "  [ -s \"$report\" ] || continue",
                "  failed=$((failed + 1))",
                "  cat \"$report\"",
                "done",
                "echo \"libraries with findings: $failed\"",
                "[ $failed = 0 ]",
                "",
            ],
        ),
    )
    return [DefaultInfo(executable = runner, runfiles = ctx.runfiles(transitive_files = reports))]

clang_tidy_test = rule(
    implementation = _clang_tidy_test_impl,
    attrs = {"targets": attr.label_list(aspects = [_clang_tidy_aspect], mandatory = True)},
    test = True,
)
