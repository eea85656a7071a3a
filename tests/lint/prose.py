# SPDX-License-Identifier: Apache-2.0
"""Rules for prose that a program can check: CONTRIBUTING.md, "Prose"."""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

COLUMNS_MAX = 100

# Pages that programs write.
_GENERATED = {"docs/configuration.md"}
_GENERATED_BEGIN = "# Measured by ./bench"

# How a sentence begins: after a mark that ends another one, perhaps with quotes or brackets.
_OPENING = r"[\"'`*_(\[]*"
_NEXT_SENTENCE = rf"[.!?][\"'`*_)\]]*\s+{_OPENING}Of\s"
_FIRST_SENTENCE = rf"^[\s/*#>|-]*(?:\d+\.\s+)?{_OPENING}Of\s"
_SENTENCE = re.compile(rf"{_FIRST_SENTENCE}|{_NEXT_SENTENCE}", re.MULTILINE)
_CELL = re.compile(rf"\|\s*{_OPENING}Of\s")

_C = (".h", ".cc", ".cu", ".c", ".proto")
_PYTHON = (".py", ".bazel", ".bzl")
_SHELL = (".sh",)
_PAGES = (".md",)

# The ends of the names of files whose sentences are read.
READ = (*_C, *_PYTHON, *_SHELL, *_PAGES)

_C_COMMENT = re.compile(r"//.*|/\*.*|^\s*\*.*")
_SHELL_COMMENT = re.compile(r"(?:^|\s)#.*")
_C_TEST = re.compile(r"(?:TEST_CASE|SECTION)\(\s*\"(?:[^\"]*[:.!?] )?Of\s")
_PYTHON_TEST = re.compile(r"\bdef test_of_")

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


def of_sentences(path: str, text: str) -> list[int]:
    """The numbers of the lines on which a sentence begins with "Of".

    Sentences are those of comments, docstrings, pages and the names of tests.
    """
    if path.endswith(_C):
        return _matching(text, lambda line: _any_sentence(_C_COMMENT, line) or _C_TEST.search(line))
    if path.endswith(_SHELL):
        return _matching(text, lambda line: _any_sentence(_SHELL_COMMENT, line))
    if path.endswith(_PYTHON):
        tests = _matching(text, _PYTHON_TEST.search)
        return sorted({*tests, *_of_sentences_in_python(text)})
    if path.endswith(_PAGES):
        plain = _without_code(text)
        return _matching(plain, lambda line: _SENTENCE.search(line) or _CELL.search(line))
    return []


def _matching(text: str, matches: Callable[[str], object]) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if matches(line)]


def _any_sentence(comment: re.Pattern[str], line: str) -> bool:
    return any(_SENTENCE.search(found.group()) for found in comment.finditer(line))


def _of_sentences_in_python(text: str) -> Iterator[int]:
    begins_statement = True  # Whether the next string is a docstring.
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and begins_statement):
            prose = token.string.replace('"""', "   ")
            for found in _SENTENCE.finditer(prose):
                yield token.start[0] + prose.count("\n", 0, found.end() - 1)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins_statement = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def _without_code(text: str) -> str:
    """The page, with empty lines in place of its code."""
    lines = []
    fenced = False
    for line in text.splitlines():
        is_fence = _FENCE.match(line) is not None
        lines.append("" if fenced or is_fence else line)
        fenced = fenced != is_fence
    return "\n".join(lines)


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
