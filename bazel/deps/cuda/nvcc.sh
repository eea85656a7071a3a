#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# nvcc.sh image OUTPUT.o SYMBOL SOURCE.cu   compiles kernels for those of the architectures below
#                                           that this nvcc knows, and PTX for others; makes an
#                                           object of the image
# nvcc.sh headers OUTPUT_DIR                copies cuda.h there, and nccl.h if there is one
#                                           (NCCL_HOME)
#
# The toolkit is that of CUDA_HOME, of /usr/local/cuda, or Debian's. Versions 12 and 13 work.
# CUDA_HOME may also be the nvidia/cu13 directory into which PyPI's nvidia-cuda-nvcc, -crt, -runtime
# and -nvvm install.
set -euo pipefail

# Later GPUs of a major version run the first one's code. GPUs newer than all of these run the PTX.
readonly wanted=(70 75 80 90)

die() {
  printf 'nvcc.sh: %s\n' "$@" >&2
  exit 1
}

home=
for candidate in "${CUDA_HOME:-}" /usr/local/cuda /usr/lib/nvidia-cuda-toolkit; do
  if [ -n "$candidate" ] && [ -x "$candidate/bin/nvcc" ]; then
    home=$candidate
    break
  fi
done
[ -n "$home" ] || die "no nvcc in CUDA_HOME (${CUDA_HOME:-not set}) or /usr/local/cuda." \
  "Install the CUDA Toolkit 12 or 13 there, or set CUDA_HOME to where it is; without --config=cuda nothing" \
  "needs it."

case ${1:-} in
  image)
    [ $# = 4 ] || die "usage: nvcc.sh image OUTPUT.o SYMBOL SOURCE.cu"
    output=$2 symbol=$3 source=$4
    known=$("$home/bin/nvcc" --list-gpu-code)
    targets=() lowest=
    for architecture in "${wanted[@]}"; do
      if grep -qx "sm_$architecture" <<<"$known"; then
        lowest=${lowest:-$architecture}
        targets+=(-gencode "arch=compute_$architecture,code=sm_$architecture")
      fi
    done
    [ -n "$lowest" ] || die "$home/bin/nvcc knows none of: ${wanted[*]}"
    # The lowest PTX serves every GPU that has no code of its own here, also later ones.
    targets+=(-gencode "arch=compute_$lowest,code=compute_$lowest")
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    # --fmad=false rounds a product and a sum each on its own.
    TMPDIR=$scratch "$home/bin/nvcc" -std=c++17 -O3 --fmad=false -I. --fatbin -Xfatbin=--compress-all \
      "${targets[@]}" -o "$scratch/image" "$source"
    cat >"$scratch/image.s" <<ASSEMBLY
    .section .rodata.$symbol, "a"
    .balign 64
    .globl ${symbol}_begin
    .globl ${symbol}_end
${symbol}_begin:
    .incbin "$scratch/image"
${symbol}_end:
    .section .note.GNU-stack, "", @progbits
ASSEMBLY
    gcc -c "$scratch/image.s" -o "$output"
    ;;
  headers)
    [ $# = 2 ] || die "usage: nvcc.sh headers OUTPUT_DIR"
    [ -e "$home/include/cuda.h" ] || die "$home has no include/cuda.h: install the toolkit's headers too"
    cp -L "$home/include/cuda.h" "$2/"
    for candidate in "${NCCL_HOME:-/nonexistent}/include" "$home/include" "$home/../nccl/include" /usr/include; do
      if [ -e "$candidate/nccl.h" ]; then
        cp -L "$candidate/nccl.h" "$2/"
        break
      fi
    done
    # nccl.h needs only this of the runtime's headers, of which it would include a hundred.
    cat >"$2/cuda_runtime.h" <<'HEADER'
#include <cuda.h>
typedef CUstream cudaStream_t;
typedef CUevent cudaEvent_t;
HEADER
    : >"$2/cuda_fp16.h"
    [ -e "$2/nccl.h" ] || printf '#define TALWEG_NO_NCCL_HEADER 1\n' >"$2/nccl.h"
    ;;
  *) die "unknown command '${1:-}'" ;;
esac
