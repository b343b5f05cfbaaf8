"""`lookalike model`: metadata and latency of a model file, and the backbones to start from."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from retrieval.cli import LazyGroup, json_option, load_command, print_result
from retrieval.commands.device_options import runtime_options
from retrieval.errors import InputError
from retrieval.machine.extras import needs
from retrieval.model.archive import IMAGE, TEXT, ModelArchive
from retrieval.model.embedder import Embedder, measure_latency
from retrieval.model.licenses import license_notice, model_license
from retrieval.model.runtime import Runtime
from retrieval.text import printable

_BATCHES = (1, 4, 32)
_SETTINGS = ("data", "model", "loss", "epochs", "seed")  # of the training settings; --json shows all
_NO_ONNX = f"unknown: reading it {needs('onnx')}"


_BACKBONE = "train.commands.models:describe"
_COMMANDS = {
    "list": (
        "train.commands.models:list_models",
        "You need a network to begin with: list them, fastest first.",
    ),
    "info": (
        "retrieval.commands.model:info",
        "You have a model file, or a name of the list: see what it is, and how fast here.",
    ),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def model() -> None:
    """List networks to start from, and describe one or a model file.

    \b
      lookalike model list
      lookalike model info timm:vit_base_patch16_siglip_224.v2_webli
      lookalike model info model.onnx
    """


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE|NAME")
@click.option("--no-latency", is_flag=True, help="Skip the benchmark, which takes a few seconds.")
@runtime_options
@json_option
@click.pass_context
def info(ctx: click.Context, file: Path, no_latency: bool, runtime: Runtime, as_json: bool) -> None:
    """Show the metadata and the latency of a model FILE, or what is known of the backbone NAME.

    NAME is that of `lookalike model list` or of model.backbone. Nothing is downloaded: its embedding,
    preprocessing and licence are shown.

    The output covers preprocessing, embedding size, training data and settings, validation results, the
    operators of the graph, and the time for batches of 1, 4, 32 and --batch-size images on this machine. The
    fingerprint is the SHA-256 of the file: a gallery accepts only the model that it was built with. --json
    prints the metadata.

    \b
      lookalike model info model.onnx
      lookalike model info timm:vit_small_patch14_reg4_dinov2.lvd142m
      lookalike model info model.onnx --device cuda:1
      lookalike model info model.onnx --no-latency --json
    """
    if not file.exists() and file.suffix not in (".onnx", ".zip") and file.name == str(file):
        ctx.invoke(load_command(_BACKBONE), name=str(file), as_json=as_json)
        return
    embedder = Embedder.open(file, runtime)
    archive = embedder.archive
    batches = sorted({*_BATCHES, runtime.batch_size or 1})
    facts = {
        "model": str(file),
        "bytes": file.stat().st_size,
        "fingerprint": embedder.fingerprint,
        "metadata": embedder.metadata,
        "training_images": _training_images(embedder),
        "map": embedder.has_map,
        "graph": _graph(archive.read(IMAGE) if archive else file.read_bytes()),
        "text": None if archive is None else _text_facts(embedder, archive),
        "provider": embedder.provider,
        "latency_ms": None if no_latency else {n: 1000 * measure_latency(embedder, n) for n in batches},
    }
    print_result(facts, as_json, _aligned(_rows(facts)))


def _training_images(embedder: Embedder) -> dict[str, int] | None:
    found = embedder.training_images
    return None if found is None else {"images": found.images, "classes": found.classes}


def _text_facts(embedder: Embedder, archive: ModelArchive) -> dict[str, Any]:
    """Return the facts about the text encoder; only why it cannot be used if it cannot."""
    try:
        encoder = embedder.text_encoder
    except InputError as error:
        return {"unusable": str(error)}
    return {
        **encoder.text_input.to_dict(),
        "vocabulary": encoder.tokens.vocabulary_size,
        "graph": _graph(archive.read(TEXT)),
    }


def _graph(model: bytes) -> dict[str, Any] | None:
    """Return opset, parameter count and operator counts of the graph; `None` without the onnx package.

    Parameters are the elements of the weights, without integer shapes and indices and without the scales and
    zero points of a quantized network.
    """
    try:
        import onnx
    except ModuleNotFoundError:
        return None
    proto = onnx.load_from_string(model)
    graphs = [proto.graph, *_inner_graphs(proto.graph)]
    nodes = [node for graph in graphs for node in graph.node]
    quantizing = (node for node in nodes if node.op_type in ("QuantizeLinear", "DequantizeLinear"))
    scales = {name for node in quantizing for name in node.input[1:]}
    not_weights = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.STRING)
    tensors = (tensor for graph in graphs for tensor in graph.initializer)
    weights = (t for t in tensors if t.data_type not in not_weights and t.name not in scales)
    return {
        "opset": {opset.domain or "ai.onnx": opset.version for opset in proto.opset_import},
        "parameters": sum(math.prod(tensor.dims) for tensor in weights),
        "operators": dict(Counter(node.op_type for node in nodes).most_common()),
    }


def _inner_graphs(graph: Any) -> Iterator[Any]:
    """Yield the graphs within the nodes of an ONNX graph, such as the body of a Scan."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
                yield from _inner_graphs(attribute.g)


# ---- text output


def _rows(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the rows to print, title -> text, in order."""
    metadata, graph, latencies = dict(facts["metadata"]), facts["graph"], facts["latency_ms"]
    origin = dict(metadata.pop("provenance"))
    config = origin.pop("config", None)
    settings = config if isinstance(config, Mapping) else {}
    rows = {
        "file": f"{facts['model']}, {facts['bytes'] / 1e6:.1f} MB",
        "fingerprint": facts["fingerprint"],
        **{name: _inline(part) for name, part in metadata.items()},
        **({"trained on": _inline(facts["training_images"])} if facts["training_images"] else {}),
        "map": "embedding_map, for heatmaps" if facts["map"] else "none",
        **{name: _inline(settings[name]) for name in _SETTINGS if settings.get(name) is not None},
    }
    for name, value in origin.items():
        rows |= _nested_rows(name.replace("_", " "), value) if value else {}
    if restriction := license_notice(model_license(facts["metadata"]["provenance"])):
        rows["license"] = restriction
    rows |= {
        "opset": _inline(graph["opset"]) if graph else _NO_ONNX,
        "parameters": f"{graph['parameters']:,}" if graph else _NO_ONNX,
        "operators": _inline(graph["operators"]) if graph else _NO_ONNX,
        "runs on": facts["provider"],
        "text": _text_row(facts["text"]) if facts["text"] else "none: images only",
    }
    if latencies:
        speeds = (f"{ms:.1f} ms for {n} ({1000 * n / ms:,.0f} a second)" for n, ms in latencies.items())
        rows["latency"] = ", ".join(speeds)
    return rows


def _text_row(text: Mapping[str, Any]) -> str:
    """Return the row of the text encoder."""
    settings = {name: value for name, value in text.items() if name != "graph" and value != ""}
    row = _inline(settings)
    return f"{row}, parameters {text['graph']['parameters']:,}" if text.get("graph") else row


def _nested_rows(title: str, value: Any) -> dict[str, str]:
    """Return one row for a value, and one more for each nested object in it."""
    parts = value if isinstance(value, Mapping) else {}
    nested = {name: part for name, part in parts.items() if isinstance(part, Mapping)}
    plain = {name: part for name, part in parts.items() if name not in nested} if nested else value
    return {title: _inline(plain), **{f"{title}, {name}": _inline(part) for name, part in nested.items()}}


def _inline(value: Any) -> str:
    """Return a JSON value on one line, without nulls."""
    if isinstance(value, Mapping):
        present = {name: v for name, v in value.items() if v is not None}
        return ", ".join(
            f"{k} ({_inline(v)})" if isinstance(v, Mapping) else f"{k} {_inline(v)}"
            for k, v in present.items()
        )
    if isinstance(value, list):
        return " ".join(map(_inline, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _aligned(rows: Mapping[str, str]) -> str:
    """Return a two-column table of titles and texts, wrapped to the width of the terminal."""
    indent = max(map(len, rows)) + 2
    width = max(shutil.get_terminal_size().columns, indent + 40)
    lines = []
    for title, text in rows.items():
        lines += textwrap.wrap(
            printable(f"{title:>{indent - 2}}  {text}"),
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
