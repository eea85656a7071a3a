# SPDX-License-Identifier: Apache-2.0
"""MXNet 1.9, for talweg.byteps.mxnet and talweg.horovod.mxnet.

engine: operations in MXNet's engine. rounds: rounds of NDArrays as such operations. collectives:
allgather and its like. optimizers, parameters, kvstore: what trains a model with them.
"""
