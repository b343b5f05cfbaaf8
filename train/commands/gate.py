"""The `lookalike gate` command."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from retrieval.cli import json_option, print_result
from retrieval.commands.device_options import runtime_options
from retrieval.errors import InputError
from retrieval.model.runtime import Runtime
from train.commands import DATA_HELP

if TYPE_CHECKING:
    from retrieval.evaluation.comparison import Comparison
    from retrieval.evaluation.verdict import Verdict


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--data", help=f"Labelled images to measure both on: {DATA_HELP} For models and runs.")
@click.option(
    "--require",
    type=click.Choice(["no-loss", "gain"]),
    default="no-loss",
    show_default=True,
    help="What NEW must have: no certain loss, or a certain gain and no certain loss.",
)
@runtime_options
@json_option
@click.pass_context
def gate(
    ctx: click.Context,
    old: str,
    new: str,
    data: str | None,
    require: Literal["no-loss", "gain"],
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Decide by an exit code whether a new model, gallery or report may replace an old one.

    Both are models or runs, with --data; or two galleries, compared on the labelled images that are in both
    (by key; the labels of NEW count), by their stored vectors; or two reports of `lookalike evaluate`.

    \b
      lookalike gate old.onnx new.onnx --data folder:shop
      lookalike gate shop.gallery.old shop.gallery
      lookalike gate main/report branch/report --require gain

    Each query is compared with itself, for Recall@1 and MAP@R, and the 95% intervals are over classes, if
    there are eight or more. NEW finds less if one of the two certainly falls. The sentence is that of
    `lookalike compare`, and of `lookalike index rebuild`, which refuses such a model by itself.

    Exit code 0: NEW passes. 1: it does not. 2: the two cannot be compared, such as reports on more images and
    on fewer.
    """
    if data is not None:
        verdict, words = _by_data(old, new, data, runtime)
    else:
        verdict, words = _by_galleries(old, new) or _by_reports([old, new])
    passes = not verdict.loses and (require == "no-loss" or verdict.outcome == "more")
    facts = {"old": old, "new": new, "require": require, "passes": passes, "verdict": asdict(verdict)}
    print_result(facts, as_json, [words, f"{new}: {'passes' if passes else 'does not pass'} ({require})"])
    if not passes:
        ctx.exit(1)


def _by_data(old: str, new: str, data: str, runtime: Runtime) -> tuple[Verdict, str]:
    from retrieval.evaluation.comparison import Contender, compare_reports
    from train import data as data_sets
    from train.experiments.evaluation import evaluate_opened
    from train.experiments.targets import open_target

    dataset = data_sets.load(data)
    opened = [open_target(Path(target), None, runtime) for target in (old, new)]  # before minutes of work
    reports = [evaluate_opened(target, dataset, show_progress=True) for target in opened]
    names = [old, new] if old != new else [f"{old} (old)", f"{new} (new)"]
    contenders = [Contender(name, (report,)) for name, report in zip(names, reports, strict=True)]
    return _verdict(compare_reports(contenders))


def _by_galleries(old: str, new: str) -> tuple[Verdict, str] | None:
    """Return the verdict on two galleries; `None` if one of the two is none."""
    from retrieval.evaluation.gallery import compare_models
    from retrieval.galleries.database_folder import is_gallery
    from retrieval.gallery import Gallery

    if not (is_gallery(Path(old)) and is_gallery(Path(new))):
        return None
    found = compare_models(Gallery.open(Path(old)), Gallery.open(Path(new)), by_key=True)
    if found is None:
        raise InputError(f"{new}: has no two classes of two labelled images that are in {old} as well")
    return found.verdict, f"{found.words}."


def _by_reports(arguments: list[str]) -> tuple[Verdict, str]:
    from retrieval.evaluation.comparison import compare_reports, load_contenders, measured_differently

    for argument in arguments:
        if Path(argument).suffix == ".onnx":
            raise InputError(f"{argument}: a model needs --data, labelled images to measure both on")
    first, other = load_contenders(arguments)
    verdict = _verdict(compare_reports([first, other]))
    if differences := measured_differently(first, other):
        what = f"{other.name} was measured in another way than {first.name}: {differences}"
        raise InputError(
            f"{what}; evaluate both on the same images, or give two galleries: what both have is compared"
        )
    return verdict


def _verdict(comparison: Comparison) -> tuple[Verdict, str]:
    verdict = comparison.pairs[0].verdict if comparison.pairs else None
    if verdict is None:
        raise InputError(
            "gate: it takes two single reports that share queries; for runs, `lookalike compare`"
        )
    return verdict, " ".join([verdict.sentence, *comparison.notes])
