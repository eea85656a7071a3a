# SPDX-License-Identifier: Apache-2.0
"""Plants every deliberate bug of mutations.txt in copies of the sources it names, behind switches.

A bug is a place in a .cc file, quoted with what stands around it:

    libs/aggregation/slice_round.cc:
        if ([[[part.here ==> false]]])

The copy chooses between the two when it runs (tests/sim/mutation.h). White space does not matter. A
quotation that is not found exactly once ends the build with the bug's name.
"""

import argparse
import dataclasses
import pathlib
import re
import sys

KINDS = (
    "usual",
    "recovery",
    "silent",
    "groups",
    "hosts",
    "standbys",
    "late",
    "patience",
    "hasty",
    "gathers",
    "severed",
    "handshake",
    "link",
)
# How many lives come before one breaks, at most, unless the list says otherwise.
SEEDS = 4000
_MARK = re.compile(r"\[\[\[(.*?)==>(.*?)\]\]\]", re.DOTALL)
_TOKEN = re.compile(r"\w+|[^\w\s]")


class ListError(Exception):
    """The list, or a source that it quotes, is not as it must be; the text says where."""


@dataclasses.dataclass
class Place:
    source: str  # Its path in the workspace.
    quotation: str


@dataclasses.dataclass
class Mutation:
    name: str
    kind: str = ""
    breaks: str = ""
    seeds: int = SEEDS
    first: int = 0
    places: list[Place] = dataclasses.field(default_factory=list)


def read_list(text):
    """The mutations of the list, in its order."""
    mutations: list[Mutation] = []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"mutations.txt:{number}"
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("== "):
            name = line[3:].strip()
            if not re.fullmatch(r"[a-z0-9_]+", name) or any(m.name == name for m in mutations):
                raise ListError(f"{where}: '{name}' is not a name, or is there twice")
            mutations.append(Mutation(name))
        elif not mutations:
            raise ListError(f"{where}: text before the first '== name'")
        elif line.startswith("kind: "):
            mutations[-1].kind = line[6:].strip()
        elif line.startswith("breaks: "):
            mutations[-1].breaks = line[8:].strip()
        elif line.startswith("seeds: ") and line[7:].strip().isdigit():
            mutations[-1].seeds = int(line[7:])
        elif line.startswith("first: ") and line[7:].strip().isdigit():
            mutations[-1].first = int(line[7:])
        elif line.startswith(" "):
            if not mutations[-1].places:
                raise ListError(f"{where}: a quotation before the path of its source")
            mutations[-1].places[-1].quotation += line + "\n"
        elif line.endswith(":"):
            mutations[-1].places.append(Place(line[:-1], ""))
        else:
            raise ListError(f"{where}: neither a key, nor a path with ':', nor indented: {line}")
    for mutation in mutations:
        if mutation.kind not in KINDS:
            raise ListError(f"{mutation.name}: its kind '{mutation.kind}' is none of {KINDS}")
        if not mutation.breaks or not mutation.places:
            raise ListError(f"{mutation.name}: says not what it breaks, or where it is")
    return mutations


def _pattern(text):
    """A regular expression for `text` whose white space may be another."""
    tokens = _TOKEN.findall(text)
    pattern = ""
    for before, token in zip(["", *tokens], tokens):
        if before:
            both_words = re.match(r"\w", before[-1]) and re.match(r"\w", token[0])
            pattern += r"\s+" if both_words else r"\s*"
        pattern += re.escape(token)
    return pattern


def _edit(mutation, place, source):
    """(begin, end, new text) of one mutation in the text of its source."""
    marks = _MARK.findall(place.quotation)
    if len(marks) != 1:
        raise ListError(f"{mutation.name}: its quotation of {place.source} has {len(marks)} marks")
    original, mutated = marks[0]
    before, after = _MARK.sub("\0", place.quotation).split("\0")
    parts = [_pattern(before), "(" + _pattern(original) + ")", _pattern(after)]
    found = list(re.finditer(r"\s*".join(part for part in parts if part), source))
    if len(found) != 1:
        raise ListError(
            f"{mutation.name}: no longer applies: {place.source} has {len(found)} places like\n"
            + _MARK.sub(lambda mark: mark[1].strip(), place.quotation)
        )
    begin, end = found[0].span(1)
    switch = f"TALWEG_MUTANT({mutation.name})"
    if not original.strip():
        text = f" if ({switch}) {{ {mutated.strip()} }} "
    else:
        text = f"({switch} ? ({mutated.strip()}) : ({source[begin:end]}))"
    return begin, end, text


def apply(mutations, sources):
    """Returns the copies, path to text, of those of `sources` (path to text) that get a bug.

    Raises ListError with all that is wrong.
    """
    edits: dict[str, list[tuple[int, int, str]]] = {}
    problems = []
    for mutation in mutations:
        for place in mutation.places:
            if place.source not in sources:
                problems.append(f"{mutation.name}: there is no such .cc file: {place.source}")
                continue
            try:
                edit = _edit(mutation, place, sources[place.source])
            except ListError as error:
                problems.append(str(error))
            else:
                edits.setdefault(place.source, []).append(edit)
    if problems:
        raise ListError("\n".join(problems))
    mutated = {}
    for path in edits:
        text = sources[path]
        end_of_last = len(text)
        for begin, end, new in sorted(edits[path], reverse=True):
            if end > end_of_last:
                raise ListError(f"{path}: two mutations overlap at '{text[begin:end]}'")
            text = text[:begin] + new + text[end:]
            end_of_last = begin
        # On the first line, a comment, so that the other lines keep their numbers.
        mutated[path] = '#include "tests/sim/mutation.h"  ' + text
    return mutated


def joined(texts):
    """Sources, path to text, as one; the compiler names the lines of each."""
    return "".join(f'#line 1 "{path}"\n{text}' for path, text in texts.items())


def table(mutations):
    """Rows of mutation_test.cc's table."""
    return "".join(
        f'{{"{m.name}", "{m.breaks}", Kind::k{m.kind.capitalize()}, {m.seeds}, {m.first}}},\n'
        for m in mutations
    )


def main():
    parser = argparse.ArgumentParser(fromfile_prefix_chars="@")
    parser.add_argument("--list", type=pathlib.Path, required=True)
    parser.add_argument("--table", type=pathlib.Path, required=True)
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="PATH=COPY",
        help="sources that are compiled as one have one copy",
    )
    arguments = parser.parse_args()
    copies: dict[str, list[str]] = {}
    for path, copy in (source.split("=") for source in arguments.source):
        copies.setdefault(copy, []).append(path)
    try:
        mutations = read_list(arguments.list.read_text(encoding="utf-8"))
        sources = {
            path: pathlib.Path(path).read_text(encoding="utf-8")
            for paths in copies.values()
            for path in paths
        }
        mutated = apply(mutations, sources)
    except ListError as error:
        sys.exit(f"the deliberate bugs of {arguments.list} cannot be planted:\n{error}")
    for copy, paths in copies.items():
        text = joined({path: mutated.get(path, sources[path]) for path in paths})
        has_bug = any(path in mutated for path in paths)
        pathlib.Path(copy).write_text(text if has_bug else "", encoding="utf-8")
    arguments.table.write_text(table(mutations), encoding="utf-8")


if __name__ == "__main__":
    main()
