# SPDX-License-Identifier: Apache-2.0
"""Tables of another system's environment variables: what each may hold and what it does here.

A table checks an environment, reports misspelt names and variables without effect, and writes its
own page of the documentation.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from talweg.errors import InvalidArgument, Unsupported


class VariableError(InvalidArgument):
    """An environment variable has a value that is not allowed."""


@dataclass(frozen=True)
class Kind:
    """The values that a variable may have, as a text and as a check."""

    allowed: str
    is_allowed: Callable[[str], bool]


def number(lowest: int, highest: int) -> Kind:
    def is_allowed(text: str) -> bool:
        return re.fullmatch("-?[0-9]{1,18}", text) is not None and lowest <= int(text) <= highest

    return Kind(f"{lowest} to {highest}", is_allowed)


def decimal(lowest: float, highest: float) -> Kind:
    def is_allowed(text: str) -> bool:
        try:
            return lowest <= float(text) <= highest
        except ValueError:
            return False

    return Kind(f"{lowest:g} to {highest:g}", is_allowed)


def choice(*values: str) -> Kind:
    return Kind(", ".join(values[:-1]) + " or " + values[-1], lambda text: text in values)


def text(allowed: str = "any text", pattern: str = "(?s).*") -> Kind:
    return Kind(allowed, lambda value: re.fullmatch(pattern, value) is not None)


SWITCH = choice("0", "1")
ANY = text()


class Effect(Enum):
    HONOURED = "honoured"
    NONE = "no effect"


@dataclass(frozen=True)
class Variable:
    """A variable. `meaning` says how it is honoured, or why it is not."""

    name: str
    kind: Kind
    default: str
    effect: Effect
    meaning: str
    # Values that the other system allows, and that Talweg refuses whatever `effect` says.
    refused: tuple[str, ...] = ()
    remedy: str = ""
    # Set if a program that sets this variable expects more speed or other results, and gets none.
    warns: bool = False
    # The system's launcher, if no process honours the variable but those that it starts.
    launcher: str = ""
    # The value that asks for what a process gets without that launcher.
    without: str = ""

    def check(self, value: str) -> None:
        if not self.kind.is_allowed(value):
            raise VariableError(f"{self.name} is '{value}'; it must be {self.kind.allowed}")
        if value in self.refused:
            raise Unsupported(f"{self.name}={value} is not offered by Talweg: {self.remedy}")


class Table:
    """All variables of a system. An unknown name with one of its `prefixes` counts as misspelt."""

    def __init__(
        self,
        system: str,
        variables: Iterable[tuple[str, list[Variable]]],
        prefixes: tuple[str, ...],
    ) -> None:
        self.system = system
        self.groups = list(variables)
        self.by_name = {each.name: each for _, group in self.groups for each in group}
        self._prefixes = prefixes
        self._said: set[str] = set()

    def value(self, environment: Mapping[str, str], name: str) -> str:
        """Returns a variable's checked value, or its default if it is unset or empty.

        Raises VariableError if the value is not allowed, and Unsupported if it is not offered.
        """
        variable = self.by_name[name]
        value = environment.get(name, "")
        if value == "":
            return variable.default
        variable.check(value)
        return value

    def number(self, environment: Mapping[str, str], name: str) -> int:
        return int(self.value(environment, name))

    def switch(self, environment: Mapping[str, str], name: str) -> bool:
        return self.value(environment, name).lower() in ("1", "true")

    def check(self, environment: Mapping[str, str]) -> None:
        """Raises as value() does, for the first variable with a bad value."""
        for name in self.by_name:
            self.value(environment, name)

    def misspelt(self, environment: Mapping[str, str]) -> list[tuple[str, str]]:
        """Returns unknown names with this system's prefixes, each with a near known name or ""."""
        found = []
        for name in sorted(environment):
            if name in self.by_name or not name.startswith(self._prefixes):
                continue
            near = difflib.get_close_matches(name, self.by_name, n=1, cutoff=0.75)
            found.append((name, near[0] if near else ""))
        return found

    def say(self, environment: Mapping[str, str], log: logging.Logger) -> None:
        """Logs misspelt variables and those without effect, each once per process."""
        for name, near in self.misspelt(environment):
            hint = f": did you mean {near}?" if near else f" of {self.system}"
            self._say(log, logging.WARNING, name, f"{name} is not a known variable{hint}")
        for variable in self.by_name.values():
            value = environment.get(variable.name)
            if variable.effect is Effect.NONE and value:
                level = (
                    logging.WARNING
                    if variable.warns and value != variable.default
                    else logging.INFO
                )
                self._say(
                    log, level, variable.name, f"{variable.name} has no effect: {variable.meaning}"
                )

    def say_without_launcher(
        self, environment: Mapping[str, str], log: logging.Logger, also: str
    ) -> None:
        """Logs, once per process, which variables have no effect because their launcher has not
        started this process. `also` is another name of the launcher.
        """
        lost = [
            each
            for each in self.by_name.values()
            if each.launcher and environment.get(each.name, "") not in ("", each.without)
        ]
        if not lost:
            return
        names = ", ".join(each.name for each in lost)
        verb, which = ("has", "it") if len(lost) == 1 else ("have", "them")
        self._say(
            log,
            logging.WARNING,
            "without launcher",
            f"{names} {verb} no effect here: only {lost[0].launcher} ({also}) honours {which}; start "
            f"the job by it, or unset {which}",
        )

    def _say(self, log: logging.Logger, level: int, name: str, words: str) -> None:
        if name not in self._said:
            self._said.add(name)
            log.log(level, words)

    def page(self) -> str:
        """Returns the documentation's tables, in Markdown."""
        lines = []
        for title, group in self.groups:
            lines += [
                f"### {title}",
                "",
                "| variable (default) | values | here | meaning |",
                "|---|---|---|---|",
            ]
            for each in group:
                default = f" ({each.default})" if each.default else ""
                meaning = each.meaning
                if each.warns:
                    meaning += " A warning says so."
                if each.refused:
                    meaning += f" Refused: {', '.join(each.refused)}: {each.remedy}."
                effect = each.effect.value + (f" by {each.launcher} alone" if each.launcher else "")
                lines.append(
                    f"| `{each.name}`{default} | {each.kind.allowed} | {effect} | {meaning} |"
                )
            lines.append("")
        return "\n".join(lines)


def logger(name: str, level: str, hides_time: bool) -> logging.Logger:
    """Makes a system's own log to stderr. Its level does not affect other logs."""
    log = logging.getLogger(name)
    log.propagate = False
    log.setLevel(level)
    for handler in list(log.handlers):
        log.removeHandler(handler)
    handler = logging.StreamHandler()
    stamp = "" if hides_time else "%(asctime)s: "
    handler.setFormatter(logging.Formatter(f"[{stamp}%(levelname).1s {name}] %(message)s"))
    log.addHandler(handler)
    return log
