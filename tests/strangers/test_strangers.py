"""Files from strangers: of every kind some that were changed at random are opened, in a process with limits.

Each file is read by the commands that read it, after its checksums were made right where a stranger could.
`python -m tests.strangers.mill` opens as many as one likes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import draw_classes, lookalike_here
from tests.pair import write_pair
from tests.serve.model import write_model
from tests.strangers.mill import KINDS

pytestmark = pytest.mark.slow

_ATTEMPTS = 4


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each kind."""
    folder = tmp_path_factory.mktemp("strangers") / "sample"
    draw_classes(folder / "photos", ("red", "green", "blue"), 4)
    draw_classes(folder / "more", ("black",), 2, first=20)
    rows = "".join(f"{color}/{n}.png,{n}.5\n" for color in ("red", "green", "blue") for n in range(4))
    (folder / "photos" / "prices.csv").write_text("path,price\n" + rows)
    for name in ("model.onnx", "intact.onnx"):
        write_model(folder / name)
    write_pair(folder / "pair.zip")
    vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    np.save(folder / "vectors.npy", vectors)
    np.savez(folder / "vectors.npz", vectors=vectors, id=np.array([f"v{row}" for row in range(20)]))
    columns = {"vector": [*vectors], "id": [f"v{row}" for row in range(20)], "label": ["a", "b"] * 10}
    pq.write_table(pa.table(columns), folder / "vectors.parquet")
    settings = "loss:\n  name: triplet\n  margin: 0.2\nbatch:\n  classes: 2\nepochs: 1\n"
    (folder / "settings.yaml").write_text(settings)
    build = ("--model", "model.onnx", "--metadata", "photos/prices.csv", "--kind", "sq8")
    lookalike_here("index", "build", "g", "photos", *build, cwd=folder)
    lookalike_here("index", "remove", "g", "--where", "price < 1 AND label = 'green'", cwd=folder)
    train = ("--recipe", "scratch", "--data", "folder:photos", "--out", "run", "--set", "epochs=0")
    sizes = ("--set", "preprocess.size=32", "--set", "model.embedding_dim=16")
    lookalike_here("train", *train, *sizes, cwd=folder)
    return folder


def opened(sample: Path, kind: str, count: int) -> list[str]:
    """Return what went wrong with changed files of a kind, opened in a process without threads."""
    command = [sys.executable, "-m", "tests.strangers.mill", str(sample), kind, str(count)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=1800
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == count
    return [f"{line['seed']}: {line['problem']}" for line in found if line["problem"]]


@pytest.mark.parametrize("kind", KINDS)
def test_changed_files_are_refused_in_one_line_or_read(sample: Path, kind: str) -> None:
    assert not opened(sample, kind, _ATTEMPTS)


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("import os; os.system('true')", "FORBIDDEN os.system"),
        ("open('/etc/passwd')", "FORBIDDEN open"),
        ("bytearray(8 << 30)", "MemoryError"),
        ("import pickle; pickle.loads(pickle.dumps(print))", "FORBIDDEN pickle.find_class"),
    ],
)
def test_the_limits_hold(tmp_path: Path, program: str, found: str) -> None:
    """What the test of files rests on: such a process ends, and says why."""
    limits = "from tests.strangers import mill; from pathlib import Path; mill._limit(); "
    code = f"{limits}mill._watch(Path({str(tmp_path)!r})); {program}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    assert found in done.stderr
