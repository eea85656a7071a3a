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
export PYTHONDONTWRITEBYTECODE=1
export TALWEG_VENV=%{venv}
run=exec
if %{is_test}; then
  # What frameworks and launchers leave behind goes with the test. The path is short, as sockets are made below it;
  # programs of other users find their way through it, as through /tmp.
  TMPDIR=$(mktemp -d /tmp/test.XXXXXX) && chmod 1777 "$TMPDIR" || exit 1
  export TMPDIR
  trap 'rm -rf "$TMPDIR"' EXIT
  run=
fi
$run "$runfiles/%{interpreter}" "$runfiles/%{main}" "$@"
