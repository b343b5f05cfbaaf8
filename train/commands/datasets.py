"""The `lookalike datasets` group: list, fetch and inspect data sets."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from retrieval import text
from retrieval.cli import json_option, print_result, print_status
from train import data as data_sets
from train.data import inspection
from train.data.judged import JUDGED, KnownJudgedSet
from train.data.known import KnownDataSet

_MOST_LISTED = 10  # problems of each kind; --json has them all


@click.group()
def datasets() -> None:
    """List, fetch and inspect data sets.

    `info` counts images and classes, and finds unusable files, duplicates, and classes with few images.
    """


@datasets.command("list")
@json_option
def list_datasets(as_json: bool) -> None:
    """List the data sets and formats that --data accepts."""
    known: Mapping[str, KnownDataSet | KnownJudgedSet] = {**data_sets.KNOWN, **JUDGED}
    facts = [
        {
            "name": name,
            "title": k.title,
            "protocol": k.protocol,
            "images": k.images,
            "source": k.source,
            "by_hand": k.by_hand or None,
            "bundled": k.bundled,
            "licence": k.licence or None,
        }
        for name, k in known.items()
    ]
    rows = []
    for name, k in known.items():
        data = name if k.bundled else f"{name}:ROOT"
        rows += [(data, f"{k.images:,}", k.source, k.title), ("", "", "", f"  {k.protocol}")]
    rows += [
        (
            "folder:DIR",
            "yours",
            "",
            "one folder per class at any depth; top folders train, test: splits",
        ),
        ("csv:FILE", "yours", "", "columns path,label and optionally split, role and coarse"),
        ("judged:DIR", "yours", "", "gallery/ and judgements.csv with query,image,judgement; for `evaluate`"),
        ("images:DIR", "yours", "", "images without labels, at any depth; for `train` and `analyze rates`"),
        ("hf:USER/NAME", "any", "Hugging Face Hub", "a data set with a column of images and one of labels;"),
        ("", "", "", "  hf:USER/NAME?config=C&label=COLUMN&revision=R chooses among several"),
    ]
    titles = ("data", "images", "source", "description and published protocol")
    lines = text.align_columns([titles, *rows], right={1})
    print_result(facts, as_json, "\n".join(lines))


@datasets.command()
@click.argument("name")
@click.option("--root", required=True, type=click.Path(path_type=Path), help="Folder to download to.")
def fetch(name: str, root: Path) -> None:
    """Download the data set NAME into a folder, for --data NAME:ROOT.

    digits and emoji come from installed packages; nothing is downloaded.

    An interrupted download is resumed, and checksums are verified. Without network access, put the archive
    into the folder by hand: it is used in place of a download.
    """
    data_sets.fetch(name, root, show_progress=True)
    print_status(f"{root}: ready; use it with --data {name}:{root}")
    if licence := data_sets.KNOWN[name].licence:
        print_status(f"licence: {licence}")


@datasets.command()
@click.argument("data")
@json_option
@click.pass_context
def info(ctx: click.Context, data: str, as_json: bool) -> None:
    """Count the images and classes of DATA, and find problems.

    DATA is folder:DIR, csv:FILE, images:DIR, hf:USER/NAME, NAME:ROOT or a bundled name, as for --data. Every
    image is read once, to find missing and damaged files, duplicates, and classes with one image or none.
    Prints the transitions of asymmetric label noise (noise.kind) that cifar10, cifar100 and stl10 define.
    """
    found = inspection.inspect_dataset(data_sets.load(data, unlabelled=True), show_progress=True)
    print_result(_facts(found), as_json, _text(found))
    if found.unusable:
        ctx.exit(3)


def _facts(found: inspection.Inspection) -> dict[str, Any]:
    return {
        "name": found.name,
        "images": found.images,
        "classes": found.classes,
        "splits": {
            name: {
                "images": s.images,
                "classes": s.classes,
                "per_class": {"min": s.fewest, "median": s.median, "max": s.most},
            }
            for name, s in found.splits.items()
        },
        "licence": found.licence or None,
        "coarse": {"name": found.coarse_name, "classes": found.coarse_classes} if found.coarse_name else None,
        "unusable": [{"path": e.source, "reason": e.reason, "detail": e.detail} for e in found.unusable],
        "duplicates": [
            {
                "files": [{"path": str(e.path), "label": e.label, "split": e.split} for e in d.entries],
                "across_classes": d.across_classes,
                "across_splits": d.across_splits,
            }
            for d in found.duplicates
        ],
        "single": found.single,
        "empty": found.empty,
        "transitions": dict(found.transitions) or None,
    }


def _text(found: inspection.Inspection) -> list[str]:
    classes = "1 class" if found.classes == 1 else f"{found.classes:,} classes"
    lines = [f"{found.name}: {text.pluralize(found.images, 'image')} of {classes}"]
    if found.licence:
        lines.append(f"licence: {found.licence}")
    if found.coarse_name:
        lines.append(f"coarse labels: {found.coarse_classes:,} ({found.coarse_name})")
    rows = [
        (name, f"{s.images:,}", f"{s.classes:,}", f"{s.fewest:,}", f"{s.median:,g}", f"{s.most:,}")
        for name, s in found.splits.items()
    ]
    titles = ("split", "images", "classes", "fewest", "median", "most in a class")
    lines += ["", *text.align_columns([titles, *rows], right=range(1, len(titles))), ""]
    lines += _transitions(found.transitions)
    problems = [
        *_problem("Unusable files", ([str(error)] for error in found.unusable)),
        *_problem("Duplicate images (the same bytes)", map(_duplicate, found.duplicates)),
        *_problem("Class folders without images, which are left out", ([name] for name in found.empty)),
    ]
    for split, labels in found.single.items():
        what = (
            "Classes of queries without a gallery image" if split == "queries" else "Classes with one image"
        )
        problems += _problem(
            f"{what} ({split})" if len(found.splits) > 1 else what, ([label] for label in labels)
        )
    return lines + (problems or ["No problems found."])


def _transitions(transitions: Mapping[str, str]) -> list[str]:
    if not transitions:
        return []
    arrows = [f"{label} -> {given}" for label, given in transitions.items()]
    what = "Transitions of asymmetric label noise (the other classes stay clean):"
    return [what, *textwrap.wrap(", ".join(arrows), 110, initial_indent="  ", subsequent_indent="  "), ""]


def _duplicate(found: inspection.Duplicate) -> list[str]:
    worse = [("different classes", found.across_classes), ("different splits", found.across_splits)]
    kinds = " and ".join(kind for kind, is_so in worse if is_so)
    files = [f"  {entry.path}  (class {entry.label}, split {entry.split})" for entry in found.entries]
    return [f"in {kinds}:" if kinds else "in one class:", *files]


def _problem(what: str, each: Iterable[list[str]]) -> list[str]:
    every = list(each)
    if not every:
        return []
    more = len(every) - _MOST_LISTED
    rest = [f"  and {more:,} more; --json has them all"] if more > 0 else []
    return [
        f"{what}: {len(every):,}",
        *(f"  {line}" for lines in every[:_MOST_LISTED] for line in lines),
        *rest,
    ]
