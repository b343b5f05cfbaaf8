"""`lookalike datasets`, `train` and `evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retrieval.cli import emit, json_option, say
from retrieval.errors import InputError
from train import data as datasets_by_name

if TYPE_CHECKING:
    from train.losses.registry import Entry

DATA_HELP = "folder:DIR, csv:FILE, NAME:ROOT or a bundled name; see `lookalike datasets list`."


@click.group()
def datasets() -> None:
    """List the data sets known by name, and fetch them."""


@datasets.command("list")
@json_option
def list_datasets(as_json: bool) -> None:
    """List what --data accepts."""
    known = datasets_by_name.KNOWN.items()
    facts = [{"name": n, "title": k.title, "protocol": k.protocol, "bundled": k.bundled} for n, k in known]
    lines = [f"{n:<12}{k.title}; {k.protocol}{'; bundled' if k.bundled else ''}" for n, k in known]
    lines += [
        f"{'folder:DIR':<12}your images, one folder a class at any depth; train/ and test/ are splits",
        f"{'csv:FILE':<12}your images, columns path,label and optionally split (train or test)",
    ]
    emit(facts, as_json, "\n".join(lines))


@datasets.command()
@click.argument("name")
@click.option("--root", required=True, type=click.Path(path_type=Path), help="Where to put it.")
def fetch(name: str, root: Path) -> None:
    """Put the data set NAME under a folder, ready for --data NAME:ROOT."""
    if name not in datasets_by_name.KNOWN:
        raise InputError(f"{name}: no such data set; known: {', '.join(datasets_by_name.KNOWN)}")
    datasets_by_name.KNOWN[name].fetch(root)
    say(f"{root}: ready for --data {name}:{root}")


@click.command()
@click.argument("names", nargs=-1)
@json_option
def losses(names: tuple[str, ...], as_json: bool) -> None:
    """List losses, negatives, miners and regularizers, or explain those named.

    \b
    They combine freely in the `loss` setting of a recipe or of --set:
      lookalike train ... --set "loss={name: n-pair, negatives: symmetric}"
      lookalike train ... --set "loss={name: triplet, negatives: optimal, margin: 0.2,
                                       regularizers: [{name: wasserstein, weight: 0.5}]}"
      lookalike train ... --set "loss={name: triplet-nca, mining: {positive: easy, negative: semi-hard}}"

    A loss of pytorch-metric-learning is called "pml:" and its class, as in pml:CircleLoss.
    """
    from train.losses import building  # torch takes seconds to import

    try:
        text = building.describe(*names)
    except ValueError as error:
        raise InputError(str(error)) from error
    every = [entry for kind in building.TITLES for entry in building.names(kind).values()]
    emit([_entry_facts(entry) for entry in every if not names or entry.name in names], as_json, text)


def _entry_facts(entry: Entry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "name": entry.name,
        "summary": entry.summary,
        "source": entry.source,
        "parameters": {name: str(parameter) for name, parameter in entry.parameters.items()},
        **({"negatives": entry.negatives, "mining": entry.mining} if entry.kind == "loss" else {}),
    }


@click.command()
@click.option("--data", help=DATA_HELP)
@click.option("--recipe", help="A recipe by name, or a YAML file of settings.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting; repeatable."
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The run's folder.")
@click.option("--resume", is_flag=True, help="Continue the run in --out from its last checkpoint.")
@json_option
@click.pass_context
def train(
    ctx: click.Context,
    data: str | None,
    recipe: str | None,
    overrides: tuple[str, ...],
    out: Path,
    resume: bool,
    as_json: bool,
) -> None:
    """Fine-tune an embedder on labelled images.

    \b
      lookalike train --data folder:shop --out run
      lookalike train --data folder:shop --out run --set model.backbone=resnet18 \\
          --set model.weights=imagenet --set preprocess.size=224 --set optimizer.lr=1e-4
      lookalike train --out run --resume

    \b
    The settings and their defaults:
      model.backbone conv4 (or resnet18, resnet34, resnet50)   model.embedding_dim 64
      model.weights null (or imagenet, or a .safetensors file)
      model.pooling mean (or spatial: for upright pictures of one thing, like characters)
      preprocess.size 64     preprocess.resize null     preprocess.interpolation bicubic
      augment.rotate 10 (degrees)   augment.scale 0.1   augment.shear 0   augment.shift 0.1
      augment.flip true      augment.symmetries 1 (4: quarter turns are classes of their own; 8: mirrored too)
      loss {name: triplet, negatives: optimal, margin: 0.2} (see `lookalike losses`)
      batch.classes 16       batch.per_class 4
      optimizer.lr 1e-3      optimizer.weight_decay 1e-4
      epochs 20              seed 0                     device auto
      validation 0.1 (share of the training classes held out to choose the best epoch)
    """
    from train import config, loop  # torch takes seconds to import
    from train.run import Run

    if resume:
        if data or recipe or overrides:
            raise InputError("--resume goes on as the run began: leave out --data, --recipe and --set")
        run = Run.open(out)
    else:
        run = Run.start(out, config.resolve(data, recipe, overrides))
    trainer = loop.Trainer(run, datasets_by_name.load(run.config.data), show_progress=True)
    facts = trainer.train(resume=resume)
    facts["bad"] = [{"path": b.source, "reason": b.reason, "detail": b.detail} for b in trainer.bad_files]
    text = f"{out}: {facts['epochs']} epochs, {facts['steps']} steps in {facts['seconds']} s"
    if facts["validation_classes"]:
        before, best = facts["recall_at_1_before"], facts["recall_at_1_best"]
        text += f"; Recall@1 on {facts['validation_classes']} held-out classes {before:.3f} -> {best:.3f}"
    emit(facts, as_json, text)
    if trainer.bad_files:
        for bad in trainer.bad_files[:10]:
            say(f"  left out {bad}")
        ctx.exit(3)


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar="RUN|MODEL|GALLERY")
@click.option("--data", required=True, help=DATA_HELP + " Its test split is used, or all of it.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for report.json and report.html.")
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    type=click.Choice(["pixels", "untrained"]),
    help="Measure this too: raw pixels, or the network as it was before training. Repeatable.",
)
@json_option
@click.pass_context
def evaluate(
    ctx: click.Context,
    target: Path,
    data: str,
    out: Path | None,
    baselines: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure a run, a model or a gallery on labelled images: Recall@K, NMI and F1.

    A run or a model searches the images of the data set among themselves, each without itself. A gallery
    is searched with them; an image that is in the gallery does not find itself. A gallery also keeps the
    report, and shows it in the browser.

    \b
      lookalike evaluate run --data folder:shop --out report
      lookalike evaluate shop.gallery --data folder:queries --out report
    """
    from retrieval.report import table
    from train import evaluation

    report = evaluation.evaluate_target(target, datasets_by_name.load(data), baselines, show_progress=True)
    if out is not None:
        report.save(out)
    emit(report.to_dict(), as_json, table(report))
    if out is not None:
        say(f"report: {out / 'report.html'}")
    if report.bad_files:
        say(f"{len(report.bad_files)} files could not be read and were left out; the report lists them")
        ctx.exit(3)
