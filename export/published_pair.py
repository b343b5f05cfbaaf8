"""Import of ONNX encoders that are published on the Hugging Face hub, as pairs or for images alone.

Two layouts are read, from the hub or from a folder. That of open_clip's exports, which immich uses:

    visual/model.onnx, visual/preprocess_cfg.json, textual/model.onnx, textual/tokenizer.json,
    textual/tokenizer_config.json, config.json

and that of transformers' exports, which onnx-community and Xenova use:

    onnx/vision_model.onnx, onnx/text_model.onnx (images alone: onnx/model.onnx), preprocessor_config.json,
    tokenizer.json, tokenizer_config.json, config.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

from export.model_file import LIBRARIES
from export.pair import compare, serialized
from export.published_configs import card_licence, open_clip_preprocess, transformers_preprocess
from export.published_graphs import PublishedGraph, read_graph, wrap_image_encoder, wrap_text_encoder
from export.sample_texts import SAMPLE_TEXTS
from export.samples import SampleImages
from export.tokenizer_files import with_cleaning, without_closing_token
from retrieval.errors import InputError
from retrieval.files import now
from retrieval.images.preprocess import Preprocess
from retrieval.machine.installation import versions
from retrieval.model.archive import IMAGE, TEXT, TOKENIZER, write_archive
from retrieval.model.embedder import FORMAT_VERSION, Embedder
from retrieval.model.external_data import refuse_external_data
from retrieval.model.hub import download
from retrieval.model.interruption import interruptible, run
from retrieval.model.runtime import Runtime
from retrieval.model.text_encoder import MASK, PROPERTY, TOKENS, TextInput, TextTokenizer

_CONFIGS = ("*.json", "README.md", "visual/*.json", "textual/*.json")
_PAIRS = ("visual/model.onnx*", "textual/model.onnx*", "onnx/vision_model.onnx*", "onnx/text_model.onnx*")
_SINGLE = ("onnx/model.onnx*",)
# Their published embedding of an image is the class token.
_CLASS_TOKEN = ("dinov2", "dinov2_with_registers", "dinov3_vit", "vit", "deit")
_IMAGES = 8
_LONGEST = 8192  # a greater model_max_length of a tokenizer means that there is none


@dataclass(frozen=True)
class Published:
    """Published encoders.

    Attributes:
        name: USER/NAME or the folder.
        preprocess: Preprocessing of the images.
        image: Graph of the image encoder.
        text: Graph of the text encoder; `None` for images alone.
        text_input: Input of the text encoder.
        tokenizer: Tokenizer, with the cleaning of the library that the model was trained with.
        licence: Licence on the model card; `None` if unknown.
    """

    name: str
    preprocess: Preprocess
    image: PublishedGraph
    text: PublishedGraph | None = None
    text_input: TextInput = field(default=TextInput(1))
    tokenizer: Tokenizer | None = None
    licence: str | None = None


def read_published(name: str) -> Published:
    """Read published encoders.

    Args:
        name: USER/NAME on the hub, or a folder in the same layout.

    Raises:
        InputError: No such repository, or its layout, graphs or configuration are not supported.
        LookalikeError: The hub cannot be reached.
    """
    folder = Path(name) if Path(name).is_dir() else download(name, [*_CONFIGS, *_PAIRS])
    licence = card_licence(folder / "README.md")
    if (folder / "visual" / "model.onnx").is_file():
        preprocess = open_clip_preprocess(_json(folder / "visual" / "preprocess_cfg.json"), name)
        image = read_graph(folder / "visual" / "model.onnx", is_text=False)
        file = folder / "textual" / "model.onnx"
        if not file.is_file():
            return Published(name, preprocess, image, licence=licence)
        text_input, tokenizer = _open_clip_text(folder, name)
    else:
        file = folder / "onnx" / "vision_model.onnx"
        has_pair = file.is_file()
        if not has_pair:
            folder = folder if Path(name).is_dir() else download(name, [*_CONFIGS, *_SINGLE])
            file = folder / "onnx" / "model.onnx"
        if not file.is_file():
            raise InputError(
                f"{name}: has neither visual/model.onnx nor onnx/vision_model.onnx nor onnx/model.onnx; use "
                "--from open-clip:NAME or --from transformers:NAME"
            )
        preprocess = transformers_preprocess(_json(folder / "preprocessor_config.json"), name)
        kind = _json(folder / "config.json").get("model_type")
        image = read_graph(file, is_text=False, has_class_token=kind in _CLASS_TOKEN)
        file = folder / "onnx" / "text_model.onnx"
        if not (has_pair and file.is_file()):
            return Published(name, preprocess, image, licence=licence)
        text_input, tokenizer = _transformers_text(folder, name)
    text = read_graph(file, is_text=True)
    return Published(name, preprocess, image, text, text_input, tokenizer, licence)


def import_published(
    published: Published, out: Path, samples: SampleImages, runtime: Runtime
) -> dict[str, Any]:
    """Write published encoders as a model archive, or as a model file for images alone.

    The file is kept only if it has the embeddings of the published graphs, run as they are.

    Args:
        published: Encoders.
        out: File to write.
        samples: Images to check the file on.
        runtime: Device and provider on which the file is checked.

    Returns:
        Proof and precision, as in the provenance.

    Raises:
        LookalikeError: A graph is above 2 GB, or an embedding differs by more than 1e-4 or has a cosine
            below 0.99999.
    """
    name = published.name
    pixels, description = samples.sample_pixels(_IMAGES, published.preprocess)
    images = _run(published.image, {"images": _planes(pixels, published.preprocess)})
    shared = {
        "lookalike.format": {"version": FORMAT_VERSION},
        "lookalike.embedding": {"dim": images.shape[1], "metric": "cosine", "unit_length": True},
    }
    image = wrap_image_encoder(published.image, published.preprocess, images.shape[1])
    provenance: dict[str, Any] = {
        "source": f"hub:{name}",
        "metrics": {},
        "license": published.licence,
        **({} if Path(name).is_dir() else {"weights_address": name}),
        "created": now(),
        "versions": versions((*LIBRARIES, "tokenizers")),
    }
    of_image = shared | {"lookalike.preprocess": published.preprocess.to_dict()}
    members, texts = {}, np.empty((0, 0), np.float32)
    if published.text is not None and published.tokenizer is not None:
        encode = TextTokenizer(published.tokenizer.to_str().encode(), published.text_input, name)
        texts = _run(published.text, dict(zip((TOKENS, MASK), encode(SAMPLE_TEXTS), strict=True)))
        if texts.shape[1] != images.shape[1]:
            raise InputError(f"{name}: images have {images.shape[1]} dimensions, texts {texts.shape[1]}")
        text = wrap_text_encoder(published.text, published.text_input.context_length, texts.shape[1])
        of_text = shared | {PROPERTY: published.text_input.to_dict()}
        members = {
            TEXT: serialized(text, of_text, f"{name}: the text encoder"),
            TOKENIZER: published.tokenizer.to_str().encode(),
        }
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent) as folder:
        draft = Path(folder, "draft")

        def write(facts: dict[str, Any]) -> None:
            properties = of_image | {"lookalike.provenance": provenance | facts}
            data = serialized(image, properties, f"{name}: the image encoder")
            if members:
                write_archive(draft, members | {IMAGE: data})
            else:
                draft.write_bytes(data)

        write({})
        embedder = Embedder.open(draft, runtime)
        proof = compare(f"{name}: images", description, embedder.embed_pixels(pixels), images)
        facts: dict[str, Any] = {"precision": "fp32", "proof": proof.to_dict()}
        if members:
            found = embedder.embed_texts(SAMPLE_TEXTS)
            proof = compare(f"{name}: texts", f"{len(texts)} texts", found, texts)
            facts["text_proof"] = {
                "texts": proof.images,
                "tokens": "of the published tokenizer",
                "largest_difference": proof.largest_difference,
                "lowest_cosine": proof.lowest_cosine,
            }
        write(facts)
        draft.replace(out)
    return facts


# ---- configurations


def _open_clip_text(folder: Path, name: str) -> tuple[TextInput, Tokenizer]:
    settings = _json(folder / "config.json").get("text_cfg", {})
    options = settings.get("tokenizer_kwargs") or {}
    tokenizer, facts = _tokenizer(folder / "textual", name)
    # open_clip's own tokenizer, without a name, is published as that of transformers.
    own = "whitespace" if settings.get("hf_tokenizer_name") else "lower"
    tokenizer = with_cleaning(tokenizer, options.get("clean", own))
    if options.get("strip_sep_token"):
        tokenizer = without_closing_token(tokenizer, _token(facts, "sep_token"))
    length = int(settings.get("context_length", 77))
    return _text_input(length, tokenizer, facts, name), tokenizer


def _transformers_text(folder: Path, name: str) -> tuple[TextInput, Tokenizer]:
    tokenizer, facts = _tokenizer(folder, name)
    settings = _json(folder / "config.json").get("text_config") or {}
    length = int(settings.get("max_position_embeddings") or facts.get("model_max_length") or _LONGEST + 1)
    if length > _LONGEST:
        what = f"{name}: neither config.json nor tokenizer_config.json has the length of a text"
        raise InputError(f"{what}; use another model")
    return _text_input(length, tokenizer, facts, name), tokenizer


def _tokenizer(folder: Path, name: str) -> tuple[Tokenizer, dict[str, Any]]:
    file = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(file)), _json(folder / "tokenizer_config.json")
    except InputError:
        raise
    except Exception as error:  # tokenizers raises plain exceptions
        raise InputError(f"{name}: tokenizer.json is missing or damaged; use another model") from error


def _text_input(length: int, tokenizer: Tokenizer, facts: Mapping[str, Any], name: str) -> TextInput:
    pad_id = tokenizer.token_to_id(_token(facts, "pad_token"))
    if pad_id is None:
        raise InputError(f"{name}: its tokenizer has no padding token; use another model")
    return TextInput(length, int(pad_id), str(facts.get("padding_side") or "right"))


def _token(facts: Mapping[str, Any], key: str) -> str:
    token = facts.get(key) or ""
    return str(token["content"] if isinstance(token, Mapping) else token)


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
        raise ValueError("not an object")
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: missing or damaged; use another model") from error


# ---- the published graphs, as they are


def _planes(pixels: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """Return normalised planes, float32 [N, 3, S, S]."""
    mean, std = (np.array(values, np.float32) for values in (preprocess.mean, preprocess.std))
    values = (pixels.astype(np.float32) / 255 - mean) / std
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2))


@interruptible
def _run(graph: PublishedGraph, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the unit vectors of a published graph, float32 [N, D], one image or text at a time."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    data = graph.proto.SerializeToString()
    refuse_external_data("the published graph", data)  # onnx does not look everywhere
    session = ort.InferenceSession(data, options, ["CPUExecutionProvider"])
    types = {end.name: np.dtype(_NUMPY[end.type]) for end in session.get_inputs()}
    rows = []
    for i in range(len(next(iter(values.values())))):
        feeds = {
            theirs: values[ours][i : i + 1].astype(types[theirs]) for ours, theirs in graph.inputs.items()
        }
        found = run(session, [graph.output], feeds)[0].astype(np.float32)
        rows.append(found[:, 0] if graph.takes_class_token else found)
    vectors = np.concatenate(rows)
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
