# SPDX-License-Identifier: Apache-2.0
"""The part of horovod.runner.util that programs use."""
