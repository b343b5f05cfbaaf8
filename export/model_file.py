"""Export of a trained network to one ONNX file, with a proof that the file computes the same embeddings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import onnx
import torch
from torch import nn

from export.blend import Blend, blend_with_start
from export.cost import Cost, measure_cost
from export.graph import half_precision, to_onnx
from export.int8 import quantise
from export.samples import SampleImages
from retrieval.errors import InputError, LookalikeError
from retrieval.files import atomic_write, now
from retrieval.images.preprocess import Preprocess
from retrieval.machine.installation import versions
from retrieval.model.embedder import FORMAT_VERSION, Embedder
from retrieval.model.runtime import Runtime
from retrieval.model.training_images import TrainingImages
from retrieval.progress import Progress
from train.data import DataSet, LabelledImage
from train.data.splits import divide
from train.loop.run_folder import Run
from train.losses.matryoshka import prefix_weights
from train.models.embedding_model import EmbeddingModel
from train.weights_origin import weights_origin

MAX_DIFFERENCE = 1e-4
MIN_COSINE = 0.99999
_PROOF_BATCHES = (1, 3, 32)
# Libraries that the numbers in a file may depend on.
LIBRARIES = ("lookalike", "torch", "torchvision", "timm", "onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Proof:
    """Difference between the embeddings of the file and of the network.

    Attributes:
        images: Description of the images that were embedded.
        largest_difference: Largest absolute difference of a component.
        lowest_cosine: Lowest cosine between the two embeddings of an image.
        batch_sizes: Batch sizes compared; the numbers are over all of them. Empty if there was one.
    """

    images: str
    largest_difference: float
    lowest_cosine: float
    batch_sizes: tuple[int, ...] = _PROOF_BATCHES

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "pictures": self.images,
            "largest_difference": self.largest_difference,
            "lowest_cosine": self.lowest_cosine,
            **({"batch_sizes": self.batch_sizes} if self.batch_sizes else {}),
        }


@dataclass(frozen=True)
class Exported:
    """Result of an export.

    Attributes:
        precision: fp32, fp16 or int8.
        proof: Comparison of the file with the network.
        cost: Comparison with fp32; `None` for an fp32 file.
        calibration: Description of the calibration images; `None` if nothing was quantised.
        blend: Blend with the start of the run; `None` for the run alone.
    """

    precision: str
    proof: Proof
    cost: Cost | None = None
    calibration: str | None = None
    blend: Blend | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, which is also stored in the file's provenance."""
        facts: dict[str, Any] = {"precision": self.precision, "proof": self.proof.to_dict()}
        if self.calibration is not None:
            facts["calibration"] = self.calibration
        if self.blend is not None:
            facts["blend"] = self.blend.to_dict()
        return facts | ({} if self.cost is None else {"cost": self.cost.to_dict()})


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        precision: fp32, fp16 (backbone in half precision, for GPUs) or int8 (static quantisation, for CPUs).
        accept_loss: Keep a smaller precision regardless of its cost.
        show_progress: Show progress.
        runtime: Device and provider on which the file is checked.
    """

    precision: str = "fp32"
    accept_loss: bool = False
    show_progress: bool = False
    runtime: Runtime = Runtime()  # noqa: RUF009


DEFAULT_OPTIONS = ExportOptions()


def export_run(
    run: Run,
    out: Path,
    which: str = "best",
    *,
    data: str | None = None,
    options: ExportOptions = DEFAULT_OPTIONS,
    blend: float | Literal["auto"] | None = None,
) -> Exported:
    """Export a run's checkpoint to an ONNX file; see `export_model`.

    Args:
        run: Training run.
        out: Model file to write.
        which: Checkpoint: "best", "last", or the step of a kept one.
        data: Data set to check the file on, or "noise". `None` for the run's data set; for fp32, noise images
            replace a data set that no longer exists.
        options: Export options.
        blend: Share of the run in the weights of the backbone, the rest being those that it began with, or
            "auto"; see `export.blend.blend_with_start`. `None` for the run alone.
    """
    model, config = run.trained(which).cpu(), run.config
    may_use_noise = data is None and options.precision == "fp32"
    load = SampleImages.load_or_noise if may_use_noise else SampleImages.load
    samples = load(config.data if data is None else data)
    dims = tuple(prefix_weights(config.loss, config.model.embedding_dim))
    provenance = _provenance(run, which)
    blended = None
    if blend is not None:
        share = None if blend == "auto" else blend
        blended = blend_with_start(run, model, share, show_progress=options.show_progress)
        provenance["blend"] = blended.to_dict()
    own = samples if data is None else SampleImages.load_or_noise(config.data)
    held_out = [] if own.dataset is None else _held_out(run, which, own.dataset)
    exported = export_model(
        model,
        config.preprocess,
        out,
        provenance,
        samples,
        options,
        matryoshka=dims,
        training_images=own.training_images(held_out),
    )
    return replace(exported, blend=blended)


def export_model(
    model: EmbeddingModel,
    preprocess: Preprocess,
    out: Path,
    provenance: Mapping[str, Any],
    samples: SampleImages,
    options: ExportOptions = DEFAULT_OPTIONS,
    *,
    matryoshka: Sequence[int] = (),
    training_images: TrainingImages | None = None,
) -> Exported:
    """Export a network to an ONNX file, which is kept only if it computes the same embeddings.

    The file takes uint8 [N, H, W, 3] and returns `embedding`, unit vectors float32 [N, D], and, if the
    embedding is the mean of a map, `embedding_map`, float32 [N, h, w, D]. Its metadata holds the
    preprocessing, the provenance and the proof.

    Args:
        model: Network on the CPU, in evaluation mode.
        preprocess: Preprocessing of the model's images.
        out: Model file to write.
        provenance: Origin of the network, stored in the metadata.
        samples: Images to check the file on and to calibrate int8 with.
        options: Export options.
        matryoshka: Dimensions at which the embeddings may be cut off, ascending, with their own last; stored
            in the metadata as `matryoshka` of `lookalike.embedding`. Empty if they were not trained for it.
        training_images: Images that the network was trained on, stored in the metadata; `None` if unknown.

    Raises:
        InputError: The images cannot be used.
        LookalikeError: The network cannot be exported; or an embedding of the fp32 file differs from the
            network's by more than 1e-4 or has a cosine below 0.99999, at batch size 1, 3 or 32; or a
            smaller precision costs too much (`Cost.violations`).
    """
    precision = options.precision
    sample, description = samples.sample_pixels(max(_PROOF_BATCHES), preprocess)
    expected = _embed(model, sample)
    embedding: dict[str, Any] = {"dim": expected.shape[1], "metric": "cosine", "unit_length": True}
    if matryoshka:
        embedding["matryoshka"] = list(matryoshka)
    metadata = {
        "lookalike.format": {"version": FORMAT_VERSION},
        "lookalike.preprocess": preprocess.to_dict(),
        "lookalike.embedding": embedding,
        "lookalike.provenance": provenance,
    }
    if training_images is not None:
        metadata["lookalike.training_images"] = training_images.to_dict()
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as draft, TemporaryDirectory() as folder:
        fp32_file = draft if precision == "fp32" else Path(folder, "fp32.onnx")
        with Progress("exporting", 2, "steps", show=options.show_progress) as progress:
            _save(to_onnx(model, sample), metadata, fp32_file)
            progress.update()
            proof = _prove(fp32_file, description, sample, expected, options.runtime)
            progress.update()
        if not (proof.largest_difference <= MAX_DIFFERENCE and proof.lowest_cosine >= MIN_COSINE):
            difference = f"by {proof.largest_difference:.2e}, lowest cosine {proof.lowest_cosine:.6f}"
            raise LookalikeError(f"{out}: not kept, its embeddings differ from the network's {difference}")
        exported = Exported(precision, proof)
        if precision != "fp32":
            calibration = None
            if precision == "fp16":
                reduced = to_onnx(half_precision(model), sample)
            else:
                pixels, calibration = samples.calibration_pixels(preprocess)
                reduced = quantise(fp32_file, pixels)
            _save(reduced, metadata, draft)
            cost = measure_cost(
                fp32_file, draft, precision, samples, options.runtime, show=options.show_progress
            )
            if cost.violations and not options.accept_loss:
                reasons = "; ".join(cost.violations)
                raise LookalikeError(
                    f"{out}: not kept, {precision} costs too much: {reasons}; --accept-loss keeps it"
                )
            proof = _prove(draft, description, sample, expected, options.runtime)
            exported = Exported(precision, proof, cost, calibration)
        _write_metadata(draft, metadata | {"lookalike.provenance": {**provenance, **exported.to_dict()}})
    return exported


def _save(proto: onnx.ModelProto, metadata: Mapping[str, Any], file: Path) -> None:
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in metadata.items()})
    onnx.save_model(proto, file)


def _write_metadata(file: Path, metadata: Mapping[str, Any]) -> None:
    """Replace the metadata of a file and check that its graph is unchanged."""
    proto = onnx.load(file)
    before = _digest(proto)
    _save(proto, metadata, file)
    if _digest(onnx.load(file)) != before:
        raise LookalikeError(f"{file}: not kept, its graph changed while it was written; check the disk")


def _digest(proto: onnx.ModelProto) -> str:
    return hashlib.sha256(proto.graph.SerializeToString(deterministic=True)).hexdigest()


def _prove(file: Path, description: str, sample: np.ndarray, expected: np.ndarray, runtime: Runtime) -> Proof:
    embedder = Embedder.open(file, runtime)
    found = np.concatenate([embedder.embed_in_one_run(pixels) for pixels in _batches(sample)])
    return Proof(description, float(np.abs(found - expected).max()), float((found * expected).sum(1).min()))


@torch.inference_mode()
def _embed(model: EmbeddingModel, sample: np.ndarray) -> np.ndarray:
    """Embed all batches of the proof with the network, float32 [sum of batch sizes, D]."""
    batches = (torch.from_numpy(pixels) for pixels in _batches(sample))
    return torch.cat([nn.functional.normalize(model(batch)) for batch in batches]).numpy()


def _batches(sample: np.ndarray) -> list[np.ndarray]:
    return [np.resize(sample, (size, *sample.shape[1:])) for size in _PROOF_BATCHES]


def _held_out(run: Run, which: str, dataset: DataSet) -> Sequence[LabelledImage]:
    """Return the training images of a run whose labels a checkpoint has not learned.

    None if the data set is another one now, and with a teacher, who may have learned them.
    """
    config = run.config
    if config.distill.teacher is not None:
        return []
    try:
        division = divide(dataset, config)
    except InputError:
        return []
    if run.checkpoint_state("last").get("division_sha256") != division.digest():
        return []
    is_start = run.checkpoint_state(which)["step"] == 0 and config.model.init != "lda"
    return dataset.train if is_start else division.held_out


def _provenance(run: Run, which: str) -> dict[str, Any]:
    step = run.checkpoint_state(which).get("step")
    recalls = (record for record in run.metrics() if "recall_at_1" in record)
    taught = run.teacher_file
    return {
        "config": run.config.to_dict(),
        "checkpoint": which,
        "metrics": next((record for record in recalls if record["step"] == step), {}),
        "weights_sha256": run.checkpoint_digest(which),
        **weights_origin(run.config.model.backbone, run.config.model.weights).to_dict(),
        **({"teacher": json.loads(taught.read_text())} if taught.is_file() else {}),
        "created": now(),
        "versions": versions(LIBRARIES),
    }
