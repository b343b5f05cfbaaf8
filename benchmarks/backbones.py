"""The curated backbones: parameters, size and dimension of the native embedding, and time of an image.

Each is exported to ONNX with random weights, at its published size, and run by ONNX Runtime on one thread:
the least CPU time of several runs of one image. No weights are downloaded: the retrieval is measured of
EfficientNet-Lite0, whose weights a package has, on the labelled images of --search. Every image searches
those of its class among all others; intervals resample classes.

    python -m benchmarks.backbones                             # the first of the list
    python -m benchmarks.backbones --count 100 --write         # all; writes train/curated_backbones.json
    python -m benchmarks.backbones --count 0 --search Cars196=folder:cars --write
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported

import argparse
import json
import time
from itertools import islice
from typing import Any

import numpy as np
import onnxruntime as ort
import timm
import torch

from benchmarks.gallery_scale import machine
from export.graph import to_onnx
from retrieval import metrics
from retrieval.images.decode import decode_ahead
from retrieval.images.picture import Decoded
from retrieval.metrics import per_query
from retrieval.metrics.statistics import bootstrap_intervals
from train import data
from train.config import ModelConfig
from train.curated_backbones import FILE, RETRIEVAL
from train.models.embedding_model import headless_model
from train.pretrained_configs import published_preprocess
from train.weights_origin import weights_origin

_SECONDS = 2.0
_BACKBONE = "timm:tf_efficientnet_lite0"


def measured(name: str) -> dict[str, Any]:
    """Return the measured and the published numbers of a backbone."""
    preprocess = published_preprocess(name, "imagenet")
    assert preprocess is not None
    model = headless_model(ModelConfig(backbone=name, pooling="native"), preprocess)
    pixels = np.random.default_rng(0).integers(0, 256, (1, preprocess.size, preprocess.size, 3), np.uint8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    proto = to_onnx(model, pixels).SerializeToString()
    session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    times, end = list[float](), time.thread_time() + _SECONDS
    while len(times) < 3 or time.thread_time() < end:
        began = time.thread_time()
        session.run(["embedding"], {"images": pixels})
        times.append(time.thread_time() - began)
    return {
        "parameters": sum(parameter.numel() for parameter in model.backbone.parameters()),
        "size": preprocess.size,
        "dim": model.config.embedding_dim,
        "milliseconds": round(1000 * min(times), 1),
        "license": weights_origin(name, "imagenet").license,
    }


def searched(name: str, spec: str) -> list[dict[str, Any]]:
    """Return Recall@1 and MAP@R of the packaged weights, in the form of `Quality`.

    Args:
        name: Name of the data set.
        spec: Labelled images without a test split, as --data takes them.
    """
    images = data.load(spec).train
    preprocess = published_preprocess(_BACKBONE, "lite0")
    assert preprocess is not None
    model = headless_model(ModelConfig(backbone=_BACKBONE, weights="lite0", pooling="native"), preprocess)
    files = decode_ahead([image.path for image in images], preprocess, side=preprocess.scaled)
    vectors = list[np.ndarray]()
    with torch.inference_mode():
        while batch := list(islice(files, 32)):
            pixels = [file.pixels for file in batch if isinstance(file, Decoded)]
            vectors.append(model(torch.from_numpy(np.stack(pixels))).numpy())
    found = np.concatenate(vectors)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    _, labels, sizes = np.unique([image.label for image in images], return_inverse=True, return_counts=True)
    queries = np.flatnonzero(sizes[labels] > 1)
    ranking = metrics.rank(found[queries], labels[queries], found, labels, k=int(sizes.max()), own=queries)
    values = np.stack([per_query.recall(ranking, [1])[:, 0], per_query.map_at_r(ranking)], 1)
    ends = bootstrap_intervals(values, labels[queries])
    on = f"{name} ({len(images):,} images of {len(sizes)} classes)"
    return [
        {
            "metric": metric,
            "on": on,
            "percent": round(100 * float(mean), 1),
            "source": "measured here",
            "interval": [round(100 * float(end), 1) for end in interval],
        }
        for metric, mean, interval in zip(RETRIEVAL, values.mean(0), ends, strict=True)
    ]


def main() -> None:
    """Measure the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=1, help="backbones of the list, from its start")
    parser.add_argument("--search", action="append", default=[], help="NAME=DATA, as in Cars196=folder:cars")
    parser.add_argument("--write", action="store_true", help="write the numbers into the list")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    document = json.loads(FILE.read_text())
    for row in document["backbones"][: arguments.count]:
        row |= measured(row["name"])
        print(json.dumps(row), flush=True)
        if arguments.write:
            versions = {"timm": timm.__version__, "onnxruntime": ort.__version__}
            document["measured"] = {"machine": machine(), **versions}
            FILE.write_text(json.dumps(document, indent=1) + "\n")
    results = [one for text in arguments.search for one in searched(*text.split("=", 1))]
    print(json.dumps(results), flush=True)
    if results and arguments.write:
        (row,) = [row for row in document["backbones"] if row["name"].startswith(_BACKBONE)]
        row["quality"] = [one for one in row["quality"] if one["metric"] not in RETRIEVAL] + results
        FILE.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
