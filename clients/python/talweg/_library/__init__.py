# SPDX-License-Identifier: Apache-2.0
"""libtalweg.so, the C library, through ctypes.

native             its calls, with statuses turned into exceptions
native_exchange    the calls of talweg_exchange.h
native_gpu         the calls of talweg_gpu.h
native_structures  the structures of its headers
native_arguments   what callers give, as the library takes it
"""
