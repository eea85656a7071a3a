# SPDX-License-Identifier: Apache-2.0
"""How many functions each class has: CONTRIBUTING.md, "Style".

python3 -m tests.lint.class_size [FILE...]    # prints the largest classes
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.lint import source_tree

FUNCTIONS_MAX = 40
LINES_MAX = 600

SUFFIXES = (".h", ".cc", ".c", ".cu", ".cuh", ".py")
# Where production sources lie.
ROOTS = ("clients", "libs", "services")

REMEDY = (
    "give a part of it that has a name its own state, its own class and tests of its own "
    "(CONTRIBUTING.md, Style)"
)


@dataclass(frozen=True)
class Allowed:
    """An exception: a class that may have more functions, but no more than so many, and why."""

    functions: int
    why: str


@dataclass
class Class:
    """A class that a source defines."""

    name: str
    line: int
    functions: list[str] = field(default_factory=list)


# C++ -----------------------------------------------------------------------------------------------

_BLANK = re.compile(
    r"""
      //[^\n]* | /\*.*?\*/                              # Comments.
    | ^[ \t]*\#(?:[^\n\\]|\\.)*                         # The preprocessor's lines.
    | (?P<text>(?:\bu8|\b[uUL])?R"(?P<end>[^(\s]*)\(.*?\)(?P=end)"
        | "(?:\\.|[^"\\\n])*"
        | (?<!\w)'(?:\\.|[^'\\\n])+')
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_TOKEN = re.compile(r"\w+|::|->|\S")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
# What may stand before a function's name with parentheses of its own.
_WITH_PARENTHESES = {"__attribute__", "alignas", "decltype", "explicit", "noexcept", "requires"}
_MACRO = re.compile(r"[A-Z][A-Z0-9_]+")


def _blank(match: re.Match[str]) -> str:
    lines = "\n" * match[0].count("\n")
    return ("0" if match["text"] else " ") + lines


class _Scanner:
    """Reads the classes of one source. It knows declarations, and skips all else."""

    def __init__(self, text: str) -> None:
        text = _BLANK.sub(_blank, text)
        self._tokens = [match[0] for match in _TOKEN.finditer(text)]
        self._starts = [match.start() for match in _TOKEN.finditer(text)]
        self._text = text
        self.found: list[Class] = []

    def scan(self) -> list[Class]:
        at = 0
        while at < len(self._tokens):
            at = self._outside(at)
        return self.found

    def _token(self, at: int) -> str:
        return self._tokens[at] if at < len(self._tokens) else ""

    def _is_name(self, at: int) -> bool:
        return re.fullmatch(r"[A-Za-z_]\w*", self._token(at)) is not None

    def _line(self, at: int) -> int:
        return self._text.count("\n", 0, self._starts[at]) + 1

    def _after_pair(self, at: int) -> int:
        """After the bracket that closes the one at `at`."""
        opening = self._token(at)
        closing = _CLOSING[opening]
        depth = 0
        while at < len(self._tokens):
            depth += (self._tokens[at] == opening) - (self._tokens[at] == closing)
            at += 1
            if depth == 0:
                break
        return at

    def _after_angles(self, at: int) -> int:
        depth = 0
        while at < len(self._tokens):
            token = self._tokens[at]
            if token in _CLOSING:
                at = self._after_pair(at)
                continue
            depth += (token == "<") - (token == ">")
            at += 1
            if depth == 0:
                break
        return at

    def _after_statement(self, at: int) -> int:
        """After its semicolon, or after the body of a function."""
        has_parameters = False
        while at < len(self._tokens):
            token = self._tokens[at]
            if token == ";":
                return at + 1
            if token == "}":  # The end of what is around it.
                return at
            if token in _CLOSING:
                at = self._after_pair(at)
                if token == "{" and has_parameters:
                    return at
                has_parameters |= token == "("
            else:
                at += 1
        return at

    def _outside(self, at: int) -> int:
        """One step outside of classes."""
        token = self._token(at)
        if token == "template" and self._token(at + 1) == "<":
            return self._after_angles(at + 1)
        if token == "enum":
            return self._after_enum(at)
        if token in ("class", "struct", "union"):
            body = self._body_of(at)
            if body is not None:
                return self._class(at, *body, outer="")
        return at + 1

    def _after_enum(self, at: int) -> int:
        while self._token(at) not in (";", "{", ""):
            at += 1
        return self._after_pair(at) if self._token(at) == "{" else at + 1

    def _body_of(self, at: int) -> tuple[str, int] | None:
        """The name and the brace of the class that is defined at `at`; None: it is only named."""
        at += 1
        while True:
            if self._token(at) == "[" or (self._token(at) in _WITH_PARENTHESES):
                at = self._after_pair(at if self._token(at) == "[" else at + 1)
            elif _MACRO.fullmatch(self._token(at)) and self._is_name(at + 1):
                at += 1
            else:
                break
        name = ""
        while self._is_name(at) and self._token(at) != "final":
            name += self._token(at)
            at += 1
            if self._token(at) == "<":
                at = self._after_angles(at)
            if self._token(at) != "::":
                break
            name += "::"
            at += 1
        if self._token(at) == "final":
            at += 1
        if self._token(at) == ":":
            while self._token(at) not in ("{", ";", ""):
                at = self._after_pair(at) if self._token(at) == "(" else at + 1
        return (name, at) if self._token(at) == "{" else None

    def _class(self, at: int, name: str, brace: int, outer: str) -> int:
        """Reads the class whose body begins at `brace`."""
        name = name or "(unnamed)"
        found = Class(f"{outer}::{name}" if outer else name, self._line(at))
        self.found.append(found)
        end = self._after_pair(brace) - 1
        at = brace + 1
        while at < end:
            at = self._member(at, found)
        return end + 1

    def _member(self, at: int, found: Class) -> int:
        """Reads one member of a class, and notes it if it is a function."""
        token = self._token(at)
        if token in (";", ","):
            return at + 1
        if token in ("public", "private", "protected") and self._token(at + 1) == ":":
            return at + 2
        if token == "template" and self._token(at + 1) == "<":
            return self._after_angles(at + 1)
        if token in ("using", "typedef", "friend", "static_assert"):
            return self._after_statement(at)
        if token == "enum":
            return self._after_enum(at)
        if token in ("class", "struct", "union"):
            body = self._body_of(at)
            if body is not None:
                return self._class(at, *body, outer=found.name)
        return self._declaration(at, found)

    def _declaration(self, at: int, found: Class) -> int:
        begin = at
        while True:
            token = self._token(at)
            if token in ("", "}", ";"):
                return at + (token == ";")
            if token in ("=", "{", ":"):  # Data.
                return self._after_statement(at)
            if token == "operator":
                name_end = at + 1
                while self._token(name_end) != "(":
                    name_end += 1
                if self._token(name_end + 1) == ")" and name_end == at + 1:
                    name_end += 2
                name = "operator" + " ".join(self._tokens[at + 1 : name_end])
                return self._after_function(name_end, name, found)
            if token == "[":
                at = self._after_pair(at)
            elif token == "<":
                at = self._after_angles(at)
            elif token != "(":
                at += 1
            elif self._token(at - 1) in _WITH_PARENTHESES:
                at = self._after_pair(at)
            elif at - 1 == begin and _MACRO.fullmatch(self._token(begin)):
                at = self._after_pair(at)
            elif self._is_pointer(at):
                return self._after_statement(at)
            else:
                name = ("~" if self._token(at - 2) == "~" else "") + self._token(at - 1)
                return self._after_function(at, name, found)

    def _is_pointer(self, at: int) -> bool:
        """Whether the parenthesis is one of "int (*call)(int)"."""
        at += 1
        while self._is_name(at) and self._token(at + 1) == "::":
            at += 2
        return self._token(at) in ("*", "&")

    def _after_function(self, at: int, name: str, found: Class) -> int:
        """`at`: at its parameters."""
        at = self._after_pair(at)
        counts = True
        while True:
            token = self._token(at)
            if token in ("", "}", ";"):
                at += token == ";"
                break
            if token == "{":
                at = self._after_pair(at)
                break
            if token == ":":
                at = self._after_initializers(at + 1)
            elif token in ("(", "["):
                at = self._after_pair(at)
            else:
                counts &= token not in ("default", "delete")
                at += 1
        if counts:
            found.functions.append(name)
        return at

    def _after_initializers(self, at: int) -> int:
        while True:
            while self._token(at) not in ("(", "{", ""):
                at = self._after_angles(at) if self._token(at) == "<" else at + 1
            if self._token(at) == "":
                return at
            at = self._after_pair(at)
            while self._token(at) == ".":
                at += 1
            if self._token(at) != ",":
                return at
            at += 1


# Python --------------------------------------------------------------------------------------------


def _python_classes(text: str) -> Iterator[Class]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            functions = [
                each.name
                for each in node.body
                if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
            ]
            yield Class(node.name, node.lineno, functions)


# Both ----------------------------------------------------------------------------------------------


def classes(path: str, text: str) -> list[Class]:
    """The classes that the source defines, nested ones too, each with its own functions.

    Each overload counts, private ones too. What is defaulted or deleted does not, and no friend.
    """
    return list(_python_classes(text)) if path.endswith(".py") else _Scanner(text).scan()


def is_production(path: str) -> bool:
    pure = PurePosixPath(path)
    is_test = re.search(r"_(test|fixture|benchmark)$|_fuzz_test$", pure.stem) is not None
    return (
        pure.parts[0] in ROOTS
        and pure.suffix in SUFFIXES
        and not is_test
        and not {"testing", "testdata"} & set(pure.parts)
    )


def problems(path: str, text: str, allowed: dict[str, Allowed]) -> list[str]:
    """The classes of a source that are too large; each text says the count and the remedy."""
    found = []
    for each in classes(path, text):
        count = len(each.functions)
        exception = allowed.get(each.name)
        most = FUNCTIONS_MAX if exception is None else exception.functions
        if count > most:
            found.append(
                f"{path}:{each.line}: class {each.name} has {count} functions; at most {most} "
                f"are allowed: {REMEDY}"
            )
    return found


def main() -> None:
    paths = sys.argv[1:] or [each for each in source_tree.files(*SUFFIXES) if is_production(each)]
    sizes = [
        (len(each.functions), f"{path}:{each.line}: {each.name}")
        for path in paths
        for each in classes(path, Path(path).read_text())
    ]
    for count, where in sorted(sizes, reverse=True)[:20]:
        print(f"{count:4} {where}")


if __name__ == "__main__":
    main()
