#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the example that EVAL_TYPE names, with the arguments of this script.
set -u
here=$(dirname "$0")
python=$(command -v python || command -v python3) || {
  echo "run_keras.sh: neither python nor python3 is on the PATH" >&2
  exit 1
}
case "${EVAL_TYPE:-}" in
  imagenet) program=keras_imagenet_resnet50.py ;;
  mnist) program=keras_mnist.py ;;
  mnist_advanced) program=keras_mnist_advanced.py ;;
  *)
    echo "run_keras.sh: EVAL_TYPE is '${EVAL_TYPE:-}'; it must be imagenet, mnist or mnist_advanced" >&2
    exit 1
    ;;
esac
exec "$python" "$here/$program" "$@"
