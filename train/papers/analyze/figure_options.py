"""Shared options of the analysis commands, and the decorator that turns a figure function into a command."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import runtime_options
from retrieval.errors import InputError
from retrieval.reports.figures import check_suffix, save_figure, write_file
from train.commands import DATA_HELP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from train.papers.analyze.sources import EmbeddingSource

SOURCE = "RUN|MODEL|GALLERY|FILE.npz"


@dataclass(frozen=True)
class Drawing:
    """Result of an analysis command.

    Attributes:
        plot: Draws on an empty figure.
        size: Width and height of the figure in inches.
        facts: Numbers behind the figure, for --json.
        text: Summary for the terminal.
        page: HTML page to write beside the figure under the same name; `None` for none.
        files: Further files that were written.
    """

    plot: Callable[[Figure], None]
    size: tuple[float, float]
    facts: Any
    text: str
    page: str | None = None
    files: Sequence[Path] = ()


def figure_command(
    name: str,
    *,
    sources: Literal["one", "optional", "several"] | None = None,
    split: Literal["test", "both"] = "test",
    baseline: bool = False,
) -> Callable[[Callable[..., Drawing]], click.Command]:
    """Turn a function that computes a figure into a command.

    The command adds --out, --png and --json, writes the files and prints the numbers. With `sources` it also
    has --device and --batch-size. It opens runs, models, galleries or .npz files and passes them
    to the function as its first argument, an `EmbeddingSource`, `None` for an optional one, or a list of
    them; it exits with code 3 if some of their images could not be read.

    Args:
        name: Name of the command.
        sources: Number of sources that the command takes; `None` for none at all.
        split: Splits of the data that are embedded by default.
        baseline: Accept --baseline untrained, which adds the network before training.
    """

    def decorate(function: Callable[..., Drawing]) -> click.Command:
        def run(ctx: click.Context, /, out: Path, png: bool, as_json: bool, **options: Any) -> None:
            opened = open_from_options(options, split) if sources else []
            arguments: list[Any] = [] if sources is None else [opened]
            if sources in ("one", "optional"):
                arguments = [opened[0] if opened else None]
            drawing = function(*arguments, **options)
            files = [*save_figure(drawing.plot, *drawing.size, out, png=png), *drawing.files]
            if drawing.page is not None:
                files.append(out.with_suffix(".html"))
                write_file(files[-1], drawing.page.encode())
            print_result(drawing.facts, as_json, drawing.text)
            finish(ctx, opened, files)

        functools.update_wrapper(run, function)  # takes over the description and the function's own options
        parameters = source_parameters(sources, split, baseline) if sources else []
        placed = runtime_options(run) if sources else run
        command = click.command(name, params=parameters)(click.pass_context(placed))
        for option in (out_option("The figure", ".svg"), _png_option, json_option):
            command = option(command)
        return command

    return decorate


_png_option = click.option("--png", is_flag=True, help="Also write the figure as a PNG beside the SVG.")


def out_option(content: str, suffix: str) -> Callable[[Any], Any]:
    """Return --out; its file name is checked before any work is done."""

    def check(ctx: click.Context, parameter: click.Parameter, file: Path) -> Path:
        return check_suffix(file, suffix)

    path = click.Path(path_type=Path)
    help_text = f"{content}, an {suffix} file."
    return click.option("--out", required=True, type=path, callback=check, help=help_text)


def batch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --classes, --per-class and --seed of a sampled batch."""
    for option in (
        click.option("--seed", default=0, show_default=True, help="Seed of the batch."),
        click.option(
            "--per-class",
            type=click.IntRange(min=2),
            default=4,
            show_default=True,
            help="Images of each class.",
        ),
        click.option(
            "--classes",
            type=click.IntRange(min=2),
            default=30,
            show_default=True,
            help="Classes in the batch.",
        ),
    ):
        function = option(function)
    return function


def source_parameters(
    number: Literal["one", "optional", "several"], split: Literal["test", "both"], baseline: bool
) -> list[click.Parameter]:
    """Return the parameters that name embedding sources; see `open_from_options`."""
    path = click.Path(path_type=Path)
    argument = (
        click.Argument(["targets"], nargs=-1, required=True, type=path, metavar=f"{SOURCE}...")
        if number == "several"
        else click.Argument(
            ["target"],
            type=path,
            required=number == "one",
            metavar=SOURCE if number == "one" else f"[{SOURCE}]",
        )
    )
    choices = ["train", "test", "both"] if number == "several" else ["train", "test"]
    split_help = f"Split of the data to embed; by default {split}, or all images if the data has no splits."
    parameters: list[click.Parameter] = [
        argument,
        click.Option(["--data"], help=f"Images to embed, by default those of the run: {DATA_HELP}"),
        click.Option(["--split"], type=click.Choice(choices), help=split_help),
        click.Option(
            ["--which"],
            multiple=number == "several",
            metavar="best|last|STEP",
            help="Checkpoint of a run: the best epoch on held-out images (the default), the last, or a step "
            "that checkpoints.at or checkpoints.every kept."
            + (" Repeatable." if number == "several" else ""),
        ),
    ]
    if number == "several":
        every = "Take every checkpoint that a run kept, one after the other."
        parameters.append(click.Option(["--every-checkpoint"], is_flag=True, help=every))
    if baseline:
        untrained = "Also draw the network before training."
        parameters.append(click.Option(["--baseline"], type=click.Choice(["untrained"]), help=untrained))
    return parameters


def open_from_options(options: dict[str, Any], split: str) -> list[EmbeddingSource]:
    """Open the sources that the `source_parameters` and `runtime` name, and remove them from the options.

    Args:
        options: Values of all options of a command.
        split: Default of --split.
    """
    from train.papers.analyze.sources import open_sources

    target = options.pop("target", None)
    targets = options.pop("targets", None) or ([] if target is None else [target])
    untrained = options.pop("baseline", None) is not None
    which = options.pop("which") or ()
    data, chosen, runtime = options.pop("data"), options.pop("split"), options.pop("runtime")
    if not targets:  # an optional source
        if data is not None or chosen is not None or which:
            raise InputError("--data, --split and --which belong to a run or a model; name it first")
        return []
    return open_sources(
        targets,
        data,
        chosen,
        default_split=split,
        untrained=untrained,
        which=[which] if isinstance(which, str) else which,
        every_checkpoint=options.pop("every_checkpoint", False),
        runtime=runtime,
    )


def finish(ctx: click.Context, sources: Sequence[EmbeddingSource], files: Sequence[Path]) -> None:
    """Print the files written; exit with code 3 if images could not be read, listing them."""
    print_status(f"written: {', '.join(map(str, files))}")
    bad = {path: reason for source in sources for path, reason in source.bad.items()}
    for path, reason in sorted(bad.items()):
        print_status(f"left out: {path}: {reason}")
    if bad:
        ctx.exit(3)
