"""Runtime of Lookalike: images, preprocessing, the ONNX embedder, galleries, metrics and reports.

This package never imports torch. The names below load on first use, so that `import retrieval` is cheap.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrieval import metrics as metrics
    from retrieval.errors import ImageError as ImageError
    from retrieval.errors import InputError as InputError
    from retrieval.errors import LookalikeError as LookalikeError
    from retrieval.galleries.items import Hit as Hit
    from retrieval.galleries.items import Hits as Hits
    from retrieval.galleries.items import Item as Item
    from retrieval.gallery import Gallery as Gallery
    from retrieval.images.load import load_image as load_image
    from retrieval.images.preprocess import Preprocess as Preprocess
    from retrieval.model.embedder import Embedder as Embedder
    from retrieval.model.runtime import Runtime as Runtime
    from retrieval.model.transformer import EmbeddingTransformer as EmbeddingTransformer
    from retrieval.search.options import SearchOptions as SearchOptions
    from retrieval.storage.records import IndexSpec as IndexSpec

# Both variables are read once, when the libraries are imported. ONNX Runtime sends telemetry by default.
# OpenMP threads (FAISS, torch) that spin while they wait are several times slower as soon as other work needs
# a core, and no faster on an idle machine.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_MODULES = {
    "Embedder": "model.embedder",
    "Gallery": "gallery",
    "Hit": "galleries.items",
    "Hits": "galleries.items",
    "ImageError": "errors",
    "IndexSpec": "storage.records",
    "InputError": "errors",
    "Item": "galleries.items",
    "LookalikeError": "errors",
    "Preprocess": "images.preprocess",
    "Runtime": "model.runtime",
    "SearchOptions": "search.options",
    "load_image": "images.load",
}
_OPTIONAL = {"EmbeddingTransformer": "model.transformer"}  # needs scikit-learn; no part of `import *`
__all__ = [*_MODULES, "metrics"]


def __getattr__(name: str) -> Any:
    if module := _MODULES.get(name) or _OPTIONAL.get(name):
        return getattr(import_module(f"retrieval.{module}"), name)
    if name == "metrics":
        return import_module("retrieval.metrics")
    if name == "open_gallery":  # its former name
        return __getattr__("Gallery").open
    raise AttributeError(f"module 'retrieval' has no attribute {name!r}")
