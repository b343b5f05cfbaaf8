"""`lookalike doctor` in this environment, and beside the records of the other pair."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import faiss
import onnxruntime
import pytest

from retrieval.machine.devices import driver_cuda, gpus
from retrieval.machine.installation import builds, find_problems
from tests.conftest import lookalike_here

ROOT = Path(__file__).parents[3]


def test_this_environment(tmp_path: Path) -> None:
    code = int(bool(find_problems(builds(), gpus(), driver_cuda())))
    facts = json.loads(lookalike_here("doctor", "--json", code=code, cwd=tmp_path).stdout)
    assert facts["python"] == platform.python_version()
    assert 1 <= facts["cores"] <= len(os.sched_getaffinity(0))
    assert list(facts["providers"]) == onnxruntime.get_available_providers()
    assert facts["libraries"]["torch"]["version"] == version("torch")
    index, runtime = facts["libraries"]["faiss"], facts["libraries"]["onnxruntime"]
    assert (index["version"], runtime["version"]) == (version(index["distribution"]), onnxruntime.__version__)
    assert len(facts["gpus"]) == len(gpus())
    if not gpus():
        assert facts["problems"] == []
        assert all(use.startswith("CPU, ") for use in facts["uses"].values())
        assert "CPU, CPUExecutionProvider, fp32" in facts["uses"].values()
        text = lookalike_here("doctor", cwd=tmp_path).stdout
        assert "GPU           none; no NVIDIA driver\n" in text
        assert f"FAISS         {index['version']} ({index['distribution']})" in text
        assert "\nNothing is wrong.\n" in text
        assert bool(facts["advice"]) == bool(facts["libraries"]["torch"]["cuda"])
        for advice in facts["advice"]:
            assert text.endswith(f"Advice: torch: {advice['text']}\n  smaller: {advice['repair']}\n")
            size = float(advice["text"].partition(": ")[2].partition(" GB")[0])
            expected = size_of_cuda(Path(facts["libraries"]["torch"]["folder"]))
            assert size * 1e9 == pytest.approx(expected, rel=0.02)


def size_of_cuda(torch: Path) -> int:
    """The bytes of torch that need a GPU, counted in its folders and not from records of distributions."""
    files = [file for name in ("nvidia", "triton", "cuda") for file in (torch.parent / name).rglob("*")]
    files += [file for file in (torch / "lib").iterdir() if "cuda" in file.name]
    files = [file for file in files if "__pycache__" not in file.parts and file.is_file()]
    return sum(file.stat().st_size for file in files)


def test_both_pairs_and_a_library_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of a second distribution, and a module in the way of ONNX Runtime, come first on the path."""
    info = tmp_path / "faiss_gpu-1.15.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: faiss-gpu\nVersion: 1.15.1\n")
    (info / "RECORD").write_text("faiss/__init__.py,,1\n")
    (tmp_path / "faiss").symlink_to(Path(faiss.__file__).parent)  # new Pythons skip records of missing files
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libcudart.so.13: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    text = lookalike_here("doctor", code=1, cwd=tmp_path).stdout
    pair, repair, runtime = text.splitlines()[-4:-1]
    installed = builds()["faiss"]
    assert installed is not None
    both = " and ".join(sorted({"faiss-gpu", installed.distribution}))
    assert pair.startswith(f"Wrong: FAISS: {both} overwrite each other's files, and faiss-")
    assert repair.startswith("  repair: ")
    if Path(sys.prefix) == ROOT / ".venv":
        assert repair == f"  repair: make -C {ROOT} --always-make env"
    else:
        assert {"uninstall", installed.distribution, "faiss-gpu", "&&"} <= set(repair.split())
    assert runtime == "Wrong: ONNX Runtime: cannot be loaded: ImportError: libcudart.so.13: cannot open"
