"""`lookalike hub`: publish a model file with its model card, and get one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from retrieval.cli import json_option, print_result
from retrieval.errors import InputError
from retrieval.files import atomic_write, check_folder
from retrieval.model import hub as repositories
from retrieval.model.embedder import Embedder
from retrieval.reports.model_card import CARD, write_pretrained

report_option = click.option(
    "--report",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Evaluation of the model, a folder written by `lookalike evaluate`, for the model card.",
)


@click.group()
def hub() -> None:
    """Publish models on the Hugging Face Hub and get them from there.

    A repository holds the model file, a generated model card (README.md), config.json with the fingerprint,
    and the evaluation report. HF_TOKEN is the token of your account; HF_ENDPOINT names another server.

    \b
      lookalike hub card model.onnx --report report --out card
      lookalike hub push model.onnx me/shop --report report
      lookalike hub pull me/shop --out model.onnx
    """


@hub.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder for the files of a repository."
)
@click.option("--name", metavar="USER/NAME", help="Name in the model card.  [default: name of the folder]")
@report_option
@json_option
def card(model: Path, out: Path, name: str | None, report: Path | None, as_json: bool) -> None:
    """Write the files of a repository into a folder, to read the model card of MODEL before publishing.

    \b
      lookalike hub card model.onnx --report report --out card
    """
    if out.is_file():
        raise InputError(f"{out}: a file, not a folder; choose another name")
    write_pretrained(Embedder(model), out, name or out.name, report)
    files = sorted(file.name for file in out.iterdir())
    print_result({"folder": str(out), "files": files}, as_json, f"{out / CARD}: written")


@hub.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("repository", metavar="USER/NAME")
@report_option
@click.option("--private", is_flag=True, help="Create a private repository.")
@click.option("--revision", metavar="BRANCH", help="Branch to commit to.  [default: main]")
@json_option
def push(
    model: Path, repository: str, report: Path | None, private: bool, revision: str | None, as_json: bool
) -> None:
    """Publish MODEL with its model card as the repository USER/NAME, in one commit.

    The model file names the data set and settings of its training, folders included; `lookalike model info`
    shows them. The model card leaves folders out.

    \b
      lookalike hub push model.onnx me/shop --report report --private
    """
    _check_name(repository)
    embedder = Embedder(model)
    with tempfile.TemporaryDirectory() as folder:
        write_pretrained(embedder, Path(folder), repository, report)
        message = f"Model {embedder.fingerprint[:12]}"
        url = repositories.upload(Path(folder), repository, message, private=private, revision=revision)
    facts = {"repository": repository, "url": url, "fingerprint": embedder.fingerprint}
    print_result(facts, as_json, f"{url}: published")


@hub.command()
@click.argument("repository", metavar="USER/NAME")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Model file to write.")
@click.option("--revision", metavar="NAME", help="Branch, tag or commit.  [default: the newest state]")
@json_option
def pull(repository: str, out: Path, revision: str | None, as_json: bool) -> None:
    """Get the model of the repository USER/NAME, which `lookalike hub push` filled.

    The file is checked against the fingerprint in the repository. Programs can use
    `Embedder.from_pretrained("USER/NAME")` instead.

    \b
      lookalike hub pull me/shop --out model.onnx
    """
    _check_name(repository)
    if out.is_dir():
        raise InputError(f"{out}: a folder, not a file; name the model file, such as {out / 'model.onnx'}")
    check_folder(out.parent)
    file = repositories.download_model(repository, revision)
    embedder = Embedder(file)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as draft:
        shutil.copyfile(file, draft)
    facts = {"repository": repository, "model": str(out), "fingerprint": embedder.fingerprint}
    print_result(facts, as_json, f"{out}: model {embedder.fingerprint[:12]}, {embedder.dim} dimensions")


def _check_name(repository: str) -> None:
    if not repositories.is_repository(repository):
        raise InputError(f"{repository!r}: not the name of a repository; write USER/NAME")
