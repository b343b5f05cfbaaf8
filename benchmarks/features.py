"""Training a head on cached features, compared with running the frozen backbone in every step.

Both runs take the same steps on the same images: batches of 128 of 160 pixels, MobileNetV2 with random
weights (the weights do not change the speed). Rates are those of whole runs with loading, without the first
ten steps; CPU seconds are those of one thread. The goal is 50 times the images per second of the plain run,
and a head that differs by less than 1e-5.

    python -m benchmarks.features
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks._photographs import write_photographs
from train import data, settings
from train.loop.run_folder import Run
from train.loop.trainer import Trainer

BATCH = 128
SETTINGS = (
    "model={backbone: 'timm:mobilenetv2_100', trainable: 0, embedding_dim: 128}",
    "preprocess.size=160",
    "augment={flip: false, rotate: 0, scale: 0, shift: 0}",
    "loss={name: triplet, margin: 0.2}",
    "split.validation=0",
    "epochs=1",
)


def train(folder: Path, name: str, use: str, steps: int) -> tuple[Trainer, float, float]:
    """Return the trainer after a run, its images per second, and its CPU seconds per step."""
    batch = f"batch={{classes: {BATCH // 4}, per_class: 4, per_epoch: {steps}}}"
    words = [*SETTINGS, batch, f"loader={{features: {use}, cache: '{folder / 'cache'}'}}"]
    run = Run.start(folder / name, settings.resolve(f"folder:{folder / 'images'}", None, words))
    trainer = Trainer(run, data.load(run.config.data))
    start = time.process_time()
    trainer.train()
    cpu = (time.process_time() - start) / steps
    records = [record for record in run.metrics() if "images_per_second" in record]
    return trainer, statistics.median(record["images_per_second"] for record in records[1:]), cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="steps of the plain run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="output file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_photographs(folder / "images", BATCH, 4)
        for number in range(args.rounds):
            plain, slow, slow_cpu = train(folder, f"plain-{number}", "never", args.steps)
            same, _, _ = train(folder, f"same-{number}", "auto", args.steps)
            _, fast, fast_cpu = train(folder, f"cached-{number}", "auto", 20 * args.steps)
            change = (plain.network.model.head.weight - same.network.model.head.weight).abs().max().item()
            rows.append(
                {
                    "plain": slow,
                    "cached": fast,
                    "ratio": fast / slow,
                    "cpu": slow_cpu / fast_cpu,
                    "head": change,
                }
            )
            print(
                f"plain {slow:.0f} images/s, cached {fast:.0f} images/s: {fast / slow:.0f}x, by CPU time "
                f"{slow_cpu / fast_cpu:.0f}x; heads differ by at most {change:.1e}",
                flush=True,
            )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
