#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs train_imagenet_byteps.py with the arguments of this script, whatever EVAL_TYPE says.
set -u
here=$(dirname "$0")
python=$(command -v python || command -v python3) || {
  echo "start_mxnet_byteps.sh: neither python nor python3 is on the PATH" >&2
  exit 1
}
exec "$python" "$here/train_imagenet_byteps.py" "$@"
