# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs, without any framework: docs/gpu.md.

gpu        hands tensors to the agent where they lie
host_path  takes tensors through host memory, if the agent cannot have them where they lie
staging    copies the tensors of collectives to and from pinned host memory
place      says where a tensor lies
driver     calls NVIDIA's driver through ctypes
"""
