# SPDX-License-Identifier: Apache-2.0
"""Runs protoc and grpc_cpp_plugin of Debian's packages."""

_ProtoSourcesInfo = provider(
    "The .proto files that a file needs, itself included.",
    fields = {"sources": "depset of File"},
)

_PROTOC = "/usr/bin/protoc"
_GRPC_PLUGIN = "/usr/bin/grpc_cpp_plugin"

def _cc_proto_codegen_impl(ctx):
    src = ctx.file.src
    stem = src.basename[:-len(".proto")]
    extensions = [".pb", ".grpc.pb"] if ctx.attr.grpc else [".pb"]
    headers = [ctx.actions.declare_file(stem + e + ".h", sibling = src) for e in extensions]
    sources = [ctx.actions.declare_file(stem + e + ".cc", sibling = src) for e in extensions]
    imports = depset(
        [src],
        transitive = [dep[_ProtoSourcesInfo].sources for dep in ctx.attr.deps],
    )
    out_dir = ctx.bin_dir.path
    args = ctx.actions.args()
    args.add("-I.")
    args.add("--cpp_out=" + out_dir)
    if ctx.attr.grpc:
        args.add("--grpc_out=" + out_dir)
        args.add("--plugin=protoc-gen-grpc=" + _GRPC_PLUGIN)
    args.add(src)
    ctx.actions.run(
        executable = _PROTOC,
        arguments = [args],
        inputs = imports,
        outputs = headers + sources,
        mnemonic = "TalwegProtoc",
        progress_message = "Generating C++ from %s" % src.short_path,
    )
    return [
        DefaultInfo(files = depset(headers + sources)),
        OutputGroupInfo(headers = depset(headers), sources = depset(sources)),
        _ProtoSourcesInfo(sources = imports),
    ]

cc_proto_codegen = rule(
    implementation = _cc_proto_codegen_impl,
    attrs = {
        "deps": attr.label_list(providers = [_ProtoSourcesInfo]),
        "grpc": attr.bool(),
        "src": attr.label(allow_single_file = [".proto"], mandatory = True),
    },
)
