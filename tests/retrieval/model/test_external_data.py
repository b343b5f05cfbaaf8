"""Models with weights in other files are refused before ONNX Runtime can read those."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from export.published_graphs import PublishedGraph
from export.published_pair import _run
from retrieval import Embedder, InputError
from retrieval.files import sha256_of
from retrieval.model.archive import IMAGE, MEMBERS, TEXT, ModelArchive, write_archive
from retrieval.model.external_data import PATHS, external_location
from retrieval.storage.manifest import Manifest
from retrieval.storage.store import Store
from tests.conftest import lookalike_here
from tests.hub_server import HubServer
from tests.retrieval.filling import DIM
from tests.serve.model import write_model

LOCATION = "./secret.bin"


def external(name: str = "secret") -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[DIM])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", LOCATION)):
        tensor.external_data.add(key=key, value=value)
    return tensor


def attribute(**values: Any) -> NodeProto:
    """Return a node with one attribute."""
    return NodeProto(
        op_type="Constant", output=["secret"], attribute=[AttributeProto(name="value", **values)]
    )


# Everything in a model that can hold a tensor, each with one that is in another file.
PLACES: dict[str, Callable[[ModelProto], object]] = {
    "initializer": lambda model: model.graph.initializer.append(external()),
    "attribute": lambda model: model.graph.node.append(attribute(t=external())),
    "attributes": lambda model: model.graph.node.append(attribute(tensors=[TensorProto(), external()])),
    "inner graph": lambda model: model.graph.node.append(attribute(g=GraphProto(initializer=[external()]))),
    "inner graphs": lambda model: model.graph.node.append(
        attribute(graphs=[GraphProto(node=[attribute(g=GraphProto(node=[attribute(t=external())]))])])
    ),
    "values": lambda model: model.graph.sparse_initializer.append(SparseTensorProto(values=external())),
    "indices": lambda model: model.graph.sparse_initializer.append(SparseTensorProto(indices=external())),
    "sparse attribute": lambda model: model.graph.node.append(
        attribute(sparse_tensor=SparseTensorProto(values=external()))
    ),
    "sparse attributes": lambda model: model.graph.node.append(
        attribute(sparse_tensors=[SparseTensorProto(indices=external())])
    ),
    "function": lambda model: model.functions.add(name="f").node.append(attribute(t=external())),
    "default": lambda model: model.functions.add(name="f").attribute_proto.add(name="a", t=external()),
    "training": lambda model: model.training_info.add().algorithm.initializer.append(external()),
    "first step": lambda model: model.training_info.add().initialization.initializer.append(external()),
}


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> ModelProto:
    return onnx.load(write_model(tmp_path_factory.mktemp("small") / "model.onnx"))


def changed(model: ModelProto, change: Callable[[ModelProto], object]) -> bytes:
    """Return a copy of the model with a change, serialized."""
    copy = ModelProto.FromString(model.SerializeToString())
    change(copy)
    return bytes(copy.SerializeToString())


@pytest.mark.parametrize("place", PLACES)
def test_refused_wherever_it_is(small_model: ModelProto, tmp_path: Path, place: str) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(changed(small_model, PLACES[place]))
    what = (
        rf"model\.onnx: has weights in another file \({LOCATION}\), which is not read; save the model as one"
    )
    with pytest.raises(InputError, match=what):
        Embedder(file, device="cpu")


def test_onnx_runtime_would_read_it(
    small_model: ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedding would be the bytes of a file of the working folder, which no fingerprint covers."""
    secret = np.random.default_rng(0).normal(size=DIM).astype(np.float32)
    secret.tofile(tmp_path / "secret.bin")
    monkeypatch.chdir(tmp_path)

    def read(model: ModelProto) -> None:
        model.graph.node[-1].input[0] = "sum"
        branches = [
            GraphProto(
                name=name,
                node=[onnx.helper.make_node("Add", ["none", "secret"], ["row"])],
                initializer=[external()],
                output=[onnx.helper.make_tensor_value_info("row", TensorProto.FLOAT, None)],
            )
            for name in ("a", "b")
        ]
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "none"))
        last = model.graph.node.pop()
        then, otherwise = branches
        model.graph.node.append(
            onnx.helper.make_node("If", ["yes"], ["added"], then_branch=then, else_branch=otherwise)
        )
        model.graph.node.append(onnx.helper.make_node("Mul", ["flat", "none"], ["zeros"]))
        model.graph.node.append(onnx.helper.make_node("Add", ["zeros", "added"], ["sum"]))
        model.graph.node.append(last)

    data = changed(small_model, read)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (found,) = session.run(["embedding"], {"images": np.zeros((1, 32, 32, 3), np.uint8)})
    np.testing.assert_allclose(found[0], secret / np.linalg.norm(secret), atol=1e-6)
    (tmp_path / "model.onnx").write_bytes(data)
    shown = lookalike_here("model", "info", "model.onnx", code=2)
    assert shown.stderr.count("\n") == 1
    shown = lookalike_here("index", "build", "g", ".", "--model", "model.onnx", code=2)
    assert f"model.onnx: has weights in another file ({LOCATION})" in shown.stderr
    assert not (tmp_path / "g").exists()
    check_gallery(tmp_path)


def check_gallery(folder: Path) -> None:
    """Check that a gallery with the model, of an earlier version, says so and is not called damaged."""
    manifest = Manifest(sha256_of(folder / "model.onnx"), DIM)
    Store.create(folder / "g", manifest, folder / "model.onnx", np.zeros((4, DIM), np.float32))
    shown = lookalike_here("index", "verify", "g", code=1).stdout
    assert "has weights in another file" in shown
    assert "restore" not in shown


def test_text_encoder_of_an_archive(pair_file: Path, tmp_path: Path) -> None:
    """It is refused when the archive is opened, although it is loaded later."""
    members = {name: ModelArchive(pair_file).read(name) for name in MEMBERS}
    for name in (IMAGE, TEXT):
        file = tmp_path / f"{name}.zip"
        write_archive(file, members | {name: changed(ModelProto.FromString(members[name]), PLACES["values"])})
        with pytest.raises(InputError, match=rf"{name}\.zip: .*has weights in another file"):
            Embedder(file, device="cpu")


def test_hub(small_model: ModelProto, tmp_path: Path) -> None:
    data, out = changed(small_model, PLACES["initializer"]), tmp_path / "out.onnx"
    facts = {"lookalike": {"fingerprint": hashlib.sha256(data).hexdigest()}}
    with HubServer().running() as server:
        server.files["models", "me/shop"] = {"model.onnx": data, "config.json": json.dumps(facts).encode()}
        done = subprocess.run(
            [sys.executable, "-m", "lookalike", "hub", "pull", "me/shop", "--out", str(out)],
            env={**os.environ, **server.environment(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, out.exists()) == (2, False)
    assert "has weights in another file" in done.stderr


def test_published_graph(small_model: ModelProto) -> None:
    """The library onnx reads no sparse tensors from other files, so they would be left to ONNX Runtime."""
    proto = ModelProto.FromString(changed(small_model, PLACES["values"]))
    graph = PublishedGraph(proto, {"images": "images"}, "embedding", is_single=False)
    with pytest.raises(InputError, match="has weights in another file"):
        _run(graph, {"images": np.zeros((1, 32, 32, 3), np.uint8)})


def test_format_of_onnx_runtime(small_model: ModelProto, tmp_path: Path) -> None:
    """It would be read as well, and is another one, in which nobody looks for external data."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(small_model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with pytest.raises(InputError, match="not a complete ONNX model"):
        Embedder(tmp_path / "model.ort", device="cpu")


# ---- the parser, against the library onnx


def test_paths_are_those_of_the_format() -> None:
    """All fields by which a model leads to a tensor, in the descriptors of the library."""
    fields: dict[str, dict[int, str]] = {}

    def visit(message: Any) -> None:
        if message.name not in fields:
            inner = [field for field in message.fields if field.message_type is not None]
            fields[message.name] = {field.number: field.message_type.name for field in inner}
            for field in inner:
                visit(field.message_type)

    visit(ModelProto.DESCRIPTOR)
    leading = {"TensorProto"}
    while more := {name for name, inner in fields.items() if leading & {*inner.values()}} - leading:
        leading |= more
    found = {name: {n: to for n, to in fields[name].items() if to in leading} for name in leading}
    assert found == PATHS


def tensors(message: Any) -> Iterator[TensorProto]:
    """Yield all tensors in a message of the library onnx."""
    if isinstance(message, TensorProto):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                yield from tensors(part)


def is_external(model: ModelProto) -> bool:
    return any(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors(model))


small_tensors = st.builds(
    lambda raw, kind, data: TensorProto(
        raw_data=raw,
        data_location=kind,
        float_data=data,
        external_data=[onnx.StringStringEntryProto(key="location", value="w")],
    ),
    st.binary(max_size=6),
    st.sampled_from([None, None, TensorProto.DEFAULT, TensorProto.EXTERNAL]),
    st.lists(st.just(1.5), max_size=2),
)
sparse_tensors = st.builds(lambda a, b: SparseTensorProto(values=a, indices=b), small_tensors, small_tensors)


def nodes(graphs: st.SearchStrategy[GraphProto]) -> st.SearchStrategy[NodeProto]:
    values = st.one_of(
        st.builds(lambda t: {"t": t}, small_tensors),
        st.builds(lambda t: {"tensors": t}, st.lists(small_tensors, max_size=2)),
        st.builds(lambda t: {"sparse_tensor": t}, sparse_tensors),
        st.builds(lambda g: {"g": g}, graphs),
        st.builds(lambda g: {"graphs": g}, st.lists(graphs, max_size=2)),
        st.builds(lambda f: {"f": f}, st.just(0.5)),
    )
    return st.builds(lambda one: attribute(**one), values)


graphs = st.recursive(
    st.builds(lambda t: GraphProto(initializer=t), st.lists(small_tensors, max_size=2)),
    lambda inner: st.builds(
        lambda n, t, s: GraphProto(node=n, initializer=t, sparse_initializer=s),
        st.lists(nodes(inner), max_size=2),
        st.lists(small_tensors, max_size=1),
        st.lists(sparse_tensors, max_size=1),
    ),
    max_leaves=4,
)


def models(graph: GraphProto, more: list[NodeProto]) -> ModelProto:
    model = ModelProto(ir_version=10, graph=graph)
    if more:
        model.functions.add(name="f").node.extend(more)
    return model


any_model = st.builds(models, graphs, st.lists(nodes(graphs), max_size=1))


@given(any_model)
def test_finds_what_the_library_finds(model: ModelProto) -> None:
    found = external_location(memoryview(model.SerializeToString()))
    assert (found is not None) == is_external(model)
    assert found in (None, "w")


@given(any_model, any_model, st.data())
def test_damaged_bytes_hide_nothing(one: ModelProto, other: ModelProto, data: st.DataObject) -> None:
    """Pieces that protobuf joins, bytes that change, disappear or come in: what onnx reads is found."""
    whole = bytearray(one.SerializeToString() + other.SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(whole)))
        whole[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        read = ModelProto.FromString(bytes(whole))
    except Exception:
        read = ModelProto()
    try:
        found = external_location(memoryview(bytes(whole)))
    except ValueError:
        return  # refused
    assert found is not None or not is_external(read)


@pytest.mark.parametrize(
    "piece",
    [
        b"\x70\x01",
        b"\x70\x81\x00",  # a number in more bytes than it needs
        b"\xf0\x00\x01",  # a tag in more bytes than it needs
        b"\xf0\x80\x80\x80\x10\x01",  # a tag beyond 32 bits, which protobuf drops
        b"\x70\x81\x80\x80\x80\x10",  # a location beyond 32 bits
        b"\x70\x00\x70\x01",
        b"\x70\x01\x70\x00",
    ],
)
def test_spellings_of_a_location(piece: bytes) -> None:
    tensor = b"\x2a" + bytes([len(piece)]) + piece
    model = b"\x3a" + bytes([len(tensor)]) + tensor
    assert external_location(memoryview(model)) == ""


def test_time_grows_with_the_number_of_fields_only() -> None:
    """Deep nesting and gigabytes of weights cost nothing; damaged lengths are noticed."""
    inner = b""
    for _ in range(2000):
        attribute = b"\x32" + length(inner) + inner
        node = b"\x2a" + length(attribute) + attribute
        inner = b"\x0a" + length(node) + node
    weights = TensorProto(raw_data=bytes(1 << 24)).SerializeToString()
    graph = inner + b"\x2a" + length(weights) + weights
    assert external_location(memoryview(b"\x3a" + length(graph) + graph)) is None
    with pytest.raises(ValueError, match="cut off or damaged"):
        external_location(memoryview(b"\x3a" + length(graph + b"?") + graph))


def length(data: bytes) -> bytes:
    number, found = len(data), b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])
