#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the example that EVAL_TYPE names, with the arguments of this script.
set -u
here=$(dirname "$0")
python=$(command -v python || command -v python3) || {
  echo "start_pytorch_byteps.sh: neither python nor python3 is on the PATH" >&2
  exit 1
}
case "${EVAL_TYPE:-}" in
  benchmark) program=benchmark_byteps.py ;;
  imagenet) program=train_imagenet_resnet50_byteps.py ;;
  microbenchmark) program=microbenchmark-byteps.py ;;
  mnist) program=train_mnist_byteps.py ;;
  nobarrierbenchmark) program=benchmark_cross_barrier_byteps.py ;;
  *)
    echo "start_pytorch_byteps.sh: EVAL_TYPE is '${EVAL_TYPE:-}'; it must be benchmark, imagenet, microbenchmark, mnist or nobarrierbenchmark" >&2
    exit 1
    ;;
esac
exec "$python" "$here/$program" "$@"
