"""Tests of `lookalike model info`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from onnxruntime import quantization

from retrieval.commands.model import model
from tests.conftest import lookalike_here

SIDE = 8


def info(*words: str | Path) -> str:
    """Run the command in this process and return its stdout."""
    done = CliRunner().invoke(model, ["info", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_json_has_all_metadata(model_file: Path) -> None:
    facts = json.loads(info(model_file, "--device", "cpu", "--batch-size", "3", "--json"))
    stored = {entry.key: json.loads(entry.value) for entry in onnx.load(model_file).metadata_props}
    images = stored.pop("lookalike.training_images")
    assert facts["training_images"] == {key: images[key] for key in ("images", "classes")}
    assert {f"lookalike.{part}": value for part, value in facts["metadata"].items()} == stored
    assert facts["bytes"] == model_file.stat().st_size
    assert facts["fingerprint"] == sha256(model_file.read_bytes()).hexdigest()
    assert facts["map"] is True
    assert facts["provider"] == "CPUExecutionProvider"
    assert set(facts["latency_ms"]) == {"1", "3", "4", "32"}
    assert all(ms > 0 for ms in facts["latency_ms"].values())
    assert facts["graph"]["operators"]["Conv"] == 4
    assert facts["graph"]["opset"] == {"ai.onnx": 20}


def test_provider_that_does_not_run_on_the_device_is_refused(model_file: Path) -> None:
    done = lookalike_here("model", "info", str(model_file), "--device", "cpu", "--provider", "cuda", code=2)
    note, error = done.stderr.splitlines()
    assert note == "--provider is now part of --device, as in --device openvino"
    assert error.startswith("lookalike: provider cuda: does not run on the device cpu; leave out ")
    assert "--provider" not in lookalike_here("model", "info", "--help").stdout


def test_text_is_aligned_and_fits_the_terminal(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = info(model_file, "--no-latency").splitlines()
    column = lines[0].index(str(model_file)[:5])
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines)
    assert all(len(line) <= 100 or " " not in line[column:] for line in lines[1:])
    titles = [title for line in lines if (title := line[:column].strip())]
    metadata_titles = {
        "file",
        "fingerprint",
        "preprocess",
        "embedding",
        "map",
        "data",
        "model",
        "loss",
        "created",
    }
    assert metadata_titles | {"parameters", "operators", "opset", "runs on"} <= set(titles)
    assert "latency" not in titles
    assert "backbone conv4" in " ".join(lines)


def test_no_latency_skips_the_benchmark(model_file: Path) -> None:
    assert json.loads(info(model_file, "--no-latency", "--json"))["latency_ms"] is None


def test_graph_is_unknown_without_onnx(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)  # Python's marker of a module that cannot be imported
    assert json.loads(info(model_file, "--no-latency", "--json"))["graph"] is None
    assert info(model_file, "--no-latency").count("lookalike[train]") == 3


def test_parameter_count_of_float_and_int8_networks(tmp_path: Path) -> None:
    """A linear layer has 192 x 16 weights and 16 biases in any data type."""
    linear = linear_model(tmp_path / "m.onnx")
    assert json.loads(info(linear, "--no-latency", "--json"))["graph"]["parameters"] == 192 * 16 + 16
    quantization.quantize_static(linear, tmp_path / "int8.onnx", Noise(), per_channel=True)
    proto = onnx.load(tmp_path / "int8.onnx")
    helper.set_model_props(proto, {p.key: p.value for p in onnx.load(linear).metadata_props})
    onnx.save(proto, tmp_path / "int8.onnx")
    graph = json.loads(info(tmp_path / "int8.onnx", "--no-latency", "--json"))["graph"]
    assert graph["operators"]["DequantizeLinear"] > 1
    assert graph["parameters"] == 192 * 16 + 16


def test_control_sequences_in_metadata_are_escaped(tmp_path: Path) -> None:
    odd = {"config": None, "source": "\x1b[2Jtimm:x\nfile", "nested": {"a": [1, None, {"b": 0.123456789}]}}
    text = info(linear_model(tmp_path / "m.onnx", odd), "--no-latency")
    assert "\x1b" not in text
    assert r"\x1b[2Jtimm:x\nfile" in text
    assert "b 0.123457" in text


def test_unusable_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    done = lookalike_here("model", "info", "m.onnx", code=2, cwd=tmp_path)
    assert done.stdout == ""
    assert done.stderr.startswith("lookalike: m.onnx: not a complete ONNX model")
    assert len(done.stderr.splitlines()) == 1


def linear_model(path: Path, provenance: object = None) -> Path:
    """Write a model of one linear layer on raw pixels; the shape for flattening is not a parameter."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["numbers", "shape"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weight", "bias"], ["raw"]),
        helper.make_node("LpNormalization", ["raw"], ["embedding"], axis=1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", SIDE, SIDE, 3])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["N", 16])],
        [
            onnx.numpy_helper.from_array(random.normal(size=(192, 16)).astype(np.float32), "weight"),
            onnx.numpy_helper.from_array(random.normal(size=16).astype(np.float32), "bias"),
            helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 192]),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    facts = {"format": {"version": 1}, "preprocess": {"size": SIDE}, "embedding": {"dim": 16}}
    facts["provenance"] = provenance or {}
    helper.set_model_props(proto, {f"lookalike.{name}": json.dumps(value) for name, value in facts.items()})
    onnx.save_model(proto, path)
    return path


class Noise(quantization.CalibrationDataReader):
    """Noise images for calibration."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self.batches: Iterator[np.ndarray] = iter(random.integers(0, 256, (4, 2, SIDE, SIDE, 3), np.uint8))

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"images": batch}
