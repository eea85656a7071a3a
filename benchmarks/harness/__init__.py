# SPDX-License-Identifier: Apache-2.0
"""The parts of ./bench, which starts contenders, measures and compares them, and writes results."""
