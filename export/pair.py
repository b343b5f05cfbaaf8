"""Export of a pair of image and text encoder to one model archive, with a proof against the library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from export.graph import module_to_onnx
from export.model_file import MAX_DIFFERENCE, MIN_COSINE, Proof
from export.sample_texts import SAMPLE_TEXTS
from export.samples import SampleImages
from export.tokenizer_files import Tokenize, check_tokens
from retrieval.errors import LookalikeError
from retrieval.images.preprocess import Preprocess
from retrieval.model.archive import IMAGE, TEXT, TOKENIZER, write_archive
from retrieval.model.embedder import FORMAT_VERSION, Embedder
from retrieval.model.runtime import Runtime
from retrieval.model.text_encoder import PROPERTY, TOKENS, TextInput

_MAX_BYTES = 2**31 - 1  # of a protocol buffer
_IMAGES = 32


class Encoder(nn.Module):
    """One tower of a pair: the input of the library's function -> features [N, D]."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, values: Tensor) -> Tensor:
        found = getattr(self.model, self.method)(values)
        features: Tensor = found if isinstance(found, Tensor) else found.pooler_output
        return features


@dataclass(frozen=True)
class Pair:
    """Image and text encoder of a library, in evaluation mode on the CPU.

    Attributes:
        source: Origin, such as open_clip:ViT-B-32:laion2b_s34b_b79k.
        image: Normalised planes, float32 [N, 3, S, S] -> features [N, D].
        text: Token ids, int64 [N, L] -> features [N, D].
        preprocess: Preprocessing of the images.
        text_input: Input of the text encoder.
        tokenizer: Tokenizer of the archive.
        tokenize: Tokenizer of the library.
        facts: Further provenance, such as the licence and the versions of the libraries.
    """

    source: str
    image: nn.Module
    text: nn.Module
    preprocess: Preprocess
    text_input: TextInput
    tokenizer: Tokenizer
    tokenize: Tokenize
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class ExportedPair:
    """Result of the export of a pair.

    Attributes:
        proof: Comparison of the images' embeddings with the library's.
        text_proof: Comparison of the texts' embeddings.
    """

    proof: Proof
    text_proof: Proof

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, which is also stored in the file's provenance."""
        return {
            "precision": "fp32",
            "proof": self.proof.to_dict(),
            "text_proof": {
                "texts": self.text_proof.images,
                "tokens": "equal",
                "largest_difference": self.text_proof.largest_difference,
                "lowest_cosine": self.text_proof.lowest_cosine,
            },
        }


class _Images(nn.Module):
    """Pixels, uint8 [N, S, S, 3] -> unit embedding."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: nn.Module, preprocess: Preprocess) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("mean", 255 * torch.tensor(preprocess.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(preprocess.std).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        planes = (images.permute(0, 3, 1, 2).float() - self.mean) / self.std
        return nn.functional.normalize(self.encoder(planes))


class _Texts(nn.Module):
    """Token ids -> unit embedding."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.normalize(self.encoder(tokens))


def export_pair(pair: Pair, out: Path, samples: SampleImages, runtime: Runtime) -> ExportedPair:
    """Export a pair to a model archive, which is kept only if it computes the library's embeddings.

    Args:
        pair: Image and text encoder.
        out: Archive to write.
        samples: Images to check the file on.
        runtime: Device and provider on which the file is checked.

    Raises:
        LookalikeError: A network cannot be exported or is above 2 GB, a sample text has other tokens, or an
            embedding differs by more than 1e-4 or has a cosine below 0.99999.
    """
    name = pair.source
    pixels, description = samples.sample_pixels(_IMAGES, pair.preprocess)
    tokens = pair.tokenize(SAMPLE_TEXTS)
    images = _embed_images(pair, pixels)
    texts = _in_batches(_Texts(pair.text), tokens)
    shared = {
        "lookalike.format": {"version": FORMAT_VERSION},
        "lookalike.embedding": {"dim": images.shape[1], "metric": "cosine", "unit_length": True},
    }
    of_image = shared | {"lookalike.preprocess": pair.preprocess.to_dict()}
    image = module_to_onnx(
        _Images(pair.image, pair.preprocess).eval(), {"images": pixels}, ["embedding"], name
    )
    text = module_to_onnx(_Texts(pair.text).eval(), {TOKENS: tokens}, ["embedding"], name)
    members = {
        TEXT: serialized(text, shared | {PROPERTY: pair.text_input.to_dict()}, f"{name}: the text encoder"),
        TOKENIZER: pair.tokenizer.to_str().encode(),
    }
    provenance = {"source": name, "metrics": {}, **pair.facts}
    with TemporaryDirectory(dir=_folder(out)) as folder:
        draft = Path(folder, "draft.zip")

        def write(facts: dict[str, Any]) -> None:
            properties = of_image | {"lookalike.provenance": provenance | facts}
            write_archive(
                draft, members | {IMAGE: serialized(image, properties, f"{name}: the image encoder")}
            )

        write({})
        embedder = Embedder.open(draft, runtime)
        check_tokens(name, lambda sample: embedder.text_encoder.tokens(sample)[0], pair.tokenize)
        exported = ExportedPair(
            compare(f"{name}: images", description, embedder.embed_pixels(pixels), images),
            compare(f"{name}: texts", f"{len(texts)} texts", embedder.embed_texts(SAMPLE_TEXTS), texts),
        )
        write(exported.to_dict())
        draft.replace(out)
    return exported


def _folder(out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.parent


def serialized(proto: onnx.ModelProto, metadata: Mapping[str, Any], where: str) -> bytes:
    """Return the bytes of a model with metadata; a `LookalikeError` that starts with `where` above 2 GB."""
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in metadata.items()})
    if proto.ByteSize() > _MAX_BYTES:
        raise LookalikeError(f"{where} takes {proto.ByteSize() / 2**30:.1f} GB; ONNX files end at 2 GB")
    data: bytes = proto.SerializeToString()
    return data


def compare(where: str, description: str, found: np.ndarray, expected: np.ndarray) -> Proof:
    """Compare unit vectors of a file, [N, D], with those that are expected.

    Raises:
        LookalikeError: One differs by more than 1e-4 or has a cosine below 0.99999; starts with `where`.
    """
    difference = float(np.abs(found - expected).max())
    proof = Proof(description, difference, float((found * expected).sum(1).min()), ())
    if not (difference <= MAX_DIFFERENCE and proof.lowest_cosine >= MIN_COSINE):
        gap = f"by {difference:.2e}, lowest cosine {proof.lowest_cosine:.6f}"
        raise LookalikeError(f"{where}: not kept, the embeddings differ from those expected {gap}")
    return proof


@torch.inference_mode()
def _embed_images(pair: Pair, pixels: np.ndarray) -> np.ndarray:
    """Return the library's embeddings of pixels, normalised as its own transforms do."""
    planes = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (pair.preprocess.mean, pair.preprocess.std))
    return _in_batches(_Texts(pair.image), ((planes - mean) / std).numpy())


@torch.inference_mode()
def _in_batches(encoder: nn.Module, values: np.ndarray, size: int = 8) -> np.ndarray:
    batches: Sequence[np.ndarray] = [values[at : at + size] for at in range(0, len(values), size)]
    return torch.cat([encoder(torch.from_numpy(batch)) for batch in batches]).numpy()
