# SPDX-License-Identifier: Apache-2.0
"""byteps.torch.parallel."""

from talweg.byteps.torch.parallel.distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
