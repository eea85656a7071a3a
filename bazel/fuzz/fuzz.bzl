# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzz tests with clang's libFuzzer.

The workspace's toolchain is g++. An aspect compiles the sources of a fuzz test's libraries a second time,
with clang, libFuzzer's instrumentation, ASan and UBSan. Fuzz tests of one library share its objects.
"""

load("//bazel/sanitizers:skip.bzl", "skip_under_sanitizer")
load("//bazel/together:together.bzl", "units_of")

_FuzzObjectsInfo = provider(
    "What a library brings into a fuzz test.",
    fields = {
        "defines": "depset of macros that its users compile with",
        "headers": "depset of File",
        "linkopts": "depset of tuples of linker flags",
        "objects": "depset of File",
    },
)

_CLANG = "/usr/bin/clang++-16"

_COMPILE_FLAGS = [
    "-std=c++20",
    "-O1",
    "-gline-tables-only",
    "-fno-omit-frame-pointer",
    "-fsanitize=fuzzer-no-link,address,undefined",
    "-fno-sanitize-recover=all",
    # The runtime's own archive lacks the function type checks.
    "-fno-sanitize=function",
    "-fPIC",
    "-w",
]

# Kernels over vector types take clang two minutes of CPU with -O1 and the sanitizers. Tables of options
# and generated messages take 20 s each.
_SLOW_FLAGS = ["-O0"]

def _is_slow(unit):
    for src in unit.sources:
        if (src.basename.startswith("kernels_") or src.basename.endswith(".pb.cc") or
            src.basename == "options.cc"):
            return True
    return False

# Where a file begins with the precompiled header, clang takes a quarter less time. It takes the header
# only with the flags that it was made with.
_PRECOMPILED = "//bazel/fuzz:standard"

_LINK_FLAGS = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]

def _begins_precompiled(unit, flags):
    return not _is_slow(unit) and not flags

def _precompiled_header_impl(ctx):
    compiled = ctx.actions.declare_file(ctx.label.name + ".pch")
    header = [f for f in ctx.files.header if f.extension == "hpp"][0]
    args = ctx.actions.args()
    args.add_all(_COMPILE_FLAGS)

    # Other sandboxes have the header at other paths, and with another time.
    args.add_all(["-Xclang", "-fmodules-embed-all-files", "-Xclang", "-fno-pch-timestamp"])
    args.add("-fpch-instantiate-templates")
    args.add_all(["-x", "c++-header", header, "-o", compiled])
    ctx.actions.run(
        executable = _CLANG,
        arguments = [args],
        inputs = [header],
        outputs = [compiled],
        mnemonic = "TalwegFuzzPrecompile",
        progress_message = "Precompiling %s" % ctx.label,
    )
    return [DefaultInfo(files = depset([header, compiled]))]

fuzz_precompiled_header = rule(
    implementation = _precompiled_header_impl,
    doc = "NAME.pch: a header as clang takes it with the flags of fuzz tests.",
    attrs = {"header": attr.label(mandatory = True)},
)

def _compile(actions, bin_dir, directory, rule, headers, defines, copts, precompiled):
    objects = []
    private_headers = [file for file in rule.files.srcs if file.extension != "cc"]
    flags = [flag for flag in copts if flag.startswith("-m") or flag.startswith("-f")]
    compiled_header = [f for f in precompiled if f.extension == "pch"][0]
    for unit in units_of(rule):
        src = unit.file
        output = actions.declare_file("%s/%s.o" % (directory, src.basename))
        args = actions.args()
        args.add_all(_COMPILE_FLAGS)
        if _is_slow(unit):
            args.add_all(_SLOW_FLAGS)
        args.add_all(flags)
        further = []
        if _begins_precompiled(unit, flags):
            args.add("-include-pch", compiled_header)
            further = precompiled
        args.add_all(defines, format_each = "-D%s")
        args.add_all(["-iquote", ".", "-iquote", bin_dir])
        args.add("-c", src)
        args.add("-o", output)
        actions.run(
            executable = _CLANG,
            arguments = [args],
            inputs = depset(
                [src] + private_headers + further,
                transitive = [headers],
            ),
            outputs = [output],
            mnemonic = "TalwegFuzzCompile",
            progress_message = "Compiling %s for fuzzing" % src.short_path,
        )
        objects.append(output)
    return objects

def _collect(deps, field, direct = []):
    return depset(
        direct,
        transitive = [getattr(dep[_FuzzObjectsInfo], field) for dep in deps if _FuzzObjectsInfo in dep],
        order = "topological",
    )

def _fuzz_objects_aspect_impl(target, ctx):
    if ctx.rule.kind != "cc_library":
        return []
    deps = ctx.rule.attr.deps
    headers = _collect(deps, "headers", ctx.rule.files.hdrs + ctx.rule.files.textual_hdrs)
    defines = _collect(deps, "defines", ctx.rule.attr.defines)
    objects = _compile(
        ctx.actions,
        ctx.bin_dir.path,
        "_fuzz/" + target.label.name,
        ctx.rule,
        headers,
        defines,
        ctx.rule.attr.copts,
        ctx.files._precompiled,
    )
    linkopts = [tuple(ctx.rule.attr.linkopts)] if ctx.rule.attr.linkopts else []
    return [_FuzzObjectsInfo(
        objects = _collect(deps, "objects", objects),
        headers = headers,
        defines = defines,
        linkopts = _collect(deps, "linkopts", linkopts),
    )]

_fuzz_objects_aspect = aspect(
    implementation = _fuzz_objects_aspect_impl,
    attr_aspects = ["deps"],
    attrs = {"_precompiled": attr.label(default = _PRECOMPILED)},
)

def _cc_fuzz_test_impl(ctx):
    runner = ctx.actions.declare_file(ctx.label.name)
    if ctx.var.get("talweg_sanitizer"):
        # Nothing asks for the objects, so Bazel compiles none.
        skip_under_sanitizer(ctx, runner, "a fuzz test brings its own ASan and UBSan; ./test without one runs it")
        return [DefaultInfo(executable = runner)]
    objects = _compile(
        ctx.actions,
        ctx.bin_dir.path,
        "_fuzz/" + ctx.label.name,
        ctx,
        _collect(ctx.attr.deps, "headers"),
        _collect(ctx.attr.deps, "defines"),
        [],
        ctx.files._precompiled,
    )
    fuzzer = ctx.actions.declare_file(ctx.label.name + "_fuzzer")
    all_objects = _collect(ctx.attr.deps, "objects", objects)
    args = ctx.actions.args()
    args.add_all(_LINK_FLAGS)
    args.add("-o", fuzzer)
    args.add_all(all_objects)
    for flags in _collect(ctx.attr.deps, "linkopts").to_list():
        args.add_all(flags)
    ctx.actions.run(
        executable = _CLANG,
        arguments = [args],
        inputs = all_objects,
        outputs = [fuzzer],
        mnemonic = "TalwegFuzzLink",
        progress_message = "Linking fuzzer %s" % ctx.label,
    )
    ctx.actions.expand_template(
        template = ctx.file._runner,
        output = runner,
        is_executable = True,
        substitutions = {
            "%{corpus}": " ".join(["'%s'" % f.short_path for f in ctx.files.corpus]),
            "%{dictionary}": ctx.file.dictionary.short_path if ctx.file.dictionary else "",
            "%{fuzzer}": fuzzer.short_path,
            "%{input_bytes_max}": str(ctx.attr.input_bytes_max),
        },
    )
    files = [fuzzer] + ctx.files.corpus + ([ctx.file.dictionary] if ctx.file.dictionary else [])
    return [DefaultInfo(executable = runner, runfiles = ctx.runfiles(files = files))]

cc_fuzz_test = rule(
    implementation = _cc_fuzz_test_impl,
    attrs = {
        "corpus": attr.label_list(allow_files = True),
        "deps": attr.label_list(providers = [CcInfo], aspects = [_fuzz_objects_aspect]),
        "dictionary": attr.label(allow_single_file = True),
        "input_bytes_max": attr.int(default = 4096),
        "srcs": attr.label_list(allow_files = [".cc", ".h"], mandatory = True),
        "_precompiled": attr.label(default = _PRECOMPILED),
        "_runner": attr.label(
            default = "//bazel/fuzz:run_fuzz.sh.tpl",
            allow_single_file = True,
        ),
    },
    test = True,
)
