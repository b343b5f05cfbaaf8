"""Write a trained network as one ONNX file, and prove that it is the same model."""

from __future__ import annotations

import json
import logging
import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from retrieval.decoding import Decoded, decode_ahead
from retrieval.embedder import FORMAT_VERSION, Embedder
from retrieval.errors import InputError, LookalikeError
from retrieval.preprocess import Preprocess
from retrieval.store import now, replacing
from train import data
from train.model import EmbeddingModel
from train.run import Run

OPSET = 20
MAX_DIFFERENCE = 1e-4
MIN_COSINE = 0.99999
_PROOF_BATCHES = (1, 3, 32)
_VERSIONS = ("lookalike", "torch", "torchvision", "timm", "onnx", "onnxscript")


@dataclass(frozen=True)
class Proof:
    """How far the file's embeddings are from the checkpoint's, and on which pictures that was measured."""

    pictures: str
    largest_difference: float
    lowest_cosine: float


class _Graph(nn.Module):
    """What the file computes: pixels -> unit embedding, and the map whose normalised mean it is, if any."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model
        self.outputs = ("embedding", "embedding_map") if model.has_map else ("embedding",)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if not self.model.has_map:
            return (nn.functional.normalize(self.model(images)),)
        embedding_map = self.model.maps(images)  # [N, h, w, D]
        return nn.functional.normalize(embedding_map.mean((1, 2))), embedding_map


def export_run(run: Run, out: Path, which: str = "best") -> Proof:
    """Write a run's checkpoint as an ONNX file, as `export_model` does."""
    model = run.trained(which).cpu()
    sample, pictures = _sample(run)
    return export_model(model, run.config.preprocess, out, _provenance(run, which), sample, pictures)


def export_model(
    model: EmbeddingModel,
    preprocess: Preprocess,
    out: Path,
    provenance: Mapping[str, Any],
    sample: np.ndarray,
    pictures: str,
) -> Proof:
    """Write a network as an ONNX file, which stays only if it proves to be the same network.

    The file takes uint8 [N, H, W, 3] and gives `embedding` float32 [N, D] of unit length and, where the
    embedding is the mean of a map, `embedding_map` float32 [N, h, w, D]; how to preprocess and where it
    comes from is in its metadata.

    Args:
        model: on the CPU, in evaluation mode.
        sample: uint8 [n, H, W, 3], n at least 2: what both are tried on.
        pictures: what `sample` is, in words.

    Raises:
        LookalikeError: the network cannot be exported; or the file's embeddings differ from the network's
            by more than 1e-4, or their cosine is below 0.99999, at batch sizes 1, 3 and 32.
    """
    facts = {
        "lookalike.format": {"version": FORMAT_VERSION},
        "lookalike.preprocess": preprocess.to_dict(),
        "lookalike.embedding": {"dim": model.head.out_features, "metric": "cosine", "unit_length": True},
        "lookalike.provenance": provenance,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as draft:
        _write(_Graph(model).eval(), draft, facts, sample)
        proof = Proof(pictures, *_compare(model, draft, sample))
        if not (proof.largest_difference <= MAX_DIFFERENCE and proof.lowest_cosine >= MIN_COSINE):
            what = f"by {proof.largest_difference:.2e}, lowest cosine {proof.lowest_cosine:.6f}"
            raise LookalikeError(f"{out}: not kept, its embeddings differ from the checkpoint's {what}")
    return proof


def _write(graph: _Graph, file: Path, facts: Mapping[str, Any], sample: np.ndarray) -> None:
    example = torch.from_numpy(sample[:2])
    batch = torch.export.Dim("N", min=1)
    with _quiet():
        try:
            program = torch.onnx.export(
                graph,
                (example,),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=["images"],
                output_names=list(graph.outputs),
                dynamic_shapes={"images": {0: batch}},
            )
        except torch.onnx.OnnxExporterError as error:
            name = graph.model.config.backbone
            raise LookalikeError(f"model.backbone: {name} cannot be written as ONNX; take another") from error
    assert program is not None  # it is None only for the exporter of old
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in facts.items()})
    onnx.checker.check_model(proto, full_check=True)
    onnx.save_model(proto, file)


def _compare(model: EmbeddingModel, file: Path, sample: np.ndarray) -> tuple[float, float]:
    """Largest absolute difference and lowest cosine between the checkpoint's embeddings and the file's."""
    embedder = Embedder(file)
    ours, theirs = [], []
    for size in _PROOF_BATCHES:
        pixels = np.resize(sample, (size, *sample.shape[1:]))
        with torch.inference_mode():
            ours.append(nn.functional.normalize(model(torch.from_numpy(pixels))).numpy())
        theirs.append(embedder.embed_pixels(pixels))
    a, b = np.concatenate(ours), np.concatenate(theirs)
    return float(np.abs(a - b).max()), float((a * b).sum(1).min())


def _sample(run: Run) -> tuple[np.ndarray, str]:
    """Images of the run's data set, at most 32, uint8 [n, S, S, 3]; noise where there are none any more."""
    preprocess, wanted = run.config.preprocess, max(_PROOF_BATCHES)
    try:
        paths = [image.path for image in data.load(run.config.data).test]
    except InputError:
        paths = []
    chosen = [paths[i] for i in np.linspace(0, len(paths) - 1, 2 * wanted).astype(int)] if paths else []
    good = (file.pixels for file in decode_ahead(chosen, preprocess) if isinstance(file, Decoded))
    images = list(islice(good, wanted))
    if images:
        return np.stack(images), f"{len(images)} images of {run.config.data}"
    shape = (wanted, preprocess.size, preprocess.size, 3)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8), f"{wanted} pictures of noise"


def _provenance(run: Run, which: str) -> dict[str, Any]:
    return {
        "config": run.config.to_dict(),
        "checkpoint": which,
        "metrics": next((r for r in reversed(run.metrics()) if "recall_at_1" in r), {}),
        "weights_sha256": run.digest(which),
        "created": now(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in _VERSIONS},
        },
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter logs its inner life; errors still come through as exceptions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
