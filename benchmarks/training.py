"""Training throughput, compared with the network alone and the data loader alone.

The network alone takes steps on pixels that are already on the device; the loader alone builds batches that
are discarded; the whole is `lookalike train`. All run interleaved for several rounds, and the medians are
compared. The goal for the whole is 0.95 of the slower of the other two. The loss is timed separately, forward
and backward, as a share of a step; the goal, on a GPU with ResNet-50, is 2%.

    python -m benchmarks.training
    python -m benchmarks.training --backbone resnet50 --size 224 --precision bf16     # on a GPU
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from retrieval import Preprocess
from train import data
from train.config import AugmentConfig, BatchConfig, Config, LoaderConfig, ModelConfig, SplitConfig
from train.input.loader import Loader
from train.loop.run_folder import Run
from train.loop.trainer import Trainer

LOSS = {"name": "triplet", "negatives": "optimal", "margin": 0.2}
CASES = {"cpu": [("conv4", 64), ("resnet18", 64)], "cuda": [("resnet50", 224)]}


def configuration(args: argparse.Namespace, backbone: str, size: int, folder: Path) -> Config:
    return Config(
        data=f"folder:{folder / 'images'}",
        split=SplitConfig(validation=0),
        model=ModelConfig(backbone=backbone, embedding_dim=512),
        preprocess=Preprocess(size=size, resize=round(size * 8 / 7)),
        augment=AugmentConfig(crop="random", rotate=0, scale=0, shift=0),
        loss=LOSS,
        batch=BatchConfig(classes=args.batch // 4, per_class=4, per_epoch=args.steps),
        loader=LoaderConfig(workers=args.workers, cache=str(folder / "cache") if args.cache else None),
        epochs=1,
        precision=args.precision,
        device=args.device,
    )


def draw(folder: Path, classes: int) -> None:
    """Write JPEG files of 500 x 375 pixels, four per class."""
    random = np.random.default_rng(0)
    for name in range(classes):
        (folder / f"{name:03d}").mkdir(parents=True)
        for number in range(4):
            coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8))
            coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{name:03d}" / f"{number}.jpg")


def model_alone(trainer: Trainer, steps: int) -> float:
    """Return images per second of steps on pixels that are on the device."""
    size, device = trainer.config.preprocess.size, trainer.group.device
    labels = torch.arange(trainer.sampler.classes, device=device).repeat_interleave(4)
    pixels = torch.randint(0, 256, (len(labels), size, size, 3), dtype=torch.uint8, device=device)
    trainer.model.train()
    trainer.take_step(pixels, labels, 0)  # warm-up
    return len(labels) * steps / seconds(lambda: trainer.take_step(pixels, labels, 1), steps, device)


def loss_share(trainer: Trainer, steps: int, rate: float) -> float:
    """Return the time of the loss, forward and backward, as a share of a step."""
    device, classes = trainer.group.device, trainer.sampler.classes
    labels = torch.arange(classes, device=device).repeat_interleave(4)
    embeddings = torch.randn(len(labels), 512, device=device, requires_grad=True)
    forward_backward(trainer.loss, embeddings, labels)
    taken = seconds(lambda: forward_backward(trainer.loss, embeddings, labels), steps, device)
    return taken / steps * rate / len(labels)


def forward_backward(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> None:
    loss(embeddings, labels).backward()


def seconds(work: Callable[[], object], times: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(times):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def loader_alone(config: Config, trainer: Trainer, dataset: data.DataSet, folder: Path) -> float:
    """Return images per second of discarded batches, without the first, which starts the workers."""
    paths, labels = [image.path for image in dataset.train], data.class_numbers(dataset.train)
    device = trainer.group.device
    with closing(Loader(paths, labels, config, device=device, folder=folder)) as loader:
        loading = loader.load(trainer.sampler.epoch, range(1))
        next(loading)
        start = time.perf_counter()
        count = sum(len(loaded.inputs) for loaded in loading)
        return count / (time.perf_counter() - start)


def whole(trainer: Trainer) -> float:
    """Return images per second from the run's metrics, without the first ten steps."""
    trainer.train()
    records = [record for record in trainer.run.metrics() if "images_per_second" in record]
    return statistics.median(record["images_per_second"] for record in records[1:])


def measure(args: argparse.Namespace, backbone: str, size: int) -> dict[str, float | str]:
    found: dict[str, list[float]] = {"model": [], "loader": [], "whole": [], "loss share": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw(folder / "images", args.batch)
        config = configuration(args, backbone, size, folder)
        dataset = data.load(config.data)
        for number in range(args.rounds):
            trainer = Trainer(Run.start(folder / f"run{number}", config), dataset)
            found["loader"].append(loader_alone(config, trainer, dataset, folder))
            found["model"].append(model_alone(trainer, args.steps // 2))
            found["whole"].append(whole(trainer))
            found["loss share"].append(loss_share(trainer, args.steps // 2, found["model"][-1]))
    row = {what: statistics.median(values) for what, values in found.items()}
    ratio = statistics.median(
        together / min(model, loader)
        for model, loader, together in zip(found["model"], found["loader"], found["whole"], strict=True)
    )
    return {"backbone": backbone, "size": size, **row, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", help="default: suitable ones for the device")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="worker processes of the loader; default: its own choice")
    parser.add_argument("--cache", action="store_true", help="cache decoded images")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--json", help="output file")
    args = parser.parse_args()
    cases = [(args.backbone, args.size)] if args.backbone else CASES[torch.device(args.device).type]
    print(f"{'images/s':14}{'model':>10}{'loader':>10}{'whole':>10}{'of the slower':>15}{'loss share':>12}")
    rows = []
    for backbone, size in cases:
        row = measure(args, backbone, size)
        rows.append(row)
        rates = "".join(f"{row[what]:10.0f}" for what in ("model", "loader", "whole"))
        ratios = f"{row['ratio']:14.2f}x{row['loss share']:12.1%}"
        print(f"{backbone + ' ' + str(size):14}{rates}{ratios}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps({"device": args.device, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
