"""Detectors of others: real ONNX graphs of each shape of outputs find coloured cells on white."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from retrieval import InputError
from retrieval.search.detector import Detector
from retrieval.search.regions import squares_around

CELL, CELLS = 16, 4  # pixels of a side, cells of a side of the input
SIDE = CELL * CELLS
COUNT = CELLS**2


def _corners() -> np.ndarray:
    y, x = np.divmod(np.arange(COUNT), CELLS)
    return np.stack([x, y, x + 1, y + 1], 1).astype(np.float32) * CELL


def write_detector(
    file: Path, kind: str, side: int | str = SIDE, channels_last: bool = False, numbers: str = "float"
) -> Path:
    """Write a detector whose score of each of 4 x 4 cells is how dark it is, of up to 1."""
    corners = _corners()
    centred = np.hstack([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]])
    constants = {
        "one": np.float32(1),
        "byte": np.float32(255 if numbers == "uint8" else 1),
        "cells": np.array([COUNT], np.int64),
        "column": np.array([COUNT, 1], np.int64),
        "batch_of_scores": np.array([1, 1, COUNT], np.int64),
        "corners": corners,
        "centred": centred,
        "swapped": corners[:, [1, 0, 3, 2]][None] / SIDE,
        "zeros": np.zeros((COUNT, 1), np.float32),
        "ones": np.ones((COUNT, 1), np.float32),
        "most": np.array([100], np.int64),
        "overlap": np.array([0.5], np.float32),
        "least": np.array([0.05], np.float32),
        "third": np.array([2], np.int64),
        "first": np.array([0], np.int64),
        "batch_of_corners": corners[None],
    }
    make = helper.make_node
    nodes = [make("Cast", ["picture"], ["floats"], to=TensorProto.FLOAT)]
    nodes += [make("Transpose", ["floats"], ["planes"], perm=[0, 3, 1, 2] if channels_last else [0, 1, 2, 3])]
    nodes += [
        make("Div", ["planes", "byte"], ["light"]),
        make("AveragePool", ["light"], ["pooled"], kernel_shape=[CELL, CELL], strides=[CELL, CELL]),
        make("ReduceMean", ["pooled"], ["grey"], axes=[1], keepdims=0),
        make("Sub", ["one", "grey"], ["dark"]),
        make("Reshape", ["dark", "cells"], ["flat"]),
        make("Reshape", ["dark", "column"], ["scored"]),
    ]
    if kind == "torchvision":
        nodes += [make("Identity", ["corners"], ["boxes"]), make("Identity", ["flat"], ["scores"])]
        outputs = ["boxes", "scores"]
    elif kind == "suppressed":  # as many as there are, by the operator of ONNX
        nodes += [
            make("Reshape", ["dark", "batch_of_scores"], ["of_class"]),
            make(
                "NonMaxSuppression",
                ["batch_of_corners", "of_class", "most", "overlap", "least"],
                ["selected"],
            ),
            make("Gather", ["selected", "third"], ["indices"], axis=1),
            make("Squeeze", ["indices", "one_axis"], ["chosen"]),
            make("Gather", ["corners", "chosen"], ["boxes"]),
            make("Gather", ["flat", "chosen"], ["scores"]),
        ]
        constants["one_axis"] = np.array([1], np.int64)
        outputs = ["boxes", "scores"]
    elif kind == "tensorflow":
        nodes += [make("Identity", ["swapped"], ["detection_boxes"])]
        nodes += [make("Reshape", ["dark", "row"], ["detection_scores"])]
        constants["row"] = np.array([1, COUNT], np.int64)
        outputs = ["detection_scores", "detection_boxes"]
    elif kind == "rows":
        nodes += [make("Concat", ["corners", "scored", "zeros"], ["table"], axis=1)]
        nodes += [make("Unsqueeze", ["table", "first"], ["rows"])]
        outputs = ["rows"]
    elif kind == "yolov5":
        nodes += [make("Concat", ["centred", "scored", "ones", "zeros"], ["table"], axis=1)]
        nodes += [make("Unsqueeze", ["table", "first"], ["rows"])]
        outputs = ["rows"]
    else:  # YOLO of version 8: channels first, and many more places than channels
        nodes += [make("Concat", ["centred", "zeros", "scored"], ["table"], axis=1)]
        nodes += [make("Tile", ["table", "times"], ["many"]), make("Transpose", ["many"], ["turned"])]
        nodes += [make("Unsqueeze", ["turned", "first"], ["rows"])]
        constants["times"] = np.array([20, 1], np.int64)
        outputs = ["rows"]
    shape = [1, side, side, 3] if channels_last else [1, 3, side, side]
    kinds = {"float": TensorProto.FLOAT, "uint8": TensorProto.UINT8}
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("picture", kinds[numbers], shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    onnx.save(model, file)
    return file


@pytest.fixture
def picture() -> np.ndarray:
    """White, of 128 x 64 pixels, with a black cell in the second row and a grey one at the lower right."""
    image = np.full((64, 128, 3), 255, np.uint8)
    image[16:32, 32:64] = 0
    image[48:64, 96:128] = 100
    return image


KINDS = ("torchvision", "suppressed", "tensorflow", "rows", "yolov5", "yolov8")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("channels_last", "numbers"), [(False, "float"), (True, "uint8")])
def test_each_shape_of_outputs_is_read(
    kind: str, channels_last: bool, numbers: str, picture: np.ndarray, tmp_path: Path
) -> None:
    file = write_detector(tmp_path / "d.onnx", kind, channels_last=channels_last, numbers=numbers)
    found = Detector(file).boxes(picture)
    np.testing.assert_allclose(found, [[0.25, 0.25, 0.5, 0.5], [0.75, 0.75, 1, 1]], atol=1e-6)
    assert Detector(file).boxes(np.full((50, 70, 3), 255, np.uint8)).shape == (0, 4)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda file: file.unlink(), "cannot be read"),
        (lambda file: file.write_bytes(b"no model"), "not a complete ONNX model"),
        (lambda file: _save(file, ["a", "b"], [1, 3, 64, 64]), "one input of one picture"),
        (lambda file: _save(file, ["a"], [1, 3, 64]), "one input of one picture"),
        (lambda file: _save(file, ["a"], [4, 3, 64, 64]), "one input of one picture"),
        (lambda file: _save(file, ["a"], [1, 3, 9000, 9000]), "over 4096 pixels"),
    ],
)
def test_what_is_no_detector_is_refused(spoil: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    file = write_detector(tmp_path / "d.onnx", "rows")
    spoil(file)
    with pytest.raises(InputError, match=said):
        Detector(file)


def test_outputs_that_are_no_boxes_are_refused(picture: np.ndarray, tmp_path: Path) -> None:
    _save(tmp_path / "d.onnx", ["a"], [1, 3, 64, 64])
    with pytest.raises(InputError, match="neither boxes with scores nor rows of boxes: out0"):
        Detector(tmp_path / "d.onnx").boxes(picture)


def test_weights_in_other_files_are_not_read(tmp_path: Path) -> None:
    file = write_detector(tmp_path / "d.onnx", "rows")
    model = onnx.load(file)
    onnx.save(model, file, save_as_external_data=True, location="weights", size_threshold=0)
    assert (tmp_path / "weights").exists()
    with pytest.raises(InputError, match="has weights in another file"):
        Detector(file)


def _save(file: Path, names: list[str], shape: list[int]) -> None:
    """Write a model that returns its inputs."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
    outs = [helper.make_tensor_value_info(f"out{n}", TensorProto.FLOAT, None) for n in range(len(names))]
    nodes = [helper.make_node("Identity", [name], [f"out{n}"]) for n, name in enumerate(names)]
    graph = helper.make_graph(nodes, "same", ends, outs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9), file)


def test_the_least_square_is_around_its_box() -> None:
    random = np.random.default_rng(0)
    for _ in range(100):
        width, height = random.integers(10, 300, 2).tolist()
        ends = np.sort(random.random((5, 2, 2)), axis=1)
        boxes = ends.reshape(5, 4)
        squares = squares_around(boxes, width, height)
        sides = (squares[:, 2:] - squares[:, :2]) * [width, height]
        np.testing.assert_allclose(sides[:, 0], sides[:, 1], atol=1e-6)
        longest = ((boxes[:, 2:] - boxes[:, :2]) * [width, height]).max(1)
        np.testing.assert_allclose(sides[:, 0], np.minimum(longest, min(width, height)), atol=1e-6)
        assert (squares >= -1e-9).all()
        assert (squares <= 1).all()
        fits = longest <= min(width, height)
        assert (squares[fits, :2] <= boxes[fits, :2] + 1e-9).all()
        assert (squares[fits, 2:] >= boxes[fits, 2:] - 1e-9).all()
