# SPDX-License-Identifier: Apache-2.0
"""What hosts that come and go mean to a rank."""

from talweg.horovod.common.host_messages import HostUpdateResult

__all__ = ["HostUpdateResult"]
