#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""launch.py's name in BytePS's older documents."""

import sys

from launch import main

if __name__ == "__main__":
    sys.exit(main())
