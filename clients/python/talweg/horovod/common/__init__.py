# SPDX-License-Identifier: Apache-2.0
"""The part of horovod that all frameworks share."""
