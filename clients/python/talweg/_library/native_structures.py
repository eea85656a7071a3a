# SPDX-License-Identifier: Apache-2.0
"""The structures of talweg.h and talweg_exchange.h, for ctypes."""

from __future__ import annotations

import ctypes


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("agent_socket", ctypes.c_char_p),
        ("local_rank", ctypes.c_uint32),
        ("standby", ctypes.c_uint32),
        ("timeout_ns", ctypes.c_int64),
        ("agent_wait_ns", ctypes.c_int64),
        ("spin_ns", ctypes.c_int64),
        ("client_name", ctypes.c_char_p),
    ]


class Declaration(ctypes.Structure):
    """The layout of talweg_declaration."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("op", ctypes.c_int),
        ("root_rank", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("count", ctypes.c_uint64),
    ]


class Collective(ctypes.Structure):
    """The layout of talweg_collective."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("dtype", ctypes.c_int),
        ("op", ctypes.c_int),
        ("gives", ctypes.c_int),
        ("gets", ctypes.c_int),
        ("root_rank", ctypes.c_uint32),
        ("rank_count", ctypes.c_uint32),
        ("ranks", ctypes.POINTER(ctypes.c_uint32)),
        ("element_count", ctypes.c_uint64),
        ("side", ctypes.c_uint32),
        ("patience_ms", ctypes.c_uint32),
        ("encoding", ctypes.c_int),
    ]


# talweg_member's flags.
MEMBER_STANDBY = 1


class Member(ctypes.Structure):
    """The layout of talweg_member: one node's agent in the job."""

    _fields_ = [
        ("node", ctypes.c_uint32),
        ("rank_count", ctypes.c_uint16),
        ("flags", ctypes.c_uint16),
        ("incarnation", ctypes.c_uint64),
    ]


class Membership(ctypes.Structure):
    """The layout of talweg_membership."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("epoch", ctypes.c_uint64),
        ("steps_entered", ctypes.c_uint64),
        ("steps_base", ctypes.c_uint64),
        ("rank", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("member_count", ctypes.c_uint32),
        ("changes", ctypes.c_uint32),
        ("standby", ctypes.c_uint32),
        ("number", ctypes.c_uint32),
    ]


class ExchangeCall(ctypes.Structure):
    """The layout of talweg_exchange_call."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("words", ctypes.c_char_p),
        ("word_bytes", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("data_bytes", ctypes.c_uint64),
        ("all", ctypes.c_void_p),
        ("all_bytes", ctypes.c_uint64),
        ("op", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("offset", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("out", ctypes.c_void_p),
    ]


class PartOfRows(ctypes.Structure):
    """The layout of talweg_rows."""

    _fields_ = [
        ("numbers", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
    ]


class RowSum(ctypes.Structure):
    """The layout of talweg_row_sum."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("number_bytes", ctypes.c_uint32),
        ("dtype", ctypes.c_int),
        ("elements", ctypes.c_uint64),
        ("divisor", ctypes.c_uint32),
    ]


class CompressionSpec(ctypes.Structure):
    """The layout of talweg_compression."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("compressor", ctypes.c_int),
        ("flags", ctypes.c_uint32),
        ("k", ctypes.c_double),
        ("partition", ctypes.c_uint64),
        ("key", ctypes.c_uint64),
        ("error_scale", ctypes.c_float),
        ("mu", ctypes.c_float),
    ]
