"""Which reports are compared: one alone, or those of several runs as a group."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import InputError
from retrieval.evaluation.report import Report

_FILE = "report.json"


@dataclass(frozen=True)
class Contender:
    """What is compared.

    Attributes:
        reports: one, or those of runs that differ by their seed.
    """

    name: str
    reports: tuple[Report, ...]


def contenders(words: Sequence[str]) -> list[Contender]:
    """Read what a person names.

    Args:
        words: each a report (its folder, or the report.json in it), a gallery (its newest report), a folder
            of runs with a report each, or NAME= and some of these with commas between; `*` stands for what
            there is. Without NAME it is called as its place is, as far as that is needed to tell it apart.

    Raises:
        InputError: nothing to be found there, no report, or a name given twice.
    """
    named = [_split(word) for word in words]
    places = [[place for part in parts for place in _places(part)] for _, parts in named]
    names = _names([name for name, _ in named], words)
    return [
        Contender(name, tuple(Report.load(place) for place in dict.fromkeys(found)))
        for name, found in zip(names, places, strict=True)
    ]


def _split(word: str) -> tuple[str | None, list[str]]:
    """NAME=PLACE,PLACE, unless it is a place itself."""
    name, equals, rest = word.partition("=")
    if not equals or Path(word).exists():
        return None, [word]
    if not name or not all(rest.split(",")):
        raise InputError(f"{word!r}: say NAME=REPORT, or NAME=REPORT,REPORT for several runs")
    return name, rest.split(",")


def _places(part: str) -> list[Path]:
    """The folders of all reports that a part of a word means."""
    matches = [part] if Path(part).exists() else sorted(glob.glob(part))
    found = [place for match in matches for place in _folders(Path(match))]
    if not found:
        detail = f"no {_FILE} here, nor in the folders in it" if matches else "no such report"
        raise InputError(f"{part}: {detail}; `lookalike evaluate ... --out DIR` writes one")
    return found


def _folders(place: Path) -> Iterable[Path]:
    if place.is_file():
        return [place.absolute().parent] if place.name == _FILE else []
    if (place / _FILE).is_file():
        return [place.absolute()]
    if (place / "gallery.db").is_file():
        return sorted(file.absolute().parent for file in place.glob(f"reports/*/{_FILE}"))[-1:]
    return sorted(file.absolute().parent for file in place.glob(f"*/{_FILE}"))


def _names(given: Sequence[str | None], words: Sequence[str]) -> list[str]:
    """What each is called: as given, or by what tells its path from those of the others."""
    places = [Path(word).absolute() for word in words]
    parts = [(place.parent if place.name == _FILE else place).parts for place in places]
    ends = {part[-1] for part, name in zip(parts, given, strict=True) if name is None}
    while len(ends) == 1 < given.count(None) and min(map(len, parts)) > 1:
        parts = [part[:-1] for part in parts]
        ends = {part[-1] for part, name in zip(parts, given, strict=True) if name is None}
    for length in range(1, max(map(len, parts)) + 1):
        names = [name or "/".join(part[-length:]) for name, part in zip(given, parts, strict=True)]
        if len(set(names)) == len(names):
            return names
    twice = next(name for name in names if names.count(name) > 1)
    raise InputError(f"{twice}: named twice; give each another name, as in NAME=REPORT")
