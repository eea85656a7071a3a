# SPDX-License-Identifier: Apache-2.0
"""What ./bench is made of: contenders are started, told what to measure, compared and written down."""
