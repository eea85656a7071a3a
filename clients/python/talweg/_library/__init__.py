# SPDX-License-Identifier: Apache-2.0
"""libtalweg.so, the C library, through ctypes.

native             the calls of talweg.h, with statuses turned into exceptions
native_exchange    the calls of talweg_exchange.h
native_gpu         the calls of talweg_gpu.h
native_structures  the structures of these headers
native_arguments   checks callers' arguments and converts them for the library
"""
