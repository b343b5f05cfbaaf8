"""Write a trained network as one ONNX file, and prove that it is the same model."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from export.cost import Cost, compare
from export.graph import halved, to_onnx
from export.int8 import quantised
from export.samples import Pictures
from retrieval.embedder import FORMAT_VERSION, Embedder
from retrieval.errors import LookalikeError
from retrieval.files import atomic_write, now
from retrieval.images.preprocess import Preprocess
from train.loop.run_folder import Run
from train.models.embedding_model import EmbeddingModel

MAX_DIFFERENCE = 1e-4
MIN_COSINE = 0.99999
_PROOF_BATCHES = (1, 3, 32)
_VERSIONS = ("lookalike", "torch", "torchvision", "timm", "onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Proof:
    """How far the file's embeddings are from the network's, and on which pictures that was measured.

    Attributes:
        pictures: in words.
        batch_sizes: how many at once; the numbers are over all of them.
    """

    pictures: str
    largest_difference: float
    lowest_cosine: float
    batch_sizes: tuple[int, ...] = _PROOF_BATCHES


@dataclass(frozen=True)
class Exported:
    """A file that was kept.

    Attributes:
        cost: beside single precision; `None`: it is in single precision.
        calibration: the pictures that ranges were measured on, in words; `None`: nothing was quantised.
    """

    precision: str
    proof: Proof
    cost: Cost | None = None
    calibration: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON and the file's own provenance."""
        facts: dict[str, Any] = {"precision": self.precision, "proof": asdict(self.proof)}
        if self.calibration is not None:
            facts["calibration"] = self.calibration
        return facts | ({} if self.cost is None else {"cost": self.cost.to_dict()})


def export_run(
    run: Run,
    out: Path,
    which: str = "best",
    *,
    precision: str = "fp32",
    on: str | None = None,
    accept_loss: bool = False,
    show_progress: bool = False,
) -> Exported:
    """Write a run's checkpoint as an ONNX file, as `export_model` does.

    Args:
        on: the data set to try it on, or "noise"; `None`: that of the run (in single precision, noise where
            it is gone).
    """
    model, config = run.trained(which).cpu(), run.config
    gone_is_fine = on is None and precision == "fp32"
    pictures = (Pictures.or_noise if gone_is_fine else Pictures.of)(config.data if on is None else on)
    return export_model(
        model,
        config.preprocess,
        out,
        _provenance(run, which),
        pictures,
        precision=precision,
        accept_loss=accept_loss,
        show_progress=show_progress,
    )


def export_model(
    model: EmbeddingModel,
    preprocess: Preprocess,
    out: Path,
    provenance: Mapping[str, Any],
    pictures: Pictures,
    *,
    precision: str = "fp32",
    accept_loss: bool = False,
    show_progress: bool = False,
) -> Exported:
    """Write a network as an ONNX file, which stays only if it proves to be the same network.

    The file takes uint8 [N, H, W, 3] and gives `embedding` float32 [N, D] of unit length and, where the
    embedding is the mean of a map, `embedding_map` float32 [N, h, w, D]; how to preprocess, where it comes
    from and how far it is from the network is in its metadata.

    Args:
        model: on the CPU, in evaluation mode.
        pictures: to try it on, and to calibrate int8 on.
        precision: fp32, fp16 (the backbone in half precision, for GPUs) or int8 (static quantisation).
        accept_loss: keep a smaller precision whatever it costs.

    Raises:
        InputError: pictures that cannot be used.
        LookalikeError: the network cannot be exported; in single precision, its embeddings in the file differ
            from the network's by more than 1e-4, or their cosine is below 0.99999, at batch sizes 1, 3 and
            32; in a smaller one, it costs too much (`Cost.too_much`).
    """
    sample, words = pictures.some(max(_PROOF_BATCHES), preprocess)
    wanted = _embedded(model, sample)
    facts = {
        "lookalike.format": {"version": FORMAT_VERSION},
        "lookalike.preprocess": preprocess.to_dict(),
        "lookalike.embedding": {"dim": wanted.shape[1], "metric": "cosine", "unit_length": True},
        "lookalike.provenance": provenance,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as draft, TemporaryDirectory() as folder:
        single = draft if precision == "fp32" else Path(folder, "fp32.onnx")
        _save(to_onnx(model, sample), facts, single)
        proof = _prove(single, words, sample, wanted)
        if not (proof.largest_difference <= MAX_DIFFERENCE and proof.lowest_cosine >= MIN_COSINE):
            what = f"by {proof.largest_difference:.2e}, lowest cosine {proof.lowest_cosine:.6f}"
            raise LookalikeError(f"{out}: not kept, its embeddings differ from the network's {what}")
        exported = Exported(precision, proof)
        if precision != "fp32":
            calibration = None
            if precision == "fp16":
                reduced = to_onnx(halved(model), sample)
            else:
                pixels, calibration = pictures.for_calibration(preprocess)
                reduced = quantised(single, pixels)
            _save(reduced, facts, draft)
            cost = compare(single, draft, precision, pictures, show=show_progress)
            if cost.too_much and not accept_loss:
                reasons = "; ".join(cost.too_much)
                raise LookalikeError(
                    f"{out}: not kept, {precision} costs too much: {reasons}; --accept-loss keeps it"
                )
            exported = Exported(precision, _prove(draft, words, sample, wanted), cost, calibration)
        _seal(draft, facts | {"lookalike.provenance": {**provenance, **exported.to_dict()}})
    return exported


def versions() -> dict[str, str]:
    """Of what a file's numbers may depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in _VERSIONS}}


def _save(proto: onnx.ModelProto, facts: Mapping[str, Any], file: Path) -> None:
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in facts.items()})
    onnx.save_model(proto, file)


def _seal(file: Path, facts: Mapping[str, Any]) -> None:
    """Put what was found out into the metadata of a file, whose graph stays the one that was tried."""
    proto = onnx.load(file)
    tried = _digest(proto)
    _save(proto, facts, file)
    if _digest(onnx.load(file)) != tried:
        raise LookalikeError(f"{file}: not kept, it reads back as another graph; is the disk sound?")


def _digest(proto: onnx.ModelProto) -> str:
    return hashlib.sha256(proto.graph.SerializeToString(deterministic=True)).hexdigest()


def _prove(file: Path, words: str, sample: np.ndarray, wanted: np.ndarray) -> Proof:
    embedder = Embedder(file)
    found = np.concatenate([embedder.embed_pixels(pixels) for pixels in _batches(sample)])
    return Proof(words, float(np.abs(found - wanted).max()), float((found * wanted).sum(1).min()))


@torch.inference_mode()
def _embedded(model: EmbeddingModel, sample: np.ndarray) -> np.ndarray:
    """What the network makes of all batches that the proof is of, float32 [sum of sizes, D]."""
    batches = (torch.from_numpy(pixels) for pixels in _batches(sample))
    return torch.cat([nn.functional.normalize(model(batch)) for batch in batches]).numpy()


def _batches(sample: np.ndarray) -> list[np.ndarray]:
    return [np.resize(sample, (size, *sample.shape[1:])) for size in _PROOF_BATCHES]


def _provenance(run: Run, which: str) -> dict[str, Any]:
    return {
        "config": run.config.to_dict(),
        "checkpoint": which,
        "metrics": next((r for r in reversed(run.metrics()) if "recall_at_1" in r), {}),
        "weights_sha256": run.checkpoint_digest(which),
        "created": now(),
        "versions": versions(),
    }
