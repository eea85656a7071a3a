# SPDX-License-Identifier: Apache-2.0
"""MXNet 1.9's part of what talweg.byteps.mxnet and talweg.horovod.mxnet share.

engine runs operations in MXNet's engine, and rounds carries out rounds of NDArrays as such
operations. collectives holds allgather, alltoall and reducescatter. training, parameters and
kvstore hold what a training loop needs.
"""
