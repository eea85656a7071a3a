# SPDX-License-Identifier: Apache-2.0
"""The few parts of the inside of Horovod's launcher that programs use."""
