"""Report of an evaluation: every number, saved as report.json. `retrieval.reports` renders it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.display import Displayed
from retrieval.errors import InputError
from retrieval.evaluation.findings import Findings, JudgedQueries
from retrieval.evaluation.score import BY_PRODUCT, KS, Result
from retrieval.evaluation.verdict import Verdict
from retrieval.files import now, write_texts
from retrieval.text import pluralize

FORMAT_VERSION = 4
_READABLE = (3, 4)  # 3 has no intervals over classes, no spreads, and no MAP@R of single queries
REPORT_FILE = "report.json"
OFF_THE_SHELF = "off-the-shelf backbone"  # name of the result of a pretrained backbone without a head
REPORTS_FOLDER = "reports"  # folder of a gallery with the reports that it keeps
_PRINTED = {"recall_at_1": "Recall@1", "map_at_r": "MAP@R"}  # in the text that stands for a report
_MODEL, _FLATTERED = "The model ", ": others are found less well."


def trained_note(remark: str) -> str:
    """Return the note of a report on a model that knows the images; see `TrainingImages.remark`."""
    return f"{_MODEL}{remark}{_FLATTERED}"


def trained_remark(note: str) -> str | None:
    """Return the remark in such a note; `None` for other notes."""
    if not (note.startswith(_MODEL) and note.endswith(_FLATTERED)):
        return None
    return note.removeprefix(_MODEL).removesuffix(_FLATTERED)


@dataclass(frozen=True, repr=False)
class Report(Displayed):
    """Everything that an evaluation found.

    Attributes:
        data: Data set, as named by the user.
        protocol: Searched set and protocol, in one line.
        images: Number of query images.
        classes: Number of classes of the queries.
        fingerprint: SHA-256 of the model file; `None` if there is no file.
        results: Published results first, then baselines, the evaluated model last.
        bad_files: Path and reason of each image that could not be read and was left out.
        created: Time of the evaluation, ISO 8601, UTC.
        ks: Values of K in tables.
        notes: Remarks for readers, one sentence each.
        seed: Seed of the training run; `None` if unknown.
        findings: Mistakes of the evaluated model; `None` if not collected.
        verdict: The evaluated model against its best baseline, or against the last evaluation of the gallery
            with another model; `None` without one.
        gallery_state: For a gallery evaluated on its own images,
            `SearchableGallery.state_digest` at that time; else `None`.
        judged: Judged queries with their answers, by the protocols of the last results; `None` for others.
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
    verdict: Verdict | None = None
    judged: JudgedQueries | None = None

    def __repr__(self) -> str:
        known = self.headline.known
        facts = [f"{name} {100 * known[key]:.1f}" for key, name in _PRINTED.items() if key in known]
        facts += [pluralize(self.images, "query image"), f"{self.classes:,} classes"]
        return f"<Report of {self.data}: {', '.join(facts)}>"

    @property
    def headline(self) -> Result:
        """The main result: the evaluated model, by class."""
        return next((result for result in reversed(self.results) if result.by is None), self.results[-1])

    @property
    def compared(self) -> Result:
        """The result that comparisons go by: the headline, or of products as hits, see `Queries.product`."""
        is_by_product = self.findings is not None and bool(self.findings.queries.product)
        found = (one for one in reversed(self.results) if is_by_product and one.by == BY_PRODUCT)
        return next(found, self.headline)

    def by_images(self) -> Report:
        """Return the report without the answers by product, for a comparison with one that has none."""
        if self.findings is None or not self.findings.queries.product:
            return self
        queries = dataclasses.replace(self.findings.queries, product=[])
        return dataclasses.replace(self, findings=dataclasses.replace(self.findings, queries=queries))

    def by_protocol(self) -> dict[str, Report]:
        """Return a report for each protocol of judged queries; itself as "" for others."""
        if self.judged is None:
            return {"": self}
        found, names = {}, list(self.judged.answers)
        for number, name in enumerate(names):
            results = [
                dataclasses.replace(result, name=result.name.removesuffix(f", {name}"))
                for result in self.results[number :: len(names)]
            ]
            judged = dataclasses.replace(self.judged, answers={name: self.judged.answers[name]})
            found[name] = dataclasses.replace(self, results=results, judged=judged)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the content of report.json: the format number and the fields of this class.

        A result has its name, `by`, and by metric key, such as "recall_at_1", `values`, `intervals`,
        `class_intervals` and `spreads`.
        """
        return {"format": FORMAT_VERSION, **dataclasses.asdict(self)}

    def save(self, folder: Path) -> None:
        """Write report.json into a folder."""
        write_texts(folder, {REPORT_FILE: json_lines(self.to_dict())})

    @classmethod
    def load(cls, folder: Path) -> Report:
        """Load report.json of a folder.

        Raises:
            InputError: The file is missing, damaged, or of another format.
        """
        path = folder / REPORT_FILE
        try:
            fields = json.loads(path.read_text())
            if fields.pop("format") not in _READABLE:
                raise InputError(f"{path}: report of another format; evaluate again")
            fields["results"] = [Result.from_dict(result) for result in fields["results"]]
            fields["bad_files"] = [(path, reason) for path, reason in fields["bad_files"]]
            fields |= {name: tuple(fields[name]) for name in ("ks", "notes")}
            if fields["findings"] is not None:
                fields["findings"] = Findings.from_dict(fields["findings"])
            if fields.get("judged") is not None:
                fields["judged"] = JudgedQueries.from_dict(fields["judged"])
            if fields.get("verdict") is not None:
                fields["verdict"] = Verdict.from_dict(fields["verdict"])
            return cls(**fields)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: not a readable report ({error}); evaluate again") from error


def kept_reports(gallery: Path) -> list[Path]:
    """Return the folders of all reports kept in a gallery, oldest first."""
    return [file.parent for file in sorted((gallery / REPORTS_FOLDER).glob(f"*/{REPORT_FILE}"))]


def json_lines(fields: dict[str, Any]) -> str:
    """Return an object as JSON with one key per line: long columns of numbers stay on one line."""
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
