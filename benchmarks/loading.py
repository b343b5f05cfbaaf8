"""Data loader throughput, compared with decoding alone and with a plain DataLoader.

All decode JPEG files, scale the shorter side to 256, crop 224 x 224 at random and mirror half of the images;
"decoding alone" stops after the first step. All contenders with the same number of workers run interleaved
for several rounds, and the medians are compared.

    python -m benchmarks.loading
    python -m benchmarks.loading --images DIR --workers 1 2 --json loading.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from benchmarks._photographs import write_photographs
from retrieval import Preprocess
from train.config import AugmentConfig, Config, LoaderConfig
from train.input import cache as cache_module
from train.input.loader import Loader

PREPROCESS = Preprocess(size=224, resize=256)
AUGMENT = AugmentConfig(crop="random", flip=True, rotate=0, scale=0, shift=0)
BATCH = 64
CPU = torch.device("cpu")
Epoch = Callable[[], Iterable[Any]]


class Plain(Dataset[torch.Tensor]):
    """Baseline data set: Pillow, then torchvision."""

    def __init__(self, paths: Sequence[Path], change: Callable[[Image.Image], torch.Tensor]) -> None:
        self.paths, self.change = paths, change

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> torch.Tensor:
        with Image.open(self.paths[number]) as image:
            return self.change(image.convert("RGB"))


def plain(paths: Sequence[Path], workers: int, change: Callable[[Image.Image], torch.Tensor]) -> Epoch:
    data = DataLoader(
        Plain(paths, change),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )
    return lambda: data


def peer(paths: Sequence[Path], workers: int) -> Epoch:
    """Return epochs of a DataLoader with Pillow and torchvision."""
    bicubic = v2.InterpolationMode.BICUBIC
    scaled = [v2.Resize(PREPROCESS.scaled, bicubic), v2.RandomCrop(PREPROCESS.size)]
    return plain(paths, workers, v2.Compose([*scaled, v2.RandomHorizontalFlip(), v2.PILToTensor()]))


def decoding_alone(paths: Sequence[Path], workers: int) -> Epoch:
    """Return epochs that only decode: the limit of every loader."""
    nothing = torch.empty(0)
    return plain(paths, workers, lambda image: nothing)


def ours(paths: Sequence[Path], workers: int, stack: ExitStack, *, kept: bool) -> Epoch:
    """Return epochs of our loader, with or without the cache of decoded images."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    cache = str(folder / "cache") if kept else None
    room = cache_module.room_for_images
    cache_module.room_for_images = lambda folder: 0  # so few images would be cached otherwise
    settings = LoaderConfig(workers=workers, cache=cache)
    config = Config(data="", preprocess=PREPROCESS, augment=AUGMENT, loader=settings)
    labels = np.zeros(len(paths), np.int64)
    loader = stack.enter_context(closing(Loader(paths, labels, config, device=CPU, folder=folder)))
    cache_module.room_for_images = room
    random = np.random.default_rng(0)

    def epoch() -> Iterable[Any]:
        order = random.permutation(len(paths))
        parts = np.split(order[: len(order) // BATCH * BATCH], len(order) // BATCH)
        return loader.load(lambda _: parts, range(1))

    return epoch


def rate(epoch: Epoch, images: int) -> float:
    """Return images per second."""
    start = time.perf_counter()
    for _ in epoch():
        pass
    return images / (time.perf_counter() - start)


def compare(paths: Sequence[Path], workers: int, rounds: int) -> list[dict[str, Any]]:
    """Return one row per contender; the first round starts the workers and is discarded."""
    images = len(paths) // BATCH * BATCH
    with ExitStack() as stack:
        contenders = {
            "decoding alone": decoding_alone(paths, workers),
            "Pillow + torchvision": peer(paths, workers),
            "ours": ours(paths, workers, stack, kept=False),
            "ours, cached": ours(paths, workers, stack, kept=True),
        }
        taken = [{name: rate(epoch, images) for name, epoch in contenders.items()} for _ in range(rounds + 1)]
    rates = {name: statistics.median(each[name] for each in taken[1:]) for name in contenders}
    rows = []
    for name, images_per_second in rates.items():
        row: dict[str, Any] = {"loader": name, "workers": workers, "images_per_second": images_per_second}
        row |= {"to_decoding": images_per_second / rates["decoding alone"]}
        row |= {"to_peer": images_per_second / rates["Pillow + torchvision"]}
        rows.append(row)
        ratios = f"{row['to_decoding']:12.2f}x {row['to_peer']:12.2f}x"
        print(f"{name:24}{workers:8}{images_per_second:12.0f}{ratios}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of JPEG files; default: generated images")
    parser.add_argument("--count", type=int, default=256, help="images per epoch")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="output file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if args.images:
            paths = sorted(args.images.rglob("*.jpg"))[: args.count]
        else:
            paths = write_photographs(Path(folder), args.count, 1)
        print(f"{'':24}{'workers':>8}{'images/s':>12}{'to decoding':>13}{'to Pillow':>14}")
        rows = [row for workers in args.workers for row in compare(paths, workers, args.rounds)]
    if args.json:
        Path(args.json).write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
