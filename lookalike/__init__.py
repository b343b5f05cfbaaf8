"""Lookalike for Python: embed images, build and search galleries, measure embeddings, train with any loss.

    import lookalike

    model = lookalike.Embedder("model.onnx")
    gallery = lookalike.Gallery.open("shop.gallery")

The names load on first use: importing the package takes milliseconds, and only `losses` needs torch. The
module of one's own that has the name of one of our other packages, such as a train.py, is not in the way.
"""

from importlib import import_module

from lookalike.own_packages import secure

TYPE_CHECKING = False  # as that of typing, whose import takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

    from retrieval import Embedder as Embedder
    from retrieval import EmbeddingTransformer as EmbeddingTransformer
    from retrieval import Gallery as Gallery
    from retrieval import Hit as Hit
    from retrieval import Hits as Hits
    from retrieval import ImageError as ImageError
    from retrieval import IndexSpec as IndexSpec
    from retrieval import InputError as InputError
    from retrieval import Item as Item
    from retrieval import LookalikeError as LookalikeError
    from retrieval import Preprocess as Preprocess
    from retrieval import Runtime as Runtime
    from retrieval import SearchOptions as SearchOptions
    from retrieval import load_image as load_image
    from retrieval import metrics as metrics
    from retrieval.plugins import register_plugin as register_plugin
    from serve.client import ApiError as ApiError
    from serve.client import AsyncClient as AsyncClient
    from serve.client import Client as Client
    from serve.client import UnreachableError as UnreachableError
    from serve.gradio.blocks import blocks as blocks
    from train import data as datasets  # noqa: F401
    from train import losses as losses

_MODULES = {"datasets": "train.data", "losses": "train.losses", "metrics": "retrieval.metrics"}
_HOMES = {
    "ApiError": "serve.client",
    "AsyncClient": "serve.client",
    "Client": "serve.client",
    "Embedder": "retrieval",
    "EmbeddingTransformer": "retrieval",
    "Gallery": "retrieval",
    "Hit": "retrieval",
    "Hits": "retrieval",
    "ImageError": "retrieval",
    "IndexSpec": "retrieval",
    "InputError": "retrieval",
    "Item": "retrieval",
    "LookalikeError": "retrieval",
    "Preprocess": "retrieval",
    "Runtime": "retrieval",
    "SearchOptions": "retrieval",
    "UnreachableError": "serve.client",
    "blocks": "serve.gradio.blocks",
    "load_image": "retrieval",
    "register_plugin": "retrieval.plugins",
}
__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from importlib.metadata import version  # slow to import

        return version("lookalike")
    home = _HOMES.get(name) or _MODULES.get(name)
    if home is None:
        raise AttributeError(f"module 'lookalike' has no attribute {name!r}")
    secure(home.partition(".")[0])
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        from retrieval.machine.extras import missing_extra

        if hint := missing_extra(error):
            raise ModuleNotFoundError(f"lookalike.{name} {hint}", name=error.name) from error
        raise
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
