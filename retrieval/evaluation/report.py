"""An evaluation as people read it: report.json with every number, report.html to look at."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from retrieval import text
from retrieval.errors import InputError
from retrieval.evaluation.findings import Findings
from retrieval.evaluation.numbers import keys, percent, short, summary, value
from retrieval.evaluation.score import KS, Result
from retrieval.files import now, write_texts
from retrieval.reports.page import document
from retrieval.reports.report import render

__all__ = ["Report", "check_keeps", "keep", "kept", "render", "table"]

FORMAT_VERSION = 2
_KEPT = "reports"  # in a gallery
_KNOWN_VERSIONS = (1, FORMAT_VERSION)  # what came with 2 may be missing


@dataclass(frozen=True)
class Report:
    """Everything an evaluation found.

    Attributes:
        data: the data set as it was named.
        protocol: what was searched for in what, in one line.
        images, classes: of the queries.
        fingerprint: SHA-256 of the model file, where there is one.
        results: published numbers first, then baselines, the model itself last.
        bad_files: (path, reason) of images that could not be read and were left out.
        ks: the K of the table.
        notes: what to keep in mind when reading it, a sentence each.
        seed: of the training run, where there was one.
        findings: what the model itself got wrong; `None`: not known.
        gallery_state: of a gallery measured on its own images, what `retrieval.evaluation.gallery.state_of`
            said; else `None`.
    """

    data: str
    protocol: str
    images: int
    classes: int
    fingerprint: str | None
    results: list[Result]
    bad_files: list[tuple[str, str]] = field(default_factory=list)
    created: str = field(default_factory=now)
    ks: tuple[int, ...] = KS
    notes: tuple[str, ...] = ()
    seed: int | None = None
    findings: Findings | None = None
    gallery_state: str | None = None

    @property
    def headline(self) -> Result:
        """The result that the report is about: of the model itself, by class."""
        return next((result for result in reversed(self.results) if result.by is None), self.results[-1])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"format": FORMAT_VERSION, **dataclasses.asdict(self)}

    def save(self, folder: Path) -> None:
        """Write report.html and report.json into a folder, made if need be; with the last one it is there."""
        folder.mkdir(parents=True, exist_ok=True)
        page = document(f"Lookalike: {self.data}", render(self))
        write_texts(folder, {"report.html": page, "report.json": json_lines(self.to_dict())})

    @classmethod
    def load(cls, folder: Path) -> Report:
        """Read report.json back; an `InputError` where there is none of a known format."""
        path = folder / "report.json"
        try:
            values = json.loads(path.read_text())
            if values.pop("format") not in _KNOWN_VERSIONS:
                raise InputError(f"{path}: a report of another version; evaluate again")
            values["results"] = [Result.from_dict(result) for result in values["results"]]
            values["bad_files"] = [(path, reason) for path, reason in values["bad_files"]]
            values |= {name: tuple(values[name]) for name in ("ks", "notes") if name in values}
            if values.get("findings") is not None:
                values["findings"] = Findings.from_dict(values["findings"])
            return cls(**values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a readable report ({error}); evaluate again") from error


def check_keeps(gallery: Path) -> None:
    """Refuse a gallery that could not keep a report; ask before long work.

    Raises:
        InputError: its folder cannot be written.
    """
    try:
        (gallery / _KEPT).mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=gallery / _KEPT):
            pass
    except OSError as error:
        what = f"{gallery}: it cannot keep a report ({error.strerror})"
        raise InputError(f"{what}; make its folder writable, or measure a copy of it") from error


def keep(report: Report, gallery: Path) -> Path:
    """Save a report in a gallery, under the time it was made -> its folder."""
    name = report.created.replace(":", "")
    for number in count(1):
        folder = gallery / _KEPT / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:  # another one of the same second
            continue
    report.save(folder)
    return folder


def kept(gallery: Path) -> list[Path]:
    """The folders of all reports kept in a gallery, oldest first."""
    return [file.parent for file in sorted((gallery / _KEPT).glob("*/report.json"))]


def table(report: Report) -> str:
    """The most important numbers as plain text, one result a line, in percent; the notes below."""
    names = summary(keys(report.results), report.ks)
    rows = [[result.title, *(percent(value(result, name)) for name in names)] for result in report.results]
    lines = text.align_columns([["", *map(short, names)], *rows], right=range(1, len(names) + 1))
    interval = report.headline.intervals.get("recall_at_1")
    if interval is not None:
        low, high = map(percent, interval)
        lines.append(f"R@1 of {report.headline.title}: {low} to {high} with 95% confidence.")
    return "\n".join([*lines, *report.notes])


def json_lines(values: dict[str, Any]) -> str:
    """An object as JSON, one key a line: long columns of numbers stay on one."""
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
