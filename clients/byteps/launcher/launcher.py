#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same as launch.py, under its name in BytePS's older documents."""

import sys

from launch import main

if __name__ == "__main__":
    sys.exit(main())
