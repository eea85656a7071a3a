#!/bin/bash
# Written by //bazel/python:venv.bzl.
runfiles=${RUNFILES_DIR:-${TEST_SRCDIR:-}}
if [ ! -e "$runfiles/%{main}" ]; then
  case $0 in
    *.runfiles/*) runfiles=${0%%.runfiles/*}.runfiles ;;
    *) runfiles=$0.runfiles ;;
  esac
  case $runfiles in /*) ;; *) runfiles=$PWD/$runfiles ;; esac
fi
export RUNFILES_DIR=$runfiles
path=$runfiles/talweg
for import in %{imports}; do path=$path:$runfiles/$import; done
export PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH}
export TALWEG_VENV=%{venv}
run=exec
if %{is_test}; then
  # Files that frameworks and launchers leave are removed with the test. The path is short, because
  # sockets are made in it. Programs of other users can pass through it, as through /tmp.
  TMPDIR=$(mktemp -d /tmp/test.XXXXXX) && chmod 1777 "$TMPDIR" || exit 1
  export TMPDIR
  trap 'rm -rf "$TMPDIR"' EXIT
  # Each module is compiled once for all processes of a test. Bazel removes its sandbox, where the
  # compiled modules lie beside the sources.
  unset PYTHONDONTWRITEBYTECODE
  run=
else
  export PYTHONDONTWRITEBYTECODE=1
fi
$run "$runfiles/%{interpreter}" "$runfiles/%{main}" "$@"
