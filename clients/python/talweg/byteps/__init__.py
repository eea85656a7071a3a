# SPDX-License-Identifier: Apache-2.0
"""BytePS's surface over Talweg's client: `import talweg.byteps.torch as bps`.

The wheel talweg-byteps puts the name `byteps` into place. docs/byteps.md says what differs.
"""

from talweg._version import __version__

__all__ = ["__version__"]
