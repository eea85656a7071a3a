# SPDX-License-Identifier: Apache-2.0
"""clang-tidy as a test: one action a source file, so that only what changed is looked at again."""

load("//bazel/sanitizers:skip.bzl", "skip_under_sanitizer")

_TidyInfo = provider(
    "Findings of clang-tidy, one report a source file; an empty report is a clean file.",
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
    reports = []
    for src in ctx.rule.files.srcs:
        if src.extension != "cc" or not src.is_source:
            continue
        report = ctx.actions.declare_file("_tidy/%s/%s.txt" % (target.label.name, src.basename))
        flags = ["-std=c++20", "-iquote", ".", "-iquote", ctx.bin_dir.path]
        flags += ["-D" + define for define in compilation.defines.to_list()]
        flags += [flag for flag in ctx.rule.attr.copts if flag.startswith("-m")]
        ctx.actions.run_shell(
            command = _SCRIPT.format(tidy = _CLANG_TIDY),
            arguments = [report.path, "--config-file=" + ctx.file._config.path, src.path, "--"] + flags,
            inputs = depset(
                [src, ctx.file._config] + ctx.rule.files.srcs,
                transitive = [compilation.headers],
            ),
            outputs = [report],
            mnemonic = "TalwegClangTidy",
            progress_message = "Checking %s with clang-tidy" % src.short_path,
        )
        reports.append(report)
    return [_TidyInfo(reports = depset(reports))]

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
                "echo \"files with findings: $failed\"",
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
