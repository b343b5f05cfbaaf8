"""`lookalike demo`: train, export, index, evaluate and serve the digits of scikit-learn with one command."""

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
@click.option("--no-serve", is_flag=True, help="Do not open the browser demo at the end.")
@click.option(
    "--out", type=click.Path(path_type=Path), default="demo", show_default=True, help="Output folder."
)
@click.option("--port", type=int, default=7860, show_default=True, help="Port of the browser demo.")
@json_option
def demo(no_serve: bool, out: Path, port: int, as_json: bool) -> None:
    """Train, export, index, evaluate and serve a small example.

    A small network learns the handwritten digits 0 to 4 with optimal hard negatives and is tested on the
    unseen digits 5 to 9. The demo takes about a minute and downloads nothing. It prints each command that it
    runs.

    \b
      lookalike demo
      lookalike demo --no-serve --out /tmp/demo
    """
    start = time.monotonic()
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
    print_status(f"Finished in {time.monotonic() - start:.0f} s.")
    if as_json:
        print_result(result.to_dict(), as_json, "")
    if not no_serve:
        _run("serve", gallery, "--port", str(port))


def _run(*arguments: str) -> None:
    print_status("")
    print_status(f"$ {shlex.join(['lookalike', *arguments])}")
    cli.main(list(arguments), prog_name="lookalike", standalone_mode=False)


def _verdict(report: Report) -> str:
    """Return one line that compares training with the baselines, whether or not it helped."""
    *baselines, ours = ((result.name, 100 * result.values["recall_at_1"]) for result in report.results)
    compared = ", ".join(f"{name} {value:.1f}" for name, value in baselines)
    better = all(ours[1] > value for _, value in baselines)
    outcome = "better than" if better else "NOT better than all of"
    return f"Recall@1 on digits never seen: {ours[1]:.1f} after training, {outcome} {compared}."


def _clear(out: Path) -> None:
    """Delete the output of an earlier demo; raise an error if the folder holds anything else."""
    unexpected = [entry.name for entry in out.iterdir() if entry.name not in _PARTS] if out.is_dir() else []
    if unexpected:
        raise InputError(f"{out}: contains other files ({unexpected[0]}); choose another folder with --out")
    if out.is_dir():
        shutil.rmtree(out)
