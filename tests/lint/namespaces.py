# SPDX-License-Identifier: Apache-2.0
"""The rule that says which namespace a C++ source opens: docs/architecture.md, "Layers"."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

SUFFIXES = (".h", ".cc", ".cu", ".cuh")

# Where the folder below says the namespace.
ROOTS = ("clients", "libs", "services")
# The vocabulary that all others share.
BASE = "libs/base"
# Inside of a module's namespace, beside those of its folders.
PARTS = ("internal", "testing", "xla")

_NAMESPACE = re.compile(r"^(?:inline )?namespace (talweg(?:::\w+)*) \{", re.MULTILINE)


def may_open(path: str) -> list[str]:
    """The namespaces that the source may open, PARTS left out; none: the rule is not about it."""
    folders = PurePosixPath(path).parent.parts
    if len(folders) < 2 or folders[0] not in ROOTS:
        return []
    if path.startswith(f"{BASE}/"):
        return ["talweg"]
    return ["::".join(("talweg", *folders[1:end])) for end in range(2, len(folders) + 1)]


def problems(path: str, text: str) -> list[str]:
    """What is wrong with the namespaces of a source; each text says the remedy."""
    allowed = may_open(path)
    found = []
    for match in _NAMESPACE.finditer(text) if allowed else []:
        name = match[1]
        outer, _, last = name.rpartition("::")
        if name not in allowed and not (last in PARTS and outer in allowed):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path}:{line}: opens {name}; its folder's is {' or '.join(allowed)}")
    return found
