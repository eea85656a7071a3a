# SPDX-License-Identifier: Apache-2.0
"""The macros that make every target of this workspace.

Each checks the target's edges against //bazel:layers.bzl. Targets are private unless they say otherwise.
`deps` and `data` are plain lists: a select() could hide an edge from the check.
"""

load("//bazel:archive.bzl", "runfiles_archive")
load("//bazel:layers.bzl", "check_edges")
load("//bazel:proto.bzl", "cc_proto_codegen")
load("//bazel:test_copts.bzl", "CATCH2_COPTS")
load("//bazel/fuzz:fuzz.bzl", "cc_fuzz_test")
load("//bazel/precompiled:precompiled.bzl", "PRECOMPILED_COPTS")
load("//bazel/python:venv.bzl", "venv_py_binary", "venv_py_test")
load("//bazel/together:together.bzl", "joined_sources")

_WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    # Designated initializers leave the members with a default out on purpose.
    "-Wno-missing-field-initializers",
]

# The C++ runtime is linked in, by //bazel/deps/runtime.
_RUNTIME_LINKOPTS = select({
    "//bazel/sanitizers:any": [],
    "//conditions:default": [
        "-Wl,--as-needed",
        "-static-libgcc",
    ],
})

_PROGRAM_LINKOPTS = _RUNTIME_LINKOPTS + select({
    "//bazel/sanitizers:tsan": ["-Wl,--version-script=$(location //bazel/sanitizers:tsan.lds)"],
    "//conditions:default": [],
})

# In a wheel Debian's shared libraries lie beside the binaries' directory (deploy/wheel). RPATH, not
# RUNPATH, because it serves what those libraries load as well.
_WHEEL_LINKOPTS = ["-Wl,--disable-new-dtags,-rpath,$$ORIGIN/../lib"]

# Frameworks that cannot live beside torch: each has an environment of its own, made by
# bazel/prepare from requirements-<framework>.txt.
_FRAMEWORKS = ["jax", "mxnet", "tensorflow"]

_PROGRAM_DEPS = ["//bazel/deps/runtime:older_glibc"] + select({
    "//bazel/sanitizers:tsan": ["//bazel/sanitizers:tsan.lds"],
    "//conditions:default": [],
}) + select({
    "//bazel/sanitizers:any": ["//bazel/sanitizers:options"],
    "//conditions:default": [],
})

# What a file begins with: a header that g++ need not read again.
_STANDARD = select({
    "//bazel/precompiled:none": [],
    "//conditions:default": PRECOMPILED_COPTS + [
        "-include",
        "bazel/precompiled/standard.hpp",
        # With the warnings as errors, the build fails where g++ does not take it.
        "-Winvalid-pch",
    ],
})

def _precompiled(copts, deps):
    """Returns the flags and the library of the headers that a target's files begin with.

    g++ takes a precompiled header only with the flags that it was made with, but for warnings.
    """
    if "//bazel/deps/catch2" in deps:
        return CATCH2_COPTS, []
    if [flag for flag in copts if not flag.startswith("-W") and flag != "-w"]:
        return [], []
    return _STANDARD, ["//bazel/precompiled"]

def _joined(name, srcs, testonly):
    """Returns the sources of a library as they are compiled, several as one, and the flags for that."""
    if type(srcs) == "select" or len([src for src in srcs if src.endswith(".cc")]) < 2:
        return srcs, []
    joined_sources(name = name + "_together", srcs = srcs, testonly = testonly)

    # A warning about headers; g++ takes each source but the copy itself for one.
    return [name + "_together"], ["-Wno-subobject-linkage"]

def _visible_to_lint(visibility):
    """Adds the lint tests, which look at every library, to those who may see a target."""
    if visibility == None or "//visibility:public" in visibility:
        return visibility
    return [each for each in visibility if each != "//visibility:private"] + ["//tests/lint:__pkg__"]

def talweg_cc_library(
        name,
        srcs = [],
        hdrs = [],
        deps = [],
        copts = [],
        testonly = False,
        together = True,
        visibility = None,
        **kwargs):
    """A C++ library; include its headers by their path from the workspace root.

    Args:
      name: target name.
      srcs: sources and private headers.
      hdrs: public headers.
      deps: libraries that it uses.
      copts: further compiler flags.
      testonly: whether only tests may use it; such a library may use catch2.
      together: whether several sources are compiled as one. A program that uses one of them then has all.
      visibility: who may use it; as the package says (nobody else) unless given.
      **kwargs: as for cc_library (data, defines, alwayslink, tags, ...).
    """
    check_edges(name, deps + kwargs.get("data", []), is_test = testonly)
    precompiled_copts, precompiled_deps = _precompiled(copts, deps)
    compiled, joined_copts = _joined(name, srcs, testonly) if together else (srcs, [])
    native.cc_library(
        name = name,
        srcs = compiled,
        hdrs = hdrs,
        copts = _WARNINGS + joined_copts + precompiled_copts + copts,
        deps = deps + precompiled_deps,
        testonly = testonly,
        visibility = _visible_to_lint(visibility),
        linkstatic = True,
        **kwargs
    )

def talweg_cc_binary(name, srcs, deps = [], copts = [], linkopts = [], testonly = False, **kwargs):
    """A C++ program that carries all its libraries but libc and libfabric."""
    check_edges(name, deps + kwargs.get("data", []), is_test = testonly)
    precompiled_copts, precompiled_deps = _precompiled(copts, deps)
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = _WARNINGS + precompiled_copts + copts,
        linkopts = linkopts + _WHEEL_LINKOPTS + _PROGRAM_LINKOPTS,
        deps = deps + precompiled_deps + _PROGRAM_DEPS,
        testonly = testonly,
        linkstatic = True,
        **kwargs
    )

def talweg_cc_test(
        name,
        srcs,
        deps = [],
        copts = [],
        linkopts = [],
        size = "small",
        timeout = "moderate",
        **kwargs):
    """A Catch2 test; main() comes from //bazel/deps/catch2:main.

    A test that cannot run here prints a line `SKIPPED: reason` and passes; ./test counts it as skipped.
    `timeout` is generous on purpose. It ends a hang and does not judge speed.
    """
    check_edges(name, deps + kwargs.get("data", []), is_test = True)
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = _WARNINGS + CATCH2_COPTS + copts,
        linkopts = linkopts + _PROGRAM_LINKOPTS,
        deps = deps + ["//bazel/deps/catch2:main"] + _PROGRAM_DEPS,
        size = size,
        timeout = timeout,
        linkstatic = True,
        **kwargs
    )

# No fused multiply-add where the source has a product and a sum: not every instruction set has it.
# -O2 also in builds that want less: without inlining, a vector operation is a call.
_KERNEL_COPTS = [
    "-fno-exceptions",
    "-fno-rtti",
    "-O2",
    "-ffp-contract=off",
]

_INSTRUCTION_SETS = {
    "portable": [],
    "avx2": [
        "-mavx2",
        "-mf16c",
        "-mfma",
    ],
    "avx512": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
    ],
}

def talweg_kernel_libraries(name, deps = [], copts = []):
    """The libraries <name>_portable, <name>_avx2 and <name>_avx512, each of the source of its name.

    Args:
      name: what their names begin with.
      deps: what they have in common. libs/reduce/kernel_table.h says what may stand there.
      copts: further compiler flags.
    """
    check_edges(name, deps)
    for instructions, flags in _INSTRUCTION_SETS.items():
        talweg_cc_library(
            name = name + "_" + instructions,
            srcs = ["%s_%s.cc" % (name, instructions)],
            copts = _KERNEL_COPTS + copts + flags,
            deps = deps,
        )

def talweg_cc_benchmark(name, srcs, deps = [], copts = [], smoke_args = [], **kwargs):
    """A Google Benchmark program, and `<name>_smoke_test`, which runs each benchmark once or so.

    Args:
      name: target name, by custom `<what>_benchmark`.
      srcs: sources; main() comes with the library.
      deps: libraries that it uses.
      copts: further compiler flags.
      smoke_args: arguments of the smoke test, e.g. a --benchmark_filter that leaves out huge sizes.
      **kwargs: as for cc_binary.
    """
    deps = deps + ["//bazel/deps/benchmark"]
    check_edges(name, deps, is_test = True)
    for rule, rule_name, extra in [
        (native.cc_binary, name, {}),
        (native.cc_test, name + "_smoke_test", {
            "args": ["--benchmark_min_time=0.0001"] + smoke_args,
            "size": "small",
            "timeout": "moderate",
        }),
    ]:
        rule(
            name = rule_name,
            linkopts = _PROGRAM_LINKOPTS,
            deps = [name + "_objects"] + _PROGRAM_DEPS,
            testonly = True,
            linkstatic = True,
            **dict(extra, **kwargs)
        )
    native.cc_library(
        name = name + "_objects",
        testonly = True,
        srcs = srcs,
        copts = _WARNINGS + copts,
        deps = deps,
        linkstatic = True,
        alwayslink = True,
    )

def talweg_cc_fuzz_test(name, srcs, deps = [], corpus = [], **kwargs):
    """A libFuzzer test: the corpus, then TALWEG_FUZZ_S seconds (3 unless set) of new inputs.

    Args:
      name: target name, by custom `<what>_fuzz_test`.
      srcs: sources; one defines LLVMFuzzerTestOneInput.
      deps: libraries; clang compiles their sources again, so keep to what the parser needs.
      corpus: inputs to start from, usually glob(["testdata/<what>_corpus/*"]).
      **kwargs: dictionary, input_bytes_max, tags, ...
    """
    check_edges(name, deps, is_test = True)
    cc_fuzz_test(
        name = name,
        srcs = srcs,
        deps = deps,
        corpus = corpus,
        size = "small",
        # TALWEG_FUZZ_S may ask for long runs.
        timeout = "eternal",
        **kwargs
    )

def talweg_proto_library(name, src, deps = [], **kwargs):
    """Messages of one .proto file, as the C++ library `<src without .proto>.pb.h`.

    Imports and includes are written from the workspace root.

    Args:
      name: target name.
      src: the .proto file.
      deps: talweg_proto_library or talweg_grpc_library targets of the files that it imports.
      **kwargs: as for cc_library.
    """
    _proto(name, src, deps, False, kwargs)

def talweg_grpc_library(name, src, deps = [], **kwargs):
    """As talweg_proto_library, with the services of the file as `<src without .proto>.grpc.pb.h`."""
    _proto(name, src, deps, True, kwargs)

def _proto(name, src, deps, grpc, kwargs):
    runtime = "//bazel/deps/grpc" if grpc else "//bazel/deps/protobuf"
    check_edges(name, deps + [runtime])
    cc_proto_codegen(
        name = name + "_codegen",
        src = src,
        grpc = grpc,
        deps = [dep + "_codegen" if ":" in dep else dep + ":" + dep.split("/")[-1] + "_codegen" for dep in deps],
        visibility = kwargs.get("visibility"),
    )
    stem = src[:-len(".proto")]
    precompiled_copts, precompiled_deps = _precompiled([], deps)
    native.filegroup(
        name = name + "_headers",
        srcs = [":" + name + "_codegen"],
        output_group = "headers",
    )
    native.filegroup(
        name = name + "_sources",
        srcs = [":" + name + "_codegen"],
        output_group = "sources",
    )
    if grpc:
        joined_sources(name = name + "_together", srcs = [name + "_sources"])
    native.cc_library(
        name = name,
        srcs = [name + ("_together" if grpc else "_sources")],
        hdrs = [name + "_headers"],
        # Generated code is not ours to keep free of warnings.
        copts = ["-w"] + precompiled_copts,
        deps = deps + precompiled_deps + [runtime],
        linkstatic = True,
        **kwargs
    )

def talweg_c_shared_library(
        name,
        srcs,
        version_script,
        deps = [],
        copts = [],
        linkopts = [],
        older_glibc = False,
        **kwargs):
    """A shared library with a C ABI that needs nothing but libc.

    Args:
      name: file name, e.g. "libtalweg.so".
      srcs: sources and private headers.
      version_script: linker version script that names the exported symbols; all others are hidden.
      deps: libraries, linked in.
      copts: further compiler flags.
      linkopts: further linker flags.
      older_glibc: whether it uses so much of the C++ runtime that it would ask for glibc 2.36; 2.35 is content then.
      **kwargs: as for cc_binary.
    """
    check_edges(name, deps)
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = _WARNINGS + ["-fvisibility=hidden", "-fvisibility-inlines-hidden"] + copts,
        linkopts = linkopts + [
            "-Wl,--version-script=$(location %s)" % version_script,
            "-Wl,--exclude-libs,ALL",
            "-Wl,-soname,%s" % name,
            "-Wl,-z,nodelete",
        ] + _RUNTIME_LINKOPTS + select({
            "//bazel/sanitizers:any": [],
            "//conditions:default": ["-Wl,-z,defs"],
        }),
        deps = deps + (["//bazel/deps/runtime:older_glibc"] if older_glibc else []) +
               ["//bazel/deps/runtime", version_script],
        linkshared = True,
        linkstatic = True,
        **kwargs
    )

def talweg_py_library(name, srcs = [], deps = [], data = [], **kwargs):
    """A Python library; `imports` names the directories that its packages are imported from."""
    check_edges(name, deps + data, is_test = kwargs.get("testonly", False))
    native.py_library(
        name = name,
        srcs = srcs,
        deps = deps,
        data = data,
        srcs_version = "PY3",
        **kwargs
    )

def talweg_py_binary(name, srcs, deps = [], data = [], main = None, **kwargs):
    """A Python program, run by the .venv of this workspace (see bazel/prepare).

    Args:
      name: target name.
      srcs: sources.
      deps: talweg_py_library targets.
      data: files and programs that it needs, found under $RUNFILES_DIR/talweg.
      main: the source that is run; `<name>.py` unless said.
      **kwargs: imports, args, env, tags, visibility, ...
    """
    check_edges(name, deps + data, is_test = kwargs.get("testonly", False))
    venv_py_binary(
        name = name,
        srcs = srcs,
        main = main or name + ".py",
        deps = deps,
        data = data,
        **kwargs
    )

def talweg_py_test(
        name,
        srcs,
        deps = [],
        data = [],
        main = None,
        size = "small",
        timeout = "moderate",
        framework = None,
        **kwargs):
    """A Python test, as talweg_py_binary: a program that passes by exiting with 0.

    A test that cannot run here prints a line `SKIPPED: reason` and exits with 0. `framework` names the environment
    that runs it: tensorflow, jax or mxnet; without one it is .venv.
    """
    check_edges(name, deps + data, is_test = True)
    if framework:
        if framework not in _FRAMEWORKS:
            fail("no environment for framework %r; there are %s" % (framework, ", ".join(_FRAMEWORKS)))
        kwargs["venv"] = ".cache/venv-" + framework
        kwargs["requirements"] = "//bazel:requirements-%s.txt" % framework
    venv_py_test(
        name = name,
        srcs = srcs,
        main = main or name + ".py",
        deps = deps,
        data = data,
        size = size,
        timeout = timeout,
        **kwargs
    )

def talweg_runfiles_archive(name, out, entry, programs, deps, **kwargs):
    """A .tar.xz of programs with everything that they have at run time.

    Args:
      name: target name.
      out: file name of the archive.
      entry: a script, `run` at its top.
      programs: tests and binaries, whose places the script finds in programs.txt.
      deps: further targets that come along, with their runfiles.
      **kwargs: as for genrule (testonly, visibility, ...).
    """
    check_edges(name, programs + deps, is_test = kwargs.get("testonly", False))
    runfiles_archive(name = name, out = out, entry = entry, programs = programs, data = deps, **kwargs)

def talweg_wheel(name, out, version, packer, package, libraries, deps, **kwargs):
    """A Python wheel of the package, the C libraries and the programs.

    Args:
      name: target name.
      out: file name of the wheel.
      version: version of what is packed.
      packer: the script that packs it; Debian's python3 runs it.
      package: target whose files are the package's sources.
      libraries: targets of libtalweg.so and of what calls it.
      deps: targets of the programs that the wheel carries.
      **kwargs: as for genrule (visibility, ...).
    """
    check_edges(name, [package] + libraries + deps)
    native.genrule(
        name = name,
        srcs = [packer, package] + libraries + deps,
        outs = [out],
        cmd = " ".join(
            [
                "/usr/bin/python3 $(location %s) $@ --version=%s" % (packer, version),
                "--package $(locations %s) --library" % package,
            ] + ["$(location %s)" % library for library in libraries] + ["--binary"] + ["$(location %s)" % binary for binary in deps],
        ),
        **kwargs
    )

def talweg_name_wheel(name, out, version, packer, libraries, package, deps, scripts = {}, **kwargs):
    """A small Python wheel that puts another system's name for a part of the package into place.

    Args:
      name: target name.
      out: file name of the wheel.
      version: version of what is packed; that of the package's wheel.
      packer: the script that packs it; Debian's python3 runs it.
      libraries: the scripts that it imports.
      package: the name.
      deps: targets whose files are packed.
      scripts: commands, each with the Python function that it calls.
      **kwargs: as for genrule (visibility, ...).
    """
    check_edges(name, deps)
    native.genrule(
        name = name,
        srcs = [packer] + libraries + deps,
        outs = [out],
        cmd = " ".join(
            ["/usr/bin/python3 $(location %s) $@ --version=%s --name=%s" % (packer, version, package)] +
            ["--script=%s=%s" % (command, scripts[command]) for command in scripts] +
            ["--file"] + ["$(locations %s)" % dep for dep in deps],
        ),
        **kwargs
    )
