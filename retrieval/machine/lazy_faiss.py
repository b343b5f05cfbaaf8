"""FAISS, imported on first use: `from retrieval.machine import lazy_faiss as faiss`.

Many commands search nothing, and the import of a build for GPUs takes 0.4 s and 450 MB.
"""

from typing import Any

METRIC_INNER_PRODUCT, METRIC_L2 = 0, 1  # FAISS's numbers, which are in the files of indexes


def __getattr__(name: str) -> Any:
    import faiss

    return getattr(faiss, name)
