"""`lookalike demo`: the whole way on scikit-learn's digits, by the same commands that people use."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import time
from pathlib import Path

import click

from retrieval.cli import cli, json_option, print_result, print_status
from retrieval.errors import InputError
from retrieval.evaluation.report import Report

_PARTS = ("digits", "run", "model.onnx", "gallery", "report")


@click.command()
@click.option("--no-serve", is_flag=True, help="Stop before opening the browser demo.")
@click.option("--out", type=click.Path(path_type=Path), default="demo", show_default=True, help="A folder.")
@click.option("--port", type=int, default=7860, show_default=True, help="Where the browser demo listens.")
@json_option
def demo(no_serve: bool, out: Path, port: int, as_json: bool) -> None:
    """Train, export, index, evaluate and serve a small example.

    A small network learns handwritten digits 0 to 4 with optimal hard negatives, and is tested on 5 to 9,
    which it has never seen. Needs no download and about a minute. Each command is shown as it is run.
    """
    began = time.monotonic()
    _clear(out)
    digits, run, model, gallery, report = (str(out / part) for part in _PARTS)
    test = str(out / "digits" / "test")
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        _run("datasets", "fetch", "digits", "--root", digits)
        _run("train", "--recipe", "demo", "--data", f"digits:{digits}", "--out", run)
        _run("export", run, "--out", model)
        _run("index", "build", gallery, test, "--model", model)
        baselines = ("--baseline", "pixels", "--baseline", "untrained")
        _run("evaluate", gallery, "--data", f"digits:{digits}", *baselines, "--out", report)
    result = Report.load(out / "report")
    print_status(_verdict(result))
    print_status(f"All of it took {time.monotonic() - began:.0f} s.")
    if as_json:
        print_result(result.to_dict(), as_json, "")
    if not no_serve:
        _run("serve", gallery, "--port", str(port))


def _run(*words: str) -> None:
    print_status(f"\n$ {shlex.join(['lookalike', *words])}")
    cli.main(list(words), prog_name="lookalike", standalone_mode=False)


def _verdict(report: Report) -> str:
    """Say whether training helped, whichever way it went."""
    *baselines, ours = ((result.name, 100 * result.recall[1]) for result in report.results)
    compared = ", ".join(f"{name} {value:.1f}" for name, value in baselines)
    better = all(ours[1] > value for _, value in baselines)
    outcome = "better than" if better else "NOT better than all of"
    return f"Recall@1 on digits never seen: {ours[1]:.1f} after training, {outcome} {compared}."


def _clear(out: Path) -> None:
    """Make room for a new demo where an old one lies; never touch anything else."""
    strangers = [entry.name for entry in out.iterdir() if entry.name not in _PARTS] if out.is_dir() else []
    if strangers:
        raise InputError(f"{out}: holds other things ({strangers[0]}); choose another folder with --out")
    if out.is_dir():
        shutil.rmtree(out)
