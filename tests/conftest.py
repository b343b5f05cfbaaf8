"""Real pictures, a real model file and a real gallery, made once for all tests."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from retrieval.cli import main

# How long an example takes says more about the machine than about the code. New examples are for people who
# can look into what they find; unattended runs repeat the same ones.
settings.register_profile("lookalike", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("lookalike")

SCRIPT = str(Path(sys.executable).with_name("lookalike"))  # the console script
CHECKOUT = str(Path(__file__).parents[1])
SHARED = Path(__file__).parents[2] / "shared" / "data"


def draw(seed: int, size: tuple[int, int] = (48, 40), hue: int = 0) -> Image.Image:
    """A picture of coloured blocks; the same seed gives the same picture, the same hue a family."""
    random = np.random.default_rng([hue, seed])
    blocks = random.integers(0, 120, (5, 6, 3))
    blocks[..., hue % 3] += 110
    return Image.fromarray(blocks.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of eight PNG pictures each, one folder a class."""
    folder = tmp_path_factory.mktemp("data") / "shop"
    for hue, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir(parents=True)
        for seed in range(8):
            draw(seed, hue=hue).save(folder / name / f"{seed}.png")
    return folder


@pytest.fixture(scope="session")
def untrained_run(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Path:
    """A run of no epochs: a real checkpoint of the network that training would begin with."""
    folder = tmp_path_factory.mktemp("runs") / "untrained"
    words = ["train", "--data", f"folder:{shop}", "--out", str(folder), "--set", "epochs=0"]
    lookalike_here(*words, "--set", "preprocess.size=32", "--set", "model.embedding_dim=16")
    return folder


@pytest.fixture(scope="session")
def model_file(untrained_run: Path) -> Path:
    """An exported model."""
    file = untrained_run.with_name("model.onnx")
    lookalike_here("export", str(untrained_run), "--out", str(file))
    return file


def lookalike(*words: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, and insist on its exit code."""
    command = [sys.executable, "-m", "retrieval.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)
    assert done.returncode == code, f"{words} left with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def lookalike_here(*words: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """As `lookalike`, in this process, which imports torch once: where the process as such is not tested."""
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as as_before:
        as_before.enter_context(contextlib.redirect_stdout(printed))
        as_before.enter_context(contextlib.redirect_stderr(said))
        as_before.enter_context(contextlib.chdir(cwd or Path.cwd()))
        if "torch" in sys.modules:  # training draws random numbers
            as_before.enter_context(sys.modules["torch"].random.fork_rng(devices=[]))
        left = as_before.enter_context(pytest.raises(SystemExit))
        main(words)
    done = subprocess.CompletedProcess(words, int(left.value.code or 0), printed.getvalue(), said.getvalue())
    assert done.returncode == code, f"{words} left with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that comes about by itself."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about within half a minute")


def restore_signals() -> None:
    """For a child process: below a shell that runs things in the background, SIGINT is ignored, and below
    nohup SIGHUP."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def unzip_shared(name: str, target: Path) -> Path:
    """Unpack an archive of real images; skip the test where the archives are not."""
    archive = SHARED / name
    if not archive.is_file():
        pytest.skip(f"needs the real images of {name}, which are not on this machine")
    with zipfile.ZipFile(archive) as file:
        file.extractall(target)
    return target
