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
exec "$runfiles/%{interpreter}" "$runfiles/%{main}" "$@"
