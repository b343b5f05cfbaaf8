"""FAISS is loaded by what searches, and by nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import faiss

from retrieval.machine import lazy_faiss
from tests.retrieval.filling import bare_gallery, commit

ROOT = Path(__file__).parents[3]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; {program}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_a_gallery_is_described_without_faiss_and_searched_with_it(tmp_path: Path) -> None:
    commit(bare_gallery(tmp_path / "g"), ["a", "b", "c"])
    program = """
from retrieval.cli import cli
for words in (["index", "info"], ["check", "decisions"], ["index", "verify"]):
    cli.main([*words, sys.argv[1]], standalone_mode=False)
from retrieval import Gallery, metrics
gallery = Gallery.open(sys.argv[1])
assert "faiss" not in sys.modules, "loaded without a search"
import numpy as np
gallery.search_vectors(np.eye(1, 48, dtype=np.float32), 2)
assert "faiss" in sys.modules, "not loaded by a search"
"""
    done = run(program, str(tmp_path / "g"))
    assert done.returncode == 0, done.stderr
    assert "faiss" not in done.stderr


def test_without_faiss_a_command_names_the_extras(tmp_path: Path) -> None:
    """The module is hidden from a real command, not replaced."""
    commit(bare_gallery(tmp_path / "g"), ["a", "b", "c"])
    program = "sys.modules['faiss'] = None\nfrom retrieval.cli import main; main(sys.argv[1:])"
    done = run(program, "search", str(tmp_path / "g"), "--id", "1")
    hint = "needs faiss: pip install 'lookalike[cpu]', or 'lookalike[gpu]' for an NVIDIA GPU"
    assert done.stderr == f"lookalike: this command {hint}\n"
    assert done.returncode == 1


def test_numbers_of_the_metrics_are_those_of_faiss() -> None:
    assert lazy_faiss.METRIC_INNER_PRODUCT == faiss.METRIC_INNER_PRODUCT
    assert lazy_faiss.METRIC_L2 == faiss.METRIC_L2
