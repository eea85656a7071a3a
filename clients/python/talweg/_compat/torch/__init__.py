# SPDX-License-Identifier: Apache-2.0
"""The torch part of what talweg.byteps.torch and talweg.horovod.torch share."""
