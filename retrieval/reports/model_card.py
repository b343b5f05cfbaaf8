"""Model card: README.md of a published model, from the metadata of its file and a report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from retrieval.errors import InputError
from retrieval.evaluation.report import REPORT_FILE, Report
from retrieval.machine.extras import needs
from retrieval.metrics.table import shown_columns
from retrieval.model import hub
from retrieval.model.embedder import Embedder
from retrieval.model.licenses import model_license
from retrieval.reports.pages import render_template

CARD = "README.md"


def model_card(embedder: Embedder, name: str, report: Report | None = None) -> str:
    """Return the model card: front matter that the hub reads, then Markdown.

    Nothing in it names a folder of this machine.

    Args:
        embedder: Model.
        name: USER/NAME of the repository, or another name.
        report: Evaluation of the model, if there is one.

    Raises:
        InputError: The report is one of another model.
    """
    if report is not None and report.fingerprint not in (None, embedder.fingerprint):
        raise InputError(
            f"report: it evaluates model {str(report.fingerprint)[:12]}, not {embedder.path} "
            f"({embedder.fingerprint[:12]}); evaluate this one with `lookalike evaluate {embedder.path}`"
        )
    provenance = embedder.provenance
    config = provenance.get("config") or {}
    columns = [] if report is None else shown_columns(report.headline.values, report.ks)
    return render_template(
        "model_card.md",
        front=_front_matter(embedder, name, report),
        title=name,
        file=hub.model_name(embedder.path),
        embedder=embedder,
        is_repository=hub.is_repository(name),
        source=provenance.get("source"),
        license=model_license(provenance),
        data=_data_name(config.get("data") or ""),
        model=config.get("model") or {},
        settings={part: config[part] for part in ("loss", "batch", "epochs", "seed") if part in config},
        validation=provenance.get("metrics") or {},
        layers=provenance.get("layers") or [],
        report=report,
        report_data="" if report is None else _data_name(report.data),
        columns=columns,
        to_json=lambda value: json.dumps(value, default=str),
    )


def write_pretrained(embedder: Embedder, folder: Path, name: str, report: Path | None = None) -> None:
    """Write everything that a repository of the hub holds: model, config.json, model card and report.

    Args:
        embedder: Model.
        folder: Folder to write to; files of the same names are replaced.
        name: Name in the model card.
        report: Folder written by `lookalike evaluate`, if there is one.

    Raises:
        InputError: The report cannot be read, or evaluates another model.
    """
    found = None if report is None else Report.load(report)
    card = model_card(embedder, name, found)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / hub.model_name(embedder.path)
    if not (target.exists() and target.samefile(embedder.path)):
        shutil.copyfile(embedder.path, target)
    facts = {"fingerprint": embedder.fingerprint, "file": target.name, **embedder.metadata["embedding"]}
    config = {"lookalike": facts, "preprocess": embedder.metadata["preprocess"]}
    (folder / hub.CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    (folder / CARD).write_text(card, encoding="utf-8")
    if report is not None:
        shutil.copyfile(report / REPORT_FILE, folder / REPORT_FILE)


def _front_matter(embedder: Embedder, name: str, report: Report | None) -> str:
    try:
        from huggingface_hub import EvalResult, ModelCardData  # slow to import
    except ModuleNotFoundError as error:
        raise InputError(f"the model card {needs('huggingface_hub')}") from error
    results = []
    if report is not None:
        data = _data_name(report.data)
        results = [
            EvalResult(
                task_type="image-feature-extraction",
                dataset_type=data,
                dataset_name=data,
                metric_type=column.key,
                metric_name=column.title,
                metric_value=round(report.headline.known[column.key], 4),
            )
            for column in shown_columns(report.headline.known, report.ks)
        ]
    facts = ModelCardData(
        license=model_license(embedder.provenance),
        library_name="lookalike",
        pipeline_tag="image-feature-extraction",
        tags=["image-retrieval", "image-similarity", "metric-learning", "onnx"],
        model_name=name.rpartition("/")[2] if results else None,
        eval_results=results or None,
    )
    return str(facts.to_yaml())


def _data_name(data: str) -> str:
    """Return a data specification without folders: cub200 for cub200:/data/CUB_200_2011."""
    kind, _, location = data.partition(":")
    return Path(location).stem if kind in ("folder", "csv", "images") and location else kind
