"""The `lookalike train` command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retrieval.cli import json_option, print_next, print_result, print_status
from retrieval.commands.device_options import training_device_option
from retrieval.errors import InputError
from retrieval.machine.devices import Device
from retrieval.model.licenses import license_notice
from retrieval.text import align_columns, pluralize
from train import settings
from train.commands import DATA_HELP
from train.recipes import read_recipe

if TYPE_CHECKING:
    from train.config import Config
    from train.data import DataSet
    from train.experiments.start import Start
    from train.loop.processes import Processes
    from train.loop.trainer import Trainer


@click.command()
@click.option("--data", help=f"images:DIR (without labels), pairs:FILE (compared pairs), {DATA_HELP}")
@click.option("--recipe", help="Recipe: a name (`lookalike recipes list`), or a YAML file of settings.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting; --explain lists them. Repeatable.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run.")
@click.option("--resume", is_flag=True, help="Resume the run in --out from its last checkpoint.")
@click.option(
    "--explain",
    is_flag=False,
    flag_value="",
    metavar="[KEY]",
    help="Explain a setting or a section, such as split.by or split; without KEY, list all. With --data and "
    "without --recipe, also what these images would begin with, and why. Trains nothing.",
)
@training_device_option
@json_option
@click.pass_context
def train(
    ctx: click.Context,
    data: str | None,
    recipe: str | None,
    overrides: tuple[str, ...],
    out: Path | None,
    resume: bool,
    explain: str | None,
    device: Device | None,
    as_json: bool,
) -> None:
    """Fine-tune an embedder on labelled images, or on images without labels.

    Without --recipe, one is chosen by the pictures, the device and the pretrained weights at hand, and named
    first, with the reason and the time that it will take: for photographs `head` on a CPU and `catalogue` on
    a GPU; see docs/training.md.

    \b
      lookalike train --data folder:shop --out run
      lookalike train --data folder:shop --out run --set model.backbone=resnet50 \\
          --set model.weights=imagenet
      lookalike train --data folder:shop --out run --recipe catalogue
      lookalike train --data cars196:ROOT --out run --recipe loop/table2/loop-triplet-cars196
      lookalike train --out run --resume

    \b
    Without labels, augmented views of an image are a class; see docs/unlabelled.md:
      lookalike train --data images:photos --out run --recipe instances

    \b
    Pairs that people compared, in a CSV or Parquet file with the columns image_a, image_b, and label
    (same or different) or score; see docs/pairs.md:
      lookalike train --data pairs:compared.csv --out run

    \b
    A small network learns to embed images as a large one does (distillation), with or without labels:
      lookalike train --data images:photos --out small --recipe distill \\
          --set distill.teacher=large.onnx

    \b
    A closed set (the test classes are those of training), with wrong labels:
      lookalike train --data cifar10:ROOT --out run --set split.by=images --set noise.rate=0.3 \\
          --set linear_probe=noisy

    \b
    On the second GPU, or on the CPU; --resume may move a run to another device:
      lookalike train --data folder:shop --out run --device cuda:1
      lookalike train --out run --resume --device cpu

    \b
    On several GPUs of a machine, with the loss of the global batch, as on one GPU; on several
    machines, see docs/distributed.md:
      torchrun --nproc-per-node 4 --no-python lookalike train --data folder:shop --out run

    Ctrl-C writes a checkpoint, and --resume continues. On a CPU the results equal those of an uninterrupted
    run to the bit; on a GPU they do with --set deterministic=true, and otherwise differ by rounding.

    A run is a folder with config.yaml (all settings), metrics.jsonl, TensorBoard events and checkpoints.
    `lookalike export` turns it into a model file.

    \b
    Settings, their defaults and what they accept; docs/training_options.md says what some are worth:
      lookalike train --explain
      lookalike train --explain split.by
      lookalike train --explain optimizer

    \b
    For curves over training, keep the network at some steps and record Recall@K of watched images.
    Test images are watched to draw a figure, and are not to be selected on:
      lookalike train --data cars196:ROOT --out run --set "checkpoints={at: [0, 100], every: 500}" \\
          --set "watch={split: test, every: 500, limit: 2000}"
    """
    if explain is not None:
        if data and recipe is None:
            from train import data as data_sets

            images = data_sets.load(data, unlabelled=True)
            _print_start(_choose_start(images, settings.parse_changes(overrides), device))
        found = settings.describe_settings(explain)
        print_result([asdict(one) for one in found], as_json, _explained(found, with_meaning=bool(explain)))
        return
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    if resume and (data or recipe or overrides):
        raise InputError("--resume keeps the settings of the run; leave out --data, --recipe and --set")

    from train.loop.processes import launched_processes

    processes = launched_processes()
    with processes.failing_together():
        trainer, images, facts = _train(processes, data, recipe, overrides, out, resume, device)
        facts["bad"] = [{"path": b.source, "reason": b.reason, "detail": b.detail} for b in trainer.bad_files]
    if processes.is_main:
        from train.experiments import linear_probe

        accuracy = linear_probe.held_out_accuracy(
            trainer.run, images, trainer.group.device, show_progress=True
        )
        facts |= {"linear_probe": accuracy, "linear_probe_labels": trainer.config.linear_probe}
        print_result(facts, as_json, _summary(out, facts))
        print_next("export", str(out), "--out", "model.onnx")
    if trainer.bad_files:
        for bad in trainer.bad_files[:10]:
            print_status(f"  left out {bad}")
        ctx.exit(3)


def _explained(found: Sequence[settings.Setting], *, with_meaning: bool) -> list[str]:
    """Return settings as text: a paragraph for each one, or a line."""
    if with_meaning:
        return [line for one in found for line in one.to_text().splitlines()]
    return align_columns(
        [("setting", "default", "accepts"), *((s.name, s.default, s.accepts) for s in found)]
    )


def _train(
    processes: Processes,
    data: str | None,
    recipe: str | None,
    overrides: tuple[str, ...],
    out: Path,
    resume: bool,
    device: Device | None,
) -> tuple[Trainer, DataSet, dict[str, Any]]:
    """Train a run in all processes; return the trainer, the data set and the facts of the run."""
    from train import data as data_sets

    notes: list[str] = []
    changes = settings.parse_changes(overrides)
    spec = data or changes.get("data")
    start = None
    if not resume and recipe is None and spec is not None:
        images = data_sets.load(str(spec), unlabelled=True)
        start = _choose_start(images, changes, device)
        recipe, changes = start.recipe, start.changes
        if processes.is_main:
            _print_start(start)
    if not resume:
        config = settings.placed(settings.configure(data, recipe, changes, notes), device)
        if recipe and config.published is None and read_recipe(recipe).get("published"):
            altered = "; ".join(settings.altered_settings(recipe, config))
            notes.insert(0, f"the published values of {recipe} are left out: {altered}")
        if start is None:
            images = data_sets.load(config.data, unlabelled=True)

    from train.data.label_noise import noise_note
    from train.data.pairs import contradiction_note
    from train.experiments import linear_probe
    from train.experiments.recipe_fit import check_recipe_fits
    from train.loop.agreement import check_agreement
    from train.loop.interruption import Interrupted
    from train.loop.process_group import join_process_group
    from train.loop.refit import train_run
    from train.loop.run_copies import find_furthest, refuse_begun, update_copies
    from train.loop.run_folder import Run
    from train.weights_origin import weights_origin

    source = 0
    if resume:
        source, config = find_furthest(out, processes)
        config = settings.placed(config, device)
        images = data_sets.load(config.data, unlabelled=True)
    else:
        refuse_begun(out, processes)
    check_recipe_fits(recipe, config, images)
    linear_probe.check_before_training(config, images)
    restriction = license_notice(weights_origin(config.model.backbone, config.model.weights).license)
    notes += filter(
        None,
        [
            noise_note(images, config.noise),
            contradiction_note(images.pairs),
            restriction and f"model.weights: {restriction}",
        ],
    )
    check_agreement(processes, config, images)
    group = join_process_group(config.device)
    for note in notes if group.is_main else ():
        print_status(note)
    if start is not None and group.is_main:
        _print_forecast(config, images)
    if group.is_main and not resume:
        Run.start(out, config, start.note if start is not None else "")
    update_copies(out, group, source)
    if resume and device is not None:
        if processes.leads_machine:
            Run.open(out).move_to(str(device))
        group.barrier()
    try:
        trainer, facts = train_run(Run.open(out), images, resume=resume, show_progress=True)
    except Interrupted:
        update_copies(out, group)
        raise
    update_copies(out, group)
    group.close()
    return trainer, images, facts | ({} if start is None else {"start": start.note})


def _choose_start(images: DataSet, changes: settings.Changes, device: Device | None) -> Start:
    from train.experiments.start import choose_start
    from train.loop.process_group import find_device

    name = str(device or changes.get("device", "auto"))
    return choose_start(images, changes, on_gpu=find_device(name).type == "cuda")


def _print_start(start: Start) -> None:
    for line in start.lines:
        print_status(line)


def _print_forecast(config: Config, images: DataSet) -> None:
    from train.loop.forecast import MEASURED, about, forecast_seconds

    seconds = forecast_seconds(config, images)
    if seconds is not None:
        cached = ", less if the features are cached" if config.model.trainable == 0 else ""
        print_status(f"{about(seconds)}{cached}; as {MEASURED} images took here")


def _summary(out: Path, facts: dict[str, Any]) -> str:
    from train.loop.choice import TITLES

    length = f"{pluralize(facts['epochs'], 'epoch')}, {pluralize(facts['steps'], 'step')}"
    text = f"{out}: {length} in {facts['seconds']} s"
    if facts["validation_classes"]:
        held_out = f"{facts['validation_images']} held-out images of {facts['validation_classes']} classes"
        if facts["validation_pairs"]:
            held_out = f"{facts['validation_pairs']} pairs of {facts['validation_images']} held-out images"
        among = f" among {facts['distractors']:,} distractors" if facts["distractors"] else ""
        text += f"; {TITLES[facts['metric']]} on {held_out}{among} {_change(facts)}"
        features = facts["metric_of_features"]
        if features is not None and facts["metric_best"] < features:
            text += (
                f"; WORSE THAN THE FEATURES alone, which have {features:.3f} there: export the backbone as "
                "it is (`lookalike export --from`), or lower optimizer.lr"
            )
    elif "chosen" not in facts:
        text += "; no images were held out to measure it, so the last epoch is kept"
    if facts["linear_probe"] is not None:
        labels = facts["linear_probe_labels"]
        text += f"; linear probe from {labels} labels, on the same images: {facts['linear_probe']:.3f}"
    elif facts["linear_probe_labels"] is not None:
        text += "; `lookalike evaluate` measures the linear probe, on the test images"
    if facts["watched"]:
        watched = facts["watched"]
        before, last = watched["recall_at_1_before"], watched["recall_at_1_last"]
        text += f"; Recall@1 of {watched['images']}: {before:.3f} -> {last:.3f}"
    if "chosen" in facts:
        text += f"; trained on all images for {_chosen(facts['chosen'])}"
    if facts["stopped_early"]:
        text += "; stopped early, without further improvement"
    if facts["best_refused"]:
        text += f"\n{facts['best_refused']}"
    if facts["collapsed_at"] is not None:
        text += f"; COLLAPSED since step {facts['collapsed_at']}: all embeddings are nearly equal"
    return text


def _change(facts: dict[str, Any]) -> str:
    """Describe the metric before and after training, and the epoch that is kept."""
    before, best, epoch = facts["metric_before"], facts["metric_best"], facts["best_epoch"]
    gain, is_chosen = facts["metric_gain"], not facts["best_refused"]
    if epoch == 0 and is_chosen:
        return f"{before:.3f} -> {best:.3f} (epoch 0), so training found no more there, and the start is kept"
    if gain is None:
        low, high = facts["metric_interval"] or (None, None)
        interval = "" if low is None else f" [{low:.3f}, {high:.3f}]"
        by = ", the best on them" if is_chosen else ""
        return f"{before:.3f} -> {best:.3f}{interval} (epoch {epoch}{by})"
    text = f"{before:.3f} -> {gain['after']:.3f}, {100 * (gain['after'] - gain['before']):+.1f} points"
    if gain["low"] is not None:
        text += f" ({100 * gain['low']:+.1f} to {100 * gain['high']:+.1f}; 95%, for other classes)"
    if is_chosen:
        return f"{text}, by epochs that half of them chose for the others; epoch {epoch} is kept"
    return f"{text} (epoch {epoch})"


def _chosen(chosen: dict[str, Any]) -> str:
    """Describe the choice of the run that preceded one on all images."""
    epochs = f"{chosen['epoch']} epochs"
    if chosen["refused"]:
        return f"{epochs}, not chosen: {chosen['refused']}"
    return f"{epochs}, chosen by held-out images with Recall@1 {chosen['recall_at_1']:.3f}"
