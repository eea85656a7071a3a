# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs, free of any framework: docs/gpu.md.

gpu        handed to the agent where they lie
host_path  through host memory, where the agent cannot have them so
staging    those of collectives, through pinned host memory
place      where a tensor lies
driver     NVIDIA's driver through ctypes
"""
