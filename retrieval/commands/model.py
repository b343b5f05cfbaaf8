"""`lookalike model`."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result
from retrieval.embedder import Embedder, measure_latency

_BATCHES = (1, 32)
_SETTINGS = ("data", "model", "loss", "epochs", "seed")  # of those it was trained with; --json has them all
_NO_ONNX = "not known: only the onnx package can read it; pip install 'lookalike[train]'"


@click.group()
def model() -> None:
    """Say what a model file is and how fast it runs here.

    \b
      lookalike model info model.onnx
    """


@model.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--no-latency", is_flag=True, help="Do not measure, which takes some seconds.")
@json_option
def info(file: Path, no_latency: bool, as_json: bool) -> None:
    """Say what a model FILE is, where it comes from and how fast it runs here.

    It tells how pictures are prepared for it and what comes out, which data and settings it was trained with
    and how well it did, what its graph is made of, and how long a batch of 1 and of 32 takes on this machine.
    The fingerprint is the SHA-256 of the file: a gallery takes only the model with the fingerprint it was
    built with. --json tells everything that the file says about itself.

    \b
      lookalike model info model.onnx
      lookalike model info model.onnx --no-latency --json
    """
    embedder = Embedder(file)
    facts = {
        "model": str(file),
        "bytes": file.stat().st_size,
        "fingerprint": embedder.fingerprint,
        "metadata": embedder.metadata,
        "map": embedder.has_map,
        "graph": _graph(file),
        "provider": embedder.provider,
        "latency_ms": None if no_latency else {n: 1000 * measure_latency(embedder, n) for n in _BATCHES},
    }
    print_result(facts, as_json, _aligned(_rows(facts)))


def _graph(file: Path) -> dict[str, Any] | None:
    """What the graph is made of; `None` without the package that reads it.

    Parameters are the numbers in the weights: without the integers that are shapes and places, and without
    the scales and zero points of a quantised network.
    """
    try:
        import onnx
    except ModuleNotFoundError:
        return None
    proto = onnx.load(file)
    nodes = proto.graph.node
    quantizing = (node for node in nodes if node.op_type in ("QuantizeLinear", "DequantizeLinear"))
    scales = {name for node in quantizing for name in node.input[1:]}
    places = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.STRING)
    weights = (t for t in proto.graph.initializer if t.data_type not in places and t.name not in scales)
    return {
        "opset": {opset.domain or "ai.onnx": opset.version for opset in proto.opset_import},
        "parameters": sum(math.prod(tensor.dims) for tensor in weights),
        "operators": dict(Counter(node.op_type for node in nodes).most_common()),
    }


# ---- for people


def _rows(facts: Mapping[str, Any]) -> dict[str, str]:
    """Title -> text, in the order to show them."""
    metadata, graph, latencies = dict(facts["metadata"]), facts["graph"], facts["latency_ms"]
    origin = dict(metadata.pop("provenance"))
    config = origin.pop("config", None)
    settings = config if isinstance(config, Mapping) else {}
    rows = {
        "file": f"{facts['model']}, {facts['bytes'] / 1e6:.1f} MB",
        "fingerprint": facts["fingerprint"],
        **{name: _words(part) for name, part in metadata.items()},
        "map": "embedding_map, for heatmaps" if facts["map"] else "none",
        **{name: _words(settings[name]) for name in _SETTINGS if settings.get(name) is not None},
    }
    for name, value in origin.items():
        rows |= _told(name.replace("_", " "), value) if value else {}
    rows |= {
        "opset": _words(graph["opset"]) if graph else _NO_ONNX,
        "parameters": f"{graph['parameters']:,}" if graph else _NO_ONNX,
        "operators": _words(graph["operators"]) if graph else _NO_ONNX,
        "runs on": facts["provider"],
    }
    if latencies:
        speeds = (f"{ms:.1f} ms for {n} ({1000 * n / ms:,.0f} a second)" for n, ms in latencies.items())
        rows["latency"] = ", ".join(speeds)
    return rows


def _told(title: str, value: Any) -> dict[str, str]:
    """One row, and one for each part that has parts itself."""
    parts = value if isinstance(value, Mapping) else {}
    nested = {name: part for name, part in parts.items() if isinstance(part, Mapping)}
    plain = {name: part for name, part in parts.items() if name not in nested} if nested else value
    return {title: _words(plain), **{f"{title}, {name}": _words(part) for name, part in nested.items()}}


def _words(value: Any) -> str:
    """A value of JSON on one line: names and values, without those that are null."""
    if isinstance(value, Mapping):
        told = {name: v for name, v in value.items() if v is not None}
        return ", ".join(
            f"{k} ({_words(v)})" if isinstance(v, Mapping) else f"{k} {_words(v)}" for k, v in told.items()
        )
    if isinstance(value, list):
        return " ".join(map(_words, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _aligned(rows: Mapping[str, str]) -> str:
    """Titles in one column, texts in another, wrapped to the terminal."""
    indent = max(map(len, rows)) + 2
    width = max(shutil.get_terminal_size().columns, indent + 40)
    lines = []
    for title, text in rows.items():
        # What a stranger's file says must not steer the terminal.
        shown = "".join(c if c.isprintable() else "?" for c in f"{title:>{indent - 2}}  {text}")
        lines += textwrap.wrap(
            shown, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines)
