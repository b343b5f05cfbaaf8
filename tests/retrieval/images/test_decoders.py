"""Tests of decoding in processes: the same results as in threads, crashes, and ends."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from retrieval import ImageError, Preprocess
from retrieval.images import decode
from retrieval.images.decode import decode_ahead, read_ahead
from retrieval.images.decoders import POSSIBLE, DecodingProcess, Request
from retrieval.images.location import Location
from retrieval.images.picture import Decoded, File, KnownFile
from tests.conftest import draw
from tests.retrieval.images.test_decode import write_files

pytestmark = pytest.mark.skipif(not POSSIBLE, reason="processes need Unix sockets")
PREPROCESS = Preprocess(size=16)
FATAL = 77  # width of the image that ends its decoder


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[DecodingProcess]:
    """Let processes begin after 10 files on any machine, which waits for them; return those started."""
    found: list[DecodingProcess] = []

    class Recorded(DecodingProcess):
        def __init__(self, setup: bytes) -> None:
            found.append(self)
            super().__init__(setup)

        def ask(self, request: list[Request]) -> Any:  # type: ignore[override]
            assert sum(len(one[0]) for one in request if one) < 32  # so many files at a time
            return super().ask(request)

    monkeypatch.setattr(decode._Own, "has_lost_one", True)
    for name, value in {"_MANY": 1, "_JUDGED": 10, "_MUCH": 0.0, "DecodingProcess": Recorded}.items():
        monkeypatch.setattr(decode, name, value)
    monkeypatch.setattr(decode, "cores", lambda: 2)
    return found


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Two hundred files of different sizes, every tenth one invalid; one is missing."""
    paths = write_files(tmp_path, 200, "jpg")
    paths[150].unlink()
    return paths


def assert_same(found: Iterable[File], wanted: Iterable[File]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert type(ours) is type(theirs)
        if isinstance(ours, ImageError) and isinstance(theirs, ImageError):
            assert (str(ours), ours.reason) == (str(theirs), theirs.reason)
        if isinstance(ours, Decoded) and isinstance(theirs, Decoded):
            np.testing.assert_array_equal(ours.pixels, theirs.pixels)
            assert ours.content_sha256 == theirs.content_sha256
            assert (ours.width, ours.height) == (theirs.width, theirs.height)


def in_threads(places: Iterable[Path | Location]) -> list[File]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_MANY", 1000)
        return [*decode_ahead(places, PREPROCESS, side=PREPROCESS.scaled)]


@pytest.mark.parametrize("wait", [True, False])
def test_results_are_those_of_threads(
    paths: list[Path], started: list[DecodingProcess], monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    """Also where threads go on until the processes are ready."""
    monkeypatch.setattr(decode._Own, "has_lost_one", wait)
    paths = paths if wait else paths * 20
    found = list(decode_ahead(paths, PREPROCESS, side=PREPROCESS.scaled))
    assert len(started) == 2
    assert any(process._ready for process in started)
    assert_same(found, in_threads(paths))
    assert all(ended(process) for process in started)


def test_parts_tar_files_and_urls(paths: list[Path], started: list[DecodingProcess], tmp_path: Path) -> None:
    """The memory of fsspec is that of this process, which reads the bytes."""
    names = [path.name for path in paths if path.exists()]
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        for name in names:
            archive.add(tmp_path / name, arcname=name)
    storage = fsspec.filesystem("memory")
    for name in names:
        storage.pipe_file(f"/shop/{name}", (tmp_path / name).read_bytes())
    parts = [f"#xywh=percent:{left},0,50,50" for left in (0, 25, 50)]
    places: list[Path | Location] = [
        *paths,
        *(tmp_path / "all.tar" / name for name in [*names, "none.jpg"]),
        *(Location.parse(f"memory://shop/{name}") for name in [*names, "none.jpg"]),
        *(Path(f"{path}{part}") for path in paths for part in parts),
    ]
    try:
        found = list(decode_ahead(places, PREPROCESS, side=PREPROCESS.scaled))
        assert len(started) == 2
        assert_same(found, in_threads(places))
    finally:
        storage.rm("/shop", recursive=True)


def test_known_files(paths: list[Path], started: list[DecodingProcess]) -> None:
    first = in_threads(paths)
    known = {file.content_sha256 for file in first[::2] if isinstance(file, Decoded)}
    found = list(read_ahead(paths, PREPROCESS, side=PREPROCESS.scaled, known=known.__contains__))
    assert started
    for file, before in zip(found, first, strict=True):
        assert isinstance(file, KnownFile) == (isinstance(before, Decoded) and before.content_sha256 in known)


def test_large_images_are_decoded_within_the_budget_of_all(
    paths: list[Path], started: list[DecodingProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in paths[60::20]:
        draw(1, (100, 100)).save(path)
    monkeypatch.setattr(decode, "PIXELS_IN_FLIGHT", 2 * 800)  # 800 for each of two processes
    here = set()  # pixels of images that were decoded in this process

    class Here(decode.Budget):
        def holding(self, pixels: int) -> object:  # type: ignore[override]
            here.add(pixels)
            return super().holding(pixels)

    monkeypatch.setattr(decode, "Budget", Here)
    found = list(decode_ahead(paths, PREPROCESS, side=None))
    assert started
    assert 10_000 in here
    assert all(isinstance(file, Decoded) for file in found[60::20])


def fatal(pixels: np.ndarray) -> np.ndarray:
    """End the process at the image of a certain width."""
    if pixels.shape[1] == FATAL:
        os.kill(os.getpid(), signal.SIGSEGV)
    return PREPROCESS(pixels)


def test_an_image_that_ends_its_decoder_is_unusable(
    paths: list[Path], started: list[DecodingProcess]
) -> None:
    draw(0, (FATAL, 30)).save(paths[120])
    found = list(decode_ahead(paths, fatal))
    assert len(started) > 2
    error = found.pop(120)
    assert isinstance(error, ImageError)
    assert (error.reason, error.source) == (ImageError.DAMAGED, str(paths[120]))
    assert "signal 11" in error.detail
    paths.pop(120)
    assert_same(found, in_threads(paths))


@pytest.mark.parametrize("at", [20, 90])
def test_killed_processes_lose_nothing(paths: list[Path], started: list[DecodingProcess], at: int) -> None:
    found = []
    for number, file in enumerate(decode_ahead(paths, PREPROCESS, side=PREPROCESS.scaled)):
        found.append(file)
        if number == at:
            for process in filter(running, started):
                process.kill()
    assert_same(found, in_threads(paths))


def test_functions_that_a_process_cannot_have_run_in_threads(
    paths: list[Path], started: list[DecodingProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = in_threads(paths)
    side = PREPROCESS.scaled
    assert_same(decode_ahead(paths, lambda pixels: PREPROCESS(pixels), side=side), wanted)
    assert not started  # it cannot be pickled
    (tmp_path / "nowhere.py").write_text(
        "from retrieval import Preprocess\ndef scaled(pixels):\n    return Preprocess(size=16)(pixels)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    nowhere = importlib.import_module("nowhere")
    assert_same(decode_ahead(paths, nowhere.scaled, side=side), wanted)
    assert started
    assert all(ended(process) for process in started)


def test_few_files_or_cores_start_none(paths: list[Path], started: list[DecodingProcess]) -> None:
    list(decode_ahead(paths[:9], PREPROCESS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_MANY", 4)
        list(decode_ahead(paths, PREPROCESS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_MUCH", 1.0)
        for _ in decode_ahead(paths, PREPROCESS):
            time.sleep(0.001)
    assert not started


def test_early_stop_ends_the_processes(paths: list[Path], started: list[DecodingProcess]) -> None:
    files = decode_ahead(paths * 20, PREPROCESS)
    for _ in range(100):
        next(files)
    files.close()  # type: ignore[attr-defined]
    assert started
    assert all(ended(process) for process in started)


def test_processes_end_with_a_killed_one(paths: list[Path], tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from retrieval import Preprocess
from retrieval.images import decode
decode._MANY, decode._JUDGED, decode._MUCH = 1, 10, 0.0
class Printed(decode.DecodingProcess):
    def __init__(self, setup):
        super().__init__(setup)
        print(self._process.pid, flush=True)
decode.DecodingProcess = Printed
decode.cores = lambda: 2
for _ in decode.decode_ahead([Path({str(paths[0])!r})] * 10**6, Preprocess(size=16)):
    pass
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    ) as parent:
        assert parent.stdout is not None
        children = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(map(alive, children))
        parent.kill()
    end = time.monotonic() + 20
    while any(map(alive, children)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, children))


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended may wait for its parent's parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def running(process: DecodingProcess) -> bool:
    return hasattr(process, "_process") and process._process.poll() is None


def ended(process: DecodingProcess) -> bool:
    return process._process.poll() is not None
