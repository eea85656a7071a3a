#!/bin/bash
# Written by //bazel/fuzz:fuzz.bzl. Runs every input of the corpus, then looks for new ones for
# TALWEG_FUZZ_S seconds (3 unless set). An input that fails is kept under the test's outputs.
set -u
cd "${TEST_SRCDIR:-${RUNFILES_DIR:-$0.runfiles}}/talweg" || exit 1
corpus=(%{corpus})
seconds=${TALWEG_FUZZ_S:-3}
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/fuzz.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/found" "$work/seeds"
symbolizer=/usr/lib/llvm-16/bin/llvm-symbolizer
[ ! -x "$symbolizer" ] || export ASAN_SYMBOLIZER_PATH=$symbolizer
number=0
for input in "${corpus[@]}"; do
  number=$((number + 1))
  cp -L "$input" "$work/seeds/$number-$(basename "$input")" || exit 1
done
options=(
  -artifact_prefix="${TEST_UNDECLARED_OUTPUTS_DIR:-$work}/"
  -max_len=%{input_bytes_max}
  -print_final_stats=1
  -rss_limit_mb=2048
  -timeout=20
  -verbosity=1
)
[ -z "%{dictionary}" ] || options+=(-dict="%{dictionary}")
if [ ${#corpus[@]} -gt 0 ]; then
  "./%{fuzzer}" "${options[@]}" "$work"/seeds/* || { echo "FAILED on an input of the corpus, named above"; exit 1; }
fi
"./%{fuzzer}" "${options[@]}" -max_total_time="$seconds" "$work/found" "$work/seeds" || {
  status=$?
  for artifact in "${TEST_UNDECLARED_OUTPUTS_DIR:-$work}"/*; do
    [ -f "$artifact" ] || continue
    echo "FAILED on this input ($(basename "$artifact")); add it to the corpus once it is fixed:"
    od -A x -t x1z "$artifact" | head -n 64
  done
  exit $status
}
