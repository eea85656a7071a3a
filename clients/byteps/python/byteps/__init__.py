# SPDX-License-Identifier: Apache-2.0
"""BytePS's name for talweg.byteps: `import byteps.torch as bps` runs unchanged."""

from talweg._compat import alias

alias.install("byteps", "talweg.byteps")
