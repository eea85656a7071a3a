#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the Python interpreter of this workspace's programs. It is that of .venv, or of the
# environment that TALWEG_VENV names from the workspace's root. Bazel hands this file to sandboxes
# as a symbolic link into the source tree. By that link this script finds the tree.
self=$(readlink -f "${BASH_SOURCE[0]}")
venv=${self%/bazel/python/*}/${TALWEG_VENV:-.venv}
unset TALWEG_VENV
if [ ! -x "$venv/bin/python" ]; then
  echo "talweg: no Python environment at $venv; make it with: bazel/prepare --for=test" >&2
  exit 1
fi
# A program sees the modules that its target declares, and not those beside it in the source tree.
safe_path=-P
for dir in "$venv"/lib/python3.*; do
  [ "${dir##*.}" -ge 11 ] 2>/dev/null || safe_path=
done
# A library that is built with ASan or TSan needs the sanitizer's runtime before all others. ASan's
# runtime also needs the C++ runtime, which throws for the extension modules. Python itself is built
# without sanitizers. So its leaks do not count, and TSan would see the libc calls of Python and
# torch without the atomics that order them.
case ${TALWEG_SANITIZER:-} in
  asan | tsan)
    LD_PRELOAD="$(gcc -print-file-name="lib$TALWEG_SANITIZER.so") $(gcc -print-file-name=libstdc++.so.6)"
    export LD_PRELOAD
    export ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
    export TSAN_OPTIONS=ignore_noninstrumented_modules=1:die_after_fork=0${TSAN_OPTIONS:+:$TSAN_OPTIONS}
    ;;
esac
exec "$venv/bin/python" $safe_path "$@"
