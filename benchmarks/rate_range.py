"""Learning rate range test against `optimizer.lr=auto`: retrieval of held-out classes after short training.

Each data set is a folder of classes, of which a quarter is held out. An embedding layer on the features of
EfficientNet-Lite0 of ImageNet is trained for 500 steps with the rates of `auto`, with the suggested ones, and
with a third and three times of these. The suggestion sees training classes only. Its rule was changed once
after a look at seeds 0 to 2, which are left out for that reason. `docs/training_options.md` has the finding.

    python -m benchmarks.rate_range cars=folder:cars cifar=folder:cifar --json rate_range.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from train import data, settings
from train.config import Config
from train.loop.run_folder import Run
from train.loop.trainer import Trainer
from train.papers.rate_range import measure_rates

SETTINGS = [
    "model.backbone=timm:tf_efficientnet_lite0",
    "model.weights=lite0",
    "model.embedding_dim=64",
    "preprocess.size=96",
    "loss={name: multi-similarity}",
    "optimizer.lr=auto",
    "optimizer.head_lr=auto",
    "device=cpu",
    "epochs=1",
    "model.trainable=0",
    "augment={flip: false, rotate: 0, scale: 0, shift: 0}",
    "batch={classes: 16, per_class: 4, per_epoch: 500}",
    "split={validation: 0.25, choice: always, distractors: 0}",
]
STEPS = 100  # of the range test
FACTORS = {"suggested": 1.0, "suggested / 3": 1 / 3, "suggested * 3": 3.0}
OF_RATES = ("lr", "head_lr", "loss_lr")


def measure(spec: str, seed: int) -> dict[str, Any]:
    """Return the suggestion for a data set, and the metrics of held-out classes by learning rate."""
    config = settings.resolve(spec, None, [*SETTINGS, f"seed={seed}"])
    dataset = data.load(spec)
    scores = {"auto": trained(config, dataset, 1.0)}  # caches the features
    began = time.process_time()
    found = measure_rates(config, dataset, steps=STEPS)
    seconds = time.process_time() - began
    if found.suggested is not None:
        for name, factor in FACTORS.items():
            scores[name] = trained(config, dataset, factor * found.suggested / config.optimizer.lr)
    return {
        "seed": seed,
        "auto": config.optimizer.lr,
        "suggested": found.suggested,
        "cpu_seconds": round(seconds, 1),
        "held_out": scores,
        "losses": [round(value, 4) for value in found.losses],
    }


def trained(config: Config, dataset: data.DataSet, factor: float) -> dict[str, float]:
    """Train with all learning rates times a factor; return the metrics of the held-out classes in percent."""
    given = {name: getattr(config.optimizer, name) for name in OF_RATES}
    rates = {name: rate * factor for name, rate in given.items() if rate is not None}
    changed = config.model_copy(update={"optimizer": config.optimizer.model_copy(update=rates)})
    with tempfile.TemporaryDirectory() as folder:
        run = Run.start(Path(folder) / "run", changed)
        Trainer(run, dataset).train()
        scores = [record for record in run.metrics() if "map_at_r" in record]
    return {
        f"{key}{when}": round(100 * scores[at][key], 2)
        for when, at in (("_before", 0), ("", -1))
        for key in ("recall_at_1", "map_at_r")
    }


def main() -> None:
    """Measure each data set and seed, and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="NAME=DATA", help="data sets, as --data of training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5, 6])
    parser.add_argument("--json", type=Path, help="file for the results")
    given = parser.parse_args()
    if not given.sets:
        print("skipped: give data sets, such as cars=folder:cars")
        return
    results: dict[str, Any] = {"settings": SETTINGS, "test_steps": STEPS, "sets": {}}
    for name, _, spec in (text.partition("=") for text in given.sets):
        for seed in given.seeds:
            facts = measure(spec, seed)
            print(name, json.dumps({key: facts[key] for key in facts if key != "losses"}), flush=True)
            results["sets"].setdefault(name, []).append(facts)
            if given.json is not None:
                given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
