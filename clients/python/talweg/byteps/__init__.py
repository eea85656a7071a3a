# SPDX-License-Identifier: Apache-2.0
"""BytePS's surface over Talweg's client: `import talweg.byteps.torch as bps`.

The wheel talweg-byteps puts the name `byteps` into place. docs/byteps.md says what differs.
"""

__all__ = ["__version__"]

# The BytePS whose surface this is: programs ask for features by it.
__version__ = "0.2.5"
