# SPDX-License-Identifier: Apache-2.0
"""Rules for prose that a program can check: CONTRIBUTING.md, "Prose"."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

COLUMNS_MAX = 100

# Pages that programs write.
_GENERATED = {"docs/configuration.md"}
_GENERATED_BEGIN = "# Measured by ./bench"

_COMMENTS = {
    (".h", ".cc", ".cu", ".c", ".proto"): re.compile(r"(?://|/\*+|^\s*\*)\s*Of\s"),
    (".py", ".bazel", ".bzl", ".sh"): re.compile(r"(?:(?:^|\s)#|\"\"\")\s*Of\s"),
}

# The ends of the names of files whose comments are read.
COMMENTED = tuple(suffix for suffixes in _COMMENTS for suffix in suffixes)

README_LINES = range(10, 41)

_FENCE = re.compile(r"^\s*```")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def long_lines(text: str) -> list[int]:
    """The numbers of the lines that are too wide; tables and lines that are one link may be."""
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > COLUMNS_MAX
        and not line.lstrip().startswith("|")
        and " " in line.strip().removeprefix("- ")
    ]


def is_generated(path: str, text: str) -> bool:
    return path in _GENERATED or text.startswith(_GENERATED_BEGIN)


def of_comments(path: str, text: str) -> list[int]:
    """The numbers of the lines on which a comment begins with "Of"."""
    for suffixes, pattern in _COMMENTS.items():
        if path.endswith(suffixes):
            lines = enumerate(text.splitlines(), 1)
            return [number for number, line in lines if pattern.search(line)]
    return []


def anchors(text: str) -> set[str]:
    """The names that links may give to the headings of a page, as GitHub makes them."""
    found: Counter[str] = Counter()
    names = set()
    fenced = False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        heading = re.match(r"^#+ (.*)", line)
        if fenced or heading is None:
            continue
        name = re.sub(r"[^\w\- ]", "", heading.group(1).lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def broken_links(root: Path, path: str, text: str) -> list[str]:
    """The links of a page to files, or headings, that are not there."""
    broken = []
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (root / path).parent / name
        if not target.exists():
            broken.append(link)
        elif anchor and anchor not in anchors(target.read_text() if name else text):
            broken.append(link)
    return broken
