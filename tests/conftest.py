"""Session fixtures: images, a run and its model file. Helpers to run commands."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from retrieval.cli import main
from retrieval.system import HANG_UP

# No deadline: the time of an example depends on the machine. Unattended runs repeat the same examples.
settings.register_profile("lookalike", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("lookalike")

# gRPC starts its threads again in a forked process, which ends some. PostgreSQL, as another user, is forked.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A shell's background jobs ignore SIGINT, programs under nohup SIGHUP, and so would every program that a test
# starts. Handled signals are not inherited. (preexec_fn would fork, which threads of gRPC do not survive.)
for number in filter(None, (signal.SIGINT, HANG_UP)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

SCRIPT = str(Path(sys.executable).with_name("lookalike"))  # the console script
CHECKOUT = str(Path(__file__).parents[1])
SHARED = Path(__file__).parents[2] / "shared" / "data"


def draw(seed: int, size: tuple[int, int] = (48, 40), hue: int = 0) -> Image.Image:
    """Return an image of coloured blocks, determined by the seed; images of one hue form a class."""
    random = np.random.default_rng([hue, seed])
    blocks = random.integers(0, 120, (5, 6, 3))
    blocks[..., hue % 3] += 110
    return Image.fromarray(blocks.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)


def draw_classes(
    folder: Path,
    classes: int | Iterable[str],
    per_class: int,
    *,
    first: int = 0,
    hue: int = 0,
    size: tuple[int, int] = (48, 40),
    suffix: str = "png",
) -> Path:
    """Write images into a folder, with a folder for each class; return it.

    Args:
        folder: Folder, which need not exist.
        classes: Names of the classes; of a number, 00, 01 and so on.
        per_class: Images of each.
        first: Seed of the first image of each, which is also its name.
        hue: Hue of the first class; each next one has the next hue.
        size: Width and height.
        suffix: Format.
    """
    names = [f"{number:02d}" for number in range(classes)] if isinstance(classes, int) else classes
    for number, name in enumerate(names, hue):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for seed in range(first, first + per_class):
            draw(seed, size, number).save(folder / name / f"{seed}.{suffix}", quality=95)
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from going through all imported modules again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Share the tests among workers as `tests.scheduling` says."""
    from tests.scheduling import Scheduling  # xdist may be absent

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of eight PNG images each, one folder per class."""
    return draw_classes(tmp_path_factory.mktemp("data") / "shop", ("red", "green", "blue"), 8)


@pytest.fixture(scope="session")
def untrained_run(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Path:
    """A run of zero epochs: a checkpoint of the initial network."""
    folder = tmp_path_factory.mktemp("runs") / "untrained"
    words = ["train", "--recipe", "scratch", "--data", f"folder:{shop}", "--out", str(folder)]
    lookalike_here(
        *words, "--set", "epochs=0", "--set", "preprocess.size=32", "--set", "model.embedding_dim=16"
    )
    return folder


@pytest.fixture(scope="session")
def model_file(untrained_run: Path) -> Path:
    """The exported model of the untrained run."""
    file = untrained_run.with_name("model.onnx")
    lookalike_here("export", str(untrained_run), "--out", str(file))
    return file


@pytest.fixture(scope="session")
def second_model_file(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Path:
    """The exported model of another untrained run, of 24 dimensions."""
    folder = tmp_path_factory.mktemp("second")
    words = ["train", "--recipe", "scratch", "--data", f"folder:{shop}", "--out", str(folder / "run")]
    settings = ["epochs=0", "seed=1", "preprocess.size=32", "model.embedding_dim=24"]
    lookalike_here(*words, *(word for one in settings for word in ("--set", one)))
    lookalike_here("export", str(folder / "run"), "--out", str(folder / "new.onnx"))
    return folder / "new.onnx"


@pytest.fixture(scope="session")
def pair_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model archive whose texts with colour words are near images of that colour; see `tests.pair`."""
    from tests.pair import write_pair  # onnx takes a while to import

    return write_pair(tmp_path_factory.mktemp("pair") / "pair.zip")


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory if possible: a killed process loses nothing that it has written."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def lookalike(*words: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process and check its exit code."""
    command = [sys.executable, "-m", "lookalike", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)
    assert done.returncode == code, f"{words} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def lookalike_here(*words: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which imports torch only once, and check its exit code."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as restored:
        restored.enter_context(contextlib.redirect_stdout(stdout))
        restored.enter_context(contextlib.redirect_stderr(stderr))
        restored.enter_context(contextlib.chdir(cwd or Path.cwd()))
        if "torch" in sys.modules:  # training draws random numbers
            restored.enter_context(sys.modules["torch"].random.fork_rng(devices=[]))
        exited = restored.enter_context(pytest.raises(SystemExit))
        main(words)
    done = subprocess.CompletedProcess(
        words, int(exited.value.code or 0), stdout.getvalue(), stderr.getvalue()
    )
    assert done.returncode == code, f"{words} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def wait_until(condition: Callable[[], object], seconds: int = 30) -> None:
    """Wait until a condition holds, at most some seconds."""
    for _ in range(100 * seconds):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"the condition did not hold within {seconds} seconds")


def unzip_shared(name: str, target: Path) -> Path:
    """Unpack an archive of real images; skip the test if it is absent."""
    archive = SHARED / name
    if not archive.is_file():
        pytest.skip(f"needs the real images of {name}, which are not on this machine")
    with zipfile.ZipFile(archive) as file:
        file.extractall(target)
    return target
