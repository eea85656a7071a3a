# SPDX-License-Identifier: Apache-2.0
"""Horovod's name for talweg.horovod: `import horovod.torch as hvd` runs unchanged."""

from talweg._compat import alias

alias.install("horovod", "talweg.horovod")
