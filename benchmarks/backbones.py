"""The curated backbones: parameters, size and dimension of the native embedding, and time of an image.

Each is exported to ONNX with random weights, at its published size, and run by ONNX Runtime on one thread:
the least CPU time of several runs of one image. Quality is not measured: no weights are downloaded.

    python -m benchmarks.backbones                             # the first of the list
    python -m benchmarks.backbones --count 100 --write         # all; writes train/curated_backbones.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported

import argparse
import json
import time
from typing import Any

import numpy as np
import onnxruntime as ort
import timm
import torch

from benchmarks.gallery_scale import machine
from export.graph import to_onnx
from train.config import ModelConfig
from train.curated_backbones import FILE
from train.models.embedding_model import headless_model
from train.pretrained_configs import published_preprocess
from train.weights_origin import weights_origin

_SECONDS = 2.0


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


def main() -> None:
    """Measure the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=1, help="backbones of the list, from its start")
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


if __name__ == "__main__":
    main()
