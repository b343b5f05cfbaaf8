"""Training throughput, compared with the network alone and the data loader alone.

The network alone takes steps on pixels that are already on the device; the loader alone decodes JPEG files
and builds batches that are discarded; the whole is `lookalike train`. All run interleaved for several rounds,
and the medians are compared. The goal for the whole is 0.95 of the slower of the other two. The loss is timed
separately, forward and backward, as a share of a step; the goal, on a GPU with ResNet-50, is 2%.

The rate of one worker comes from its CPU time, without the augmentation where the device does that. The last
lines multiply it by a number of workers: a projection, which assumes a core for each of them and a device
that keeps up. Files are generated (500 x 375 pixels) or those of --data, and decoded in every epoch unless
--cache is given. On a CPU the loader and the network share the cores, so the whole cannot reach the goal.

    python -m benchmarks.training
    python -m benchmarks.training --data folder:shop --workers 7
    python -m benchmarks.training --backbone resnet50 --size 224 --precision bf16     # on a GPU
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._photographs import write_photographs
from retrieval import Preprocess
from retrieval.machine.resources import cores
from train import data
from train.config import AugmentConfig, BatchConfig, Config, LoaderConfig, ModelConfig, SplitConfig
from train.input import cache as cache_module
from train.input.loader import default_workers, requests
from train.loop.run_folder import Run
from train.loop.trainer import Trainer

LOSS = {"name": "triplet", "negatives": "optimal", "margin": 0.2}
CASES = {"cpu": [("conv4", 64), ("resnet18", 64)], "cuda": [("resnet50", 224)]}
AUGMENTATIONS = {  # of the recipe `catalogue`, of papers, and the default
    "catalogue": AugmentConfig(crop="resized", color=0.1, rotate=0, scale=0, shift=0),
    "paper": AugmentConfig(crop="random", rotate=0, scale=0, shift=0),
    "default": AugmentConfig(),
}
PROJECTED = (1, 3, 7, 15, 31)  # workers


def configuration(args: argparse.Namespace, backbone: str, size: int, folder: Path) -> Config:
    return Config(
        data=args.data or f"folder:{folder / 'images'}",
        split=SplitConfig(validation=0),
        model=ModelConfig(backbone=backbone, embedding_dim=512),
        preprocess=Preprocess(size=size, resize=round(size * 8 / 7)),
        augment=AUGMENTATIONS[args.augment],
        loss=LOSS,
        batch=BatchConfig(classes=args.batch // 4, per_class=4, per_epoch=warm_up(args.workers) + args.steps),
        loader=LoaderConfig(workers=args.workers, cache=str(folder / "cache") if args.cache else None),
        epochs=1,
        precision=args.precision,
        device=args.device,
    )


def warm_up(workers: int) -> int:
    """Return the steps, in tens, after which the batches that were loaded before the first are used up."""
    return 10 * math.ceil((10 + 2 * workers) / 10)


def model_alone(trainer: Trainer, steps: int) -> float:
    """Return images per second of steps on pixels that are on the device."""
    size, device = trainer.config.preprocess.size, trainer.group.device
    labels = torch.arange(trainer.sampler.classes, device=device).repeat_interleave(4)
    pixels = torch.randint(0, 256, (len(labels), size, size, 3), dtype=torch.uint8, device=device)
    trainer.network.model.train()
    trainer.take_step(pixels, labels, 0)  # warm-up
    return len(labels) * steps / seconds(lambda: trainer.take_step(pixels, labels, 1), steps, device)


def loss_share(trainer: Trainer, steps: int, rate: float) -> float:
    """Return the time of the loss, forward and backward, as a share of a step."""
    device, classes = trainer.group.device, trainer.sampler.classes
    labels = torch.arange(classes, device=device).repeat_interleave(4)
    embeddings = torch.randn(len(labels), 512, device=device, requires_grad=True)
    forward_backward(trainer.network.loss, embeddings, labels)
    taken = seconds(lambda: forward_backward(trainer.network.loss, embeddings, labels), steps, device)
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


def loader_alone(trainer: Trainer, first: int) -> float:
    """Return images per second of discarded batches, without the `first` ones."""
    with closing(trainer.data.loader()) as loader:
        loading = loader.load(trainer.sampler.epoch, range(1))
        deque(islice(loading, first), maxlen=0)
        start = time.perf_counter()
        count = sum(len(loaded.labels) for loaded in loading)
        return count / (time.perf_counter() - start)


def worker_alone(trainer: Trainer, batches: int) -> tuple[float, float]:
    """Return images per CPU second of one worker, in this process: for a GPU, and with all augmentation."""
    rates = []
    with closing(trainer.data.loader()) as loader:
        for augments in (False, True):
            worker = dataclasses.replace(loader._data.dataset, augments=augments)
            asked = list(islice(requests(trainer.sampler.epoch, range(1), 0), 1 + batches))
            worker[asked[0]]
            start = time.process_time()
            count = sum(len(worker[request].labels) for request in asked[1:])
            rates.append(count / (time.process_time() - start))
    return rates[0], rates[1]


def whole(trainer: Trainer, first: int) -> float:
    """Return images per second from the run's metrics, without the `first` steps."""
    trainer.train()
    records = [record for record in trainer.run.metrics() if "images_per_second" in record]
    return statistics.median(record["images_per_second"] for record in records if record["step"] > first)


def measure(args: argparse.Namespace, backbone: str, size: int, folder: Path) -> dict[str, Any]:
    found: dict[str, list[float]] = {
        name: [] for name in ("model", "loader", "whole", "loss_share", "worker", "worker_augmenting")
    }
    config = configuration(args, backbone, size, folder)
    dataset = data.load(config.data)
    for number in range(args.rounds):
        run = Run.start(folder / f"{backbone}-{size}-{number}", config)
        trainer = Trainer(run, dataset)
        found["loader"].append(loader_alone(trainer, warm_up(args.workers)))
        found["model"].append(model_alone(trainer, args.steps // 2))
        for name, rate in zip(("worker", "worker_augmenting"), worker_alone(trainer, 3), strict=True):
            found[name].append(rate)
        found["whole"].append(whole(trainer, warm_up(args.workers)))
        found["loss_share"].append(loss_share(trainer, args.steps // 2, found["model"][-1]))
    ratio = statistics.median(
        together / min(model, loader)
        for model, loader, together in zip(found["model"], found["loader"], found["whole"], strict=True)
    )
    row = {what: statistics.median(values) for what, values in found.items()}
    projected = {workers: workers * row["worker"] for workers in PROJECTED}
    return {
        "backbone": backbone,
        "size": size,
        "workers": args.workers,
        **row,
        "ratio": ratio,
        "projected_loader": projected,
    }


def report(row: dict[str, Any]) -> None:
    rates = "".join(f"{row[what]:10.0f}" for what in ("model", "loader", "whole"))
    name = f"{row['backbone']} {row['size']}"
    print(f"{name:14}{row['workers']:8}{rates}{row['ratio']:14.2f}x{row['loss_share']:12.1%}", flush=True)
    print(
        f"  one worker: {row['worker']:.0f} images per CPU second, {row['worker_augmenting']:.0f} if it "
        "augments, too"
    )
    lines = [f"{workers}: {rate:.0f}" for workers, rate in row["projected_loader"].items()]
    print(f"  projected, not measured: images/s by workers on cores of their own, {', '.join(lines)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", help="default: suitable ones for the device")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--data", help="images to train on, as for lookalike train; default: generated ones")
    parser.add_argument("--augment", choices=AUGMENTATIONS, default="catalogue")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="worker processes of the loader; default: its own choice")
    parser.add_argument("--cache", action="store_true", help="cache decoded images")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--json", help="output file")
    args = parser.parse_args()
    cache_module.room_for_images = lambda folder: 0  # so few images would be kept decoded otherwise
    if args.workers is None:
        args.workers = default_workers(cores(), torch.device(args.device).type, decodes=True, local_size=1)
    cases = [(args.backbone, args.size)] if args.backbone else CASES[torch.device(args.device).type]
    columns = f"{'workers':>8}{'model':>10}{'loader':>10}{'whole':>10}{'of the slower':>15}{'loss share':>12}"
    print(f"{'images/s':14}{columns}")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        if not args.data:
            write_photographs(Path(name) / "images", args.batch, 4)
        for backbone, size in cases:
            rows.append(measure(args, backbone, size, Path(name)))
            report(rows[-1])
    if args.json:
        found = {"device": args.device, "cores": cores(), "augment": args.augment, "cache": args.cache}
        Path(args.json).write_text(json.dumps({**found, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
