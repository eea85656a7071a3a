#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs one test under a sanitizer (.bazelrc, --run_under). A report of any process that the test
# starts fails the test, even of a daemon whose exit status nobody asks for, or of a rank that is
# expected to fail.
set -u
reports=$(mktemp -d "${TEST_TMPDIR:-/tmp}/sanitizer.XXXXXX") || exit 1
# Tests may start processes as another user.
chmod 1777 "$reports"
for tool in ASAN TSAN UBSAN; do
  options=${tool}_OPTIONS
  export "$options=${!options:+${!options}:}log_path=$reports/report"
done
# Python is not instrumented and has options of its own (//bazel/python:venv_python.sh). Our
# programs that it starts inherit them. Each program reads the file of its own name, which resets
# them.
for program in talweg talweg-agent talweg-aggregator talweg-scheduler rank_process planted_bug; do
  echo detect_leaks=1 >"$reports/asan.$program"
  echo ignore_noninstrumented_modules=0:die_after_fork=1 >"$reports/tsan.$program"
done
ASAN_OPTIONS+=:include_if_exists=$reports/asan.%b
TSAN_OPTIONS+=:include_if_exists=$reports/tsan.%b
"$@"
status=$?
found=0
for report in "$reports"/report.*; do
  [ -s "$report" ] || continue
  found=$((found + 1))
  # The first reports say what is wrong. A hundred more would hide them.
  [ $found -le 5 ] || continue
  echo "--- sanitizer's report of process ${report##*.}:"
  head -c 20000 "$report"
done
rm -rf "$reports"
if [ $found -gt 0 ]; then
  echo "FAILED: $found processes were reported by the sanitizer (the test itself exited with $status)"
  [ $status -ne 0 ] || status=1
fi
exit $status
