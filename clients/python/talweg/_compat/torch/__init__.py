# SPDX-License-Identifier: Apache-2.0
"""torch's part of what talweg.byteps.torch and talweg.horovod.torch share."""
