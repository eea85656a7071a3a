#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the example that EVAL_TYPE names, with the arguments of this script.
set -u
here=$(dirname "$0")
python=$(command -v python || command -v python3) || {
  echo "run_tensorflow_byteps.sh: neither python nor python3 is on the PATH" >&2
  exit 1
}
case "${EVAL_TYPE:-}" in
  benchmark) program=synthetic_benchmark.py ;;
  mnist) program=tensorflow_mnist.py ;;
  *)
    echo "run_tensorflow_byteps.sh: EVAL_TYPE is '${EVAL_TYPE:-}'; it must be benchmark or mnist" >&2
    exit 1
    ;;
esac
exec "$python" "$here/$program" "$@"
