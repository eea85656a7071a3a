# SPDX-License-Identifier: Apache-2.0
"""The names that Bazel's own BUILD files load from rules_cc, as Bazel's native rules."""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite

def cc_flags_supplier(**_kwargs):
    """Only Make-variable users need it; there are none here."""

def compiler_flag(**_kwargs):
    """Only select()s on the compiler need it; there are none here."""
