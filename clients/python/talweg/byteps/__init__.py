# SPDX-License-Identifier: Apache-2.0
"""BytePS's surface over Talweg's client: `import talweg.byteps.torch as bps`.

The wheel talweg-byteps installs the name `byteps` for it. docs/byteps.md says what differs.
"""

__all__ = ["__version__"]

# The version of BytePS whose surface this is. Programs ask for it to know the features.
__version__ = "0.2.5"
