"""A model that never ends does not keep a command from ending."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper
from PIL import Image

from retrieval import Embedder
from retrieval.ingest.pipeline import embed_ahead
from retrieval.model.interruption import interruptible
from retrieval.storage.manifest import Manifest
from retrieval.storage.store import Store
from tests.conftest import draw, wait_until
from tests.retrieval.filling import DIM
from tests.serve.model import write_model


def value(name: str, kind: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def write_endless_model(path: Path, condition: str = "always") -> Path:
    """Write the small model with an endless loop at its beginning: always, or if all images are "white"."""
    model = onnx.load(write_model(path))
    body = GraphProto(name="body")
    body.input.extend([value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, [])])
    body.input.append(value("x", TensorProto.FLOAT, ["N", 32, 32, 3]))
    body.node.append(helper.make_node("Identity", ["on"], ["on_still"]))
    body.node.append(helper.make_node("Neg", ["x"], ["x_again"]))
    body.output.append(value("on_still", TensorProto.BOOL, []))
    body.output.append(value("x_again", TensorProto.FLOAT, ["N", 32, 32, 3]))
    cast, *others = model.graph.node
    for node in others:
        node.input[:] = ["looped" if name == "numbers" else name for name in node.input]
    constants = {"limit": np.float32(254.5 if condition == "white" else -1.0), "four": np.zeros(4, np.int64)}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(v), name) for name, v in constants.items()
    )
    del model.graph.node[:]
    model.graph.node.extend(
        [
            cast,
            helper.make_node("ReduceMin", ["numbers"], ["least"], keepdims=0),
            helper.make_node("Greater", ["least", "limit"], ["begin"]),
            helper.make_node("Loop", ["", "begin", "numbers"], ["looped"], body=body),
            *others,
        ]
    )
    onnx.checker.check_model(model)
    onnx.save_model(model, path)
    return path


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_endless_model(tmp_path_factory.mktemp("endless") / "model.onnx")


def is_computing(process: subprocess.Popen[str]) -> bool:
    """Return whether a process has used a second of CPU time without reading anything: the model runs."""
    folder = Path(f"/proc/{process.pid}")

    def used() -> tuple[float, str]:
        fields = folder.joinpath("stat").read_text().rpartition(")")[2].split()
        read = folder.joinpath("io").read_text().partition("\n")[0]
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), read

    assert process.poll() is None, process.communicate()
    before, read = used()
    for _ in range(1000):
        time.sleep(0.05)
        now, then = used()
        if then != read:
            return False
        if now > before + 1:
            return True
    return False


def ends(words: list[str], number: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """Start the command, send it a signal while the model computes, and return how it ended."""
    command = [sys.executable, "-m", "lookalike", *words]
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: is_computing(process), 60)
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


@pytest.mark.skipif(not Path("/proc/self/io").is_file(), reason="needs a system that counts what is read")
@pytest.mark.parametrize(
    ("command", "number"),
    [("info", signal.SIGTERM), ("info", signal.SIGINT), ("build", signal.SIGTERM), ("serve", signal.SIGTERM)],
)
def test_a_signal_ends_the_command(endless: Path, tmp_path: Path, command: str, number: int) -> None:
    gallery = tmp_path / "g"
    if command == "serve":
        manifest = Manifest(Embedder(endless).fingerprint, DIM)
        Store.create(gallery, manifest, endless, np.zeros((4, DIM), np.float32))
    draw(1).save(tmp_path / "a.png")
    words = {
        "info": ["model", "info", str(endless)],
        "build": ["index", "build", str(gallery), str(tmp_path), "--model", str(endless)],
        "serve": ["serve", str(gallery), "--no-page", "--port", "0"],
    }
    done = ends(words[command], number)
    assert done.returncode == (0 if command == "serve" else 1)
    assert done.stderr.splitlines()[-1].startswith("lookalike: interrupted" if done.returncode else "stopped")
    assert done.stdout == ""
    assert command == "serve" or not gallery.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_images_on_which_the_model_does_not_end(tmp_path: Path) -> None:
    """The threads of the pipeline end when it is closed."""
    embedder = Embedder(write_endless_model(tmp_path / "model.onnx", "white"), device="cpu")
    assert embedder.embed_pixels(np.zeros((4, 32, 32, 3), np.uint8)).shape == (4, DIM)
    draw(1).save(tmp_path / "a.png")
    paths = [tmp_path / "a.png"] * embedder.batch_size + [tmp_path / "white.png"]
    Image.new("RGB", (32, 32), "white").save(paths[-1])
    batches = embed_ahead(paths, embedder)
    assert len(next(batches).vectors) == embedder.batch_size
    began = time.monotonic()
    batches.close()
    assert time.monotonic() < began + 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("embed")]


def test_results_and_errors_come_through() -> None:
    def where(fail: bool) -> str:
        if fail:
            raise ValueError("as it is")
        return threading.current_thread().name

    assert interruptible(where)(False) == "inference"
    with pytest.raises(ValueError, match="as it is"):
        interruptible(where)(True)
    found: list[str] = []
    other = threading.Thread(target=lambda: found.append(interruptible(where)(False)), name="other")
    other.start()
    other.join()
    assert found == ["other"]
