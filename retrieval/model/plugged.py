"""Embedders of plug-ins: in place of an ONNX file, a file that names the plug-in and its argument.

The file is a JSON object, and its SHA-256 is the fingerprint of the model, as of any other. A plug-in is a
function of its argument and a device ("auto", "cpu", "cuda:0", ...), which returns a `PluggedEmbedder`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from retrieval.errors import InputError, LookalikeError, did_you_mean
from retrieval.files import atomic_write
from retrieval.images.preprocess import Preprocess
from retrieval.machine.devices import Device
from retrieval.plugins import find_plugin, plugin_names

_KEY = "lookalike.plug-in"
_UNIT = 1e-3  # how far lengths may be from 1


class PluggedEmbedder(Protocol):
    """What a plug-in returns.

    Attributes:
        dim: Length D of an embedding.
        preprocess: Preprocessing of its input.
        fingerprint: Text that changes with the embeddings of an image, such as a hash of weights.
    """

    dim: int
    preprocess: Preprocess
    fingerprint: str

    def embed(self, images: np.ndarray) -> np.ndarray:
        """Embed images, uint8 [N, S, S, 3], S being `preprocess.size`: float32 [N, D] of unit length."""
        ...


@dataclass(frozen=True)
class End:
    """Input or output of a session, as ONNX Runtime describes it."""

    name: str
    type: str
    shape: Sequence[int | str]


class PluggedSession:
    """What `Embedder` uses of a session of ONNX Runtime, with a plug-in behind it.

    Args:
        path: File that names the plug-in.
        data: Its contents.
        device: Device that was asked for.

    Raises:
        InputError: The plug-in is not installed, or it is no longer the one that the file was made of.
        LookalikeError: It cannot be loaded.
    """

    def __init__(self, path: Path, data: bytes, device: Device) -> None:
        try:
            facts: dict[str, Any] = json.loads(data)
            name, argument = facts[_KEY]["name"], facts[_KEY]["argument"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: damaged ({error}); export it again") from error
        self._plugin, self._name = open_plugin(name, argument, device), name
        stated = {"dim": self._plugin.dim, "fingerprint": self._plugin.fingerprint}
        stated["preprocess"] = self._plugin.preprocess.to_dict()
        if stated != {key: facts[_KEY].get(key) for key in stated}:
            made = f"made of {facts[_KEY].get('origin')}, and {plugin_names('embedders')[name]} gives others"
            raise InputError(f"{path}: {made}; install that one, or export again and rebuild galleries")
        self._texts = {
            "lookalike.format": {"version": 1},
            "lookalike.preprocess": facts[_KEY]["preprocess"],
            "lookalike.embedding": {"dim": self._plugin.dim},
            "lookalike.provenance": {"plug-in": f"{name}:{argument}", "origin": facts[_KEY].get("origin")},
        }
        self._one_call = threading.Lock()

    def get_providers(self) -> list[str]:
        """Return what computes the embeddings, for records."""
        return [f"plug-in {self._name}"]

    def get_modelmeta(self) -> Any:
        """Return the metadata that an ONNX file would have."""
        return SimpleNamespace(custom_metadata_map={key: json.dumps(v) for key, v in self._texts.items()})

    def get_inputs(self) -> list[End]:
        """Return the description of the images."""
        side = self._plugin.preprocess.size
        return [End("images", "tensor(uint8)", ["N", side, side, 3])]

    def get_outputs(self) -> list[End]:
        """Return the description of the embeddings."""
        return [End("embedding", "tensor(float)", ["N", self._plugin.dim])]

    def run(self, _: list[str], feeds: dict[str, np.ndarray], options: object = None) -> list[np.ndarray]:
        """Embed images, one call at a time."""
        with self._one_call:
            found = np.asarray(self._plugin.embed(feeds["images"]), np.float32)
        lengths = np.linalg.norm(found, axis=-1)
        if not np.allclose(lengths, 1, atol=_UNIT):
            at = int(np.abs(lengths - 1).argmax())
            raise ValueError(f"an embedding has length {lengths.flat[at]:.4g} instead of 1")
        return [found]


def open_plugin(name: str, argument: str, device: Device) -> PluggedEmbedder:
    """Return the embedder of a plug-in.

    Raises:
        InputError: There is no such plug-in.
        LookalikeError: It cannot be loaded, or lacks an attribute.
    """
    build = find_plugin("embedders", name)
    if build is None:
        hint = did_you_mean(
            name, plugin_names("embedders"), "install its package, or give its file by --import"
        )
        raise InputError(f"there is no embedder {name!r} among the plug-ins; {hint}")
    origin = plugin_names("embedders")[name]
    try:
        found: PluggedEmbedder = build(argument, str(device))
    except LookalikeError:
        raise
    except Exception as error:
        raise LookalikeError(
            f"embedder {name}:{argument}: the plug-in of {origin} fails ({type(error).__name__}: {error})"
        ) from error
    lacks = [part for part in ("dim", "preprocess", "fingerprint", "embed") if not hasattr(found, part)]
    if lacks:
        raise LookalikeError(f"embedder {name}: the plug-in of {origin} lacks {', '.join(lacks)}")
    return found


def is_reference(data: bytes) -> bool:
    """Return whether a model file, or its beginning, names a plug-in."""
    return data.startswith(b"{")


def write_reference(out: Path, name: str, argument: str, device: Device) -> None:
    """Write the file that names a plug-in, for use in place of an ONNX file.

    Raises:
        InputError, LookalikeError: As for `open_plugin`.
    """
    plugin = open_plugin(name, argument, device)
    facts = {
        "name": name,
        "argument": argument,
        "origin": plugin_names("embedders")[name],
        "dim": plugin.dim,
        "fingerprint": plugin.fingerprint,
        "preprocess": plugin.preprocess.to_dict(),
    }
    with atomic_write(out) as draft:
        draft.write_text(json.dumps({_KEY: facts}, indent=1) + "\n")
