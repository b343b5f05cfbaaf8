"""`lookalike train`."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import emit, json_option, say
from retrieval.errors import InputError
from train import data as datasets_by_name
from train.commands import DATA_HELP


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

    """
    from train import loop, settings  # torch takes seconds to import
    from train.run import Run

    if resume:
        if data or recipe or overrides:
            raise InputError("--resume goes on as the run began: leave out --data, --recipe and --set")
        run = Run.open(out)
    else:
        run = Run.start(out, settings.resolve(data, recipe, overrides))
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
