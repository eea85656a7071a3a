# SPDX-License-Identifier: Apache-2.0
"""Keys and digests of messages, for programs that use Horovod's. Talweg's own are of TLS."""

from __future__ import annotations

import hashlib
import hmac
import secrets

__all__ = ["check_digest", "compute_digest", "make_secret_key"]

SECRET_LENGTH = 32  # Bytes.
DIGEST_LENGTH = hashlib.sha256().digest_size
HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"


def make_secret_key() -> bytes:
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """Returns the HMAC of the message, by SHA-256."""
    return hmac.digest(key, message, "sha256")


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Whether `digest` is that of the message. Takes as long for any answer."""
    return hmac.compare_digest(compute_digest(key, message), digest)
