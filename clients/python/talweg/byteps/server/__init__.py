# SPDX-License-Identifier: Apache-2.0
"""`python -c "import byteps.server"` serves as the server or scheduler that DMLC_ROLE names."""

from __future__ import annotations

import os
import sys

from talweg.byteps import launcher

if os.environ.get("DMLC_ROLE") in ("server", "scheduler"):
    sys.argv[1:] = []
    sys.exit(launcher.main())
