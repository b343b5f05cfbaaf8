"""Data loader: identical batches for any number of workers and processes, and clear errors."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval import InputError, LookalikeError, Preprocess, load_image
from tests.conftest import draw, wait_until
from train.config import AugmentConfig, Config, LoaderConfig
from train.input import cache
from train.input.loader import LoadedBatch, Loader, default_workers, requests

PREPROCESS = Preprocess(size=20, resize=24)
NOTHING = AugmentConfig(rotate=0, scale=0, shear=0, shift=0, flip=False)
CENTER = AugmentConfig(symmetries=4)
RANDOM = NOTHING.model_copy(update={"crop": "random", "flip": True, "padding": 2})
RESIZED = AugmentConfig(crop="resized", color=0.2)


pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # 3 on 2 cores


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Three classes of four images."""
    for number in range(12):
        draw(number, (48, 30 + number), hue=number // 4).save(tmp_path / f"{number:02d}.png")
    return sorted(tmp_path.glob("*.png"))


LABELS = np.arange(12) // 4
CPU = torch.device("cpu")


@contextmanager
def loader(paths: list[Path], augment: AugmentConfig = NOTHING, **more: object) -> Iterator[Loader]:
    settings = {name: more.pop(name) for name in ("workers", "cache") if name in more}
    config = Config(data="", preprocess=PREPROCESS, augment=augment, loader=LoaderConfig(**settings), seed=3)
    labels = np.concatenate([LABELS + 3 * s for s in range(augment.symmetries)])
    made = Loader(paths, labels, config, folder=paths[0].parent, **{"device": CPU, **more})
    try:
        yield made
    finally:
        made.close()


def batches(epoch: int, count: int = 5, symmetries: int = 1) -> list[np.ndarray]:
    random = np.random.default_rng(epoch)
    return [random.integers(0, symmetries * 12, 6) for _ in range(count)]


def load(ours: Loader, augment: AugmentConfig, start: int = 0) -> list[torch.Tensor]:
    """Two epochs, without the first batches."""
    loaded = list(ours.load(lambda e: batches(e, symmetries=augment.symmetries), range(2), start))
    assert [(one.epoch, one.number) for one in loaded] == [(e, n) for e in range(2) for n in range(5)][start:]
    return [one.inputs for one in loaded]


def one_epoch(ours: Loader, parts: list[np.ndarray], start: int = 0, epoch: int = 0) -> Iterator[LoadedBatch]:
    return ours.load(lambda _: parts, [epoch], start)


@pytest.mark.parametrize("augment", [CENTER, RANDOM, RESIZED], ids=lambda augment: augment.crop)
def test_batches_do_not_depend_on_workers_or_processes(
    paths: list[Path], augment: AugmentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loader(paths, augment, workers=0) as ours:
        expected = load(ours, augment)
        assert torch.equal(torch.stack(expected), torch.stack(load(ours, augment))), "an epoch, repeated"
    assert {tuple(batch.shape) for batch in expected} == {(6, 20, 20, 3)}
    for workers in (1, 3):
        with loader(paths, augment, workers=workers) as ours:
            assert torch.equal(torch.stack(load(ours, augment)), torch.stack(expected))
            middle = load(ours, augment, start=3)
            assert torch.equal(torch.stack(middle), torch.stack(expected[3:]))
    for world_size in (2, 4):  # of a batch of six, four get one or two each
        shares = []
        for rank in range(world_size):
            with loader(paths, augment, workers=0, rank=rank, world_size=world_size) as ours:
                shares.append(load(ours, augment))
        assert all(
            torch.equal(torch.cat(s), e) for s, e in zip(zip(*shares, strict=True), expected, strict=True)
        )
    with loader(paths, augment, workers=0, cache=str(paths[0].parent / "cache")) as ours:
        assert torch.equal(torch.stack(load(ours, augment)), torch.stack(expected))
    monkeypatch.setattr(cache, "room_for_images", lambda folder: 0)
    with loader(paths, augment, workers=1) as ours:
        assert torch.equal(torch.stack(load(ours, augment)), torch.stack(expected))


@pytest.mark.parametrize("augment", [CENTER, RANDOM, RESIZED], ids=lambda augment: augment.crop)
def test_augmentation_varies_and_leaves_the_global_generator_alone(
    paths: list[Path], augment: AugmentConfig
) -> None:
    before = torch.get_rng_state()
    same = np.zeros(2, np.int64)
    with loader(paths, augment, workers=0) as ours:
        seen = [one.inputs for one in ours.load(lambda _: [same] * 4, range(3))]
    images = {image.numpy().tobytes() for batch in seen for image in batch}
    assert len(images) > 20, "of 24"
    assert torch.equal(torch.get_rng_state(), before)


def test_without_augmentation_pixels_equal_the_central_crop(paths: list[Path]) -> None:
    """Only resizing and the central crop are applied."""
    with loader(paths, workers=0) as ours:
        [loaded] = one_epoch(ours, [np.arange(12)])
    scaled = dataclasses.replace(PREPROCESS, size=24)
    for image, path in zip(loaded.inputs, paths, strict=True):
        np.testing.assert_array_equal(image, scaled(load_image(path))[2:22, 2:22])


def test_position_encodes_image_and_symmetry(paths: list[Path]) -> None:
    augment = NOTHING.model_copy(update={"symmetries": 8})
    with loader(paths, augment, workers=0) as ours:
        [plain, turned] = one_epoch(ours, [np.arange(12), np.arange(12) + 5 * 12])
    mirrored = torch.rot90(plain.inputs.flip(2), 1, (1, 2))
    assert torch.equal(turned.inputs, mirrored)
    assert plain.labels.tolist() == LABELS.tolist()
    assert turned.labels.tolist() == (LABELS + 5 * 3).tolist()


def test_skipped_batches_are_not_read(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "room_for_images", lambda folder: 0)
    pipe = paths[0].parent / "pipe"
    os.mkfifo(pipe)  # reading it blocks
    with loader([pipe, *paths[1:]], workers=1) as ours:
        parts = [np.zeros(4, np.int64)] * 3 + [np.array([1, 2])]
        assert [loaded.number for loaded in one_epoch(ours, parts, 3)] == [3]


def test_unfinished_epoch_is_dropped(paths: list[Path]) -> None:
    with loader(paths, RANDOM, workers=2) as ours:
        expected = [one.inputs for one in one_epoch(ours, batches(1, 20), epoch=1)]
        next(one_epoch(ours, batches(0, 20)))
        again = [one.inputs for one in one_epoch(ours, batches(1, 20), epoch=1)]
    assert torch.equal(torch.stack(again), torch.stack(expected))


@pytest.mark.parametrize("augment", [CENTER, RANDOM, RESIZED], ids=lambda augment: augment.crop)
def test_batches_finished_after_the_workers_are_the_same(paths: list[Path], augment: AugmentConfig) -> None:
    """As for a GPU: workers only cut and draw, the rest is done where the network is."""
    with loader(paths, augment, workers=0) as ours:
        expected = load(ours, augment)
        worker = dataclasses.replace(ours._data.dataset, augments=False)
        asked = requests(lambda e: batches(e, symmetries=augment.symmetries), range(2), 0)
        for request, pixels in zip(asked, expected, strict=True):
            assert torch.equal(worker[request].on(CPU, PREPROCESS.size).inputs, pixels)


def test_next_epoch_is_loaded_before_it_is_asked_for(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "room_for_images", lambda folder: 0)
    content = paths[0].read_bytes()
    paths[0].unlink()
    os.mkfifo(paths[0])

    def written() -> bool:
        try:
            pipe = os.open(paths[0], os.O_WRONLY | os.O_NONBLOCK)  # fails until it is opened for reading
        except OSError:
            return False
        with open(pipe, "wb") as file:
            file.write(content)
        return True

    with loader(paths, workers=1) as ours:
        loading = ours.load(lambda epoch: [np.array([1, 2]) - epoch], range(2))
        assert next(loading).epoch == 0
        wait_until(written)
        assert next(loading).epoch == 1


# ---- files that cannot be read


@pytest.mark.parametrize("room", [2**30, 0])
@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_replaced_by_one_of_their_class(
    paths: list[Path], room: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "room_for_images", lambda folder: room)
    paths[6].write_bytes(b"no")
    paths[7].unlink()
    with loader(paths, workers=workers) as ours:
        loaded = list(one_epoch(ours, [np.array([0, 4, 5, 6, 7])] * 3))
        assert [(e.source, e.reason) for e in ours.bad] == [
            (str(paths[6]), "not-an-image"),
            (str(paths[7]), "missing"),
        ]
    for one in loaded:
        assert torch.equal(one.inputs[3], one.inputs[1]), "the next in turn"
        assert torch.equal(one.inputs[4], one.inputs[1])
        assert not torch.equal(one.inputs[0], one.inputs[1])


@pytest.mark.parametrize("workers", [0, 1])
def test_class_without_a_readable_image_is_refused(
    paths: list[Path], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in paths[4:8]:
        path.write_bytes(b"no")
    expected = r"05\.png: .*; none of the 4 images of its class can be read"
    with pytest.raises(InputError, match=expected.replace("05", "04")), loader(paths, workers=workers):
        pass
    monkeypatch.setattr(cache, "room_for_images", lambda folder: 0)
    with loader(paths, workers=workers) as ours, pytest.raises(InputError, match=expected) as caught:
        list(one_epoch(ours, [np.array([0, 1]), np.array([5, 1])]))
    assert "\n" not in str(caught.value)


def test_size_of_a_cache_is_that_of_its_file(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for number, path in enumerate(paths):
        draw(number, (40, 30)).save(path)
    folder = paths[0].parent / "cache"
    for augment in (NOTHING, RANDOM):
        with loader(paths, augment, cache=str(folder)) as ours:
            assert ours.cacheable is None
        [file] = folder.glob("*.pictures")
        monkeypatch.setattr(cache, "room_for_images", lambda folder: 0)
        with loader(paths, augment) as ours:
            assert ours.cacheable == pytest.approx(file.stat().st_size, rel=0.05)
        file.unlink()


# ---- workers


@pytest.mark.parametrize("workers", [0, 1])
def test_worker_error_is_reported_in_one_line(paths: list[Path], workers: int) -> None:
    with loader(paths, workers=workers) as ours, pytest.raises(LookalikeError) as caught:
        list(one_epoch(ours, [np.array([1]), np.array([1.5])], epoch=2))
    assert str(caught.value).startswith("epoch 2, batch 1: cannot be loaded (")
    assert "\n" not in str(caught.value)
    assert "Traceback" in str(caught.value.__cause__)


def test_killed_worker_is_reported(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "room_for_images", lambda folder: 0)
    pipe = paths[0].parent / "pipe"
    os.mkfifo(pipe)

    def kill() -> None:
        with pipe.open("wb"):  # the worker is reading, the main process waits
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)

    with loader([pipe, *paths[1:]], workers=1) as ours:
        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(LookalikeError, match=r"ended unexpectedly.*loader.workers"):
            list(one_epoch(ours, [np.array([0])]))
        killer.join()


def test_close_stops_the_workers_within_an_epoch(paths: list[Path]) -> None:
    with loader(paths, workers=2) as ours:
        running = one_epoch(ours, batches(0))
        next(running)
        assert len(multiprocessing.active_children()) == 2
    assert not multiprocessing.active_children()
    assert next(running, None) is None


def test_default_workers_leave_a_core_to_the_network() -> None:
    for cores in (2, 4, 8, 64):
        for local_size in (1, 2, 8):
            workers = default_workers(cores, "cuda", decodes=True, local_size=local_size)
            assert workers == 1 or cores - 1 - local_size < local_size * workers < cores
    assert default_workers(64, "cuda", decodes=False, local_size=1) == 8
    assert default_workers(64, "cpu", decodes=False, local_size=1) == 0
    assert default_workers(2, "cpu", decodes=True, local_size=1) == 1
    assert default_workers(2, "cpu", decodes=True, local_size=2) == 0


_TRAIN = """
import sys, multiprocessing
from pathlib import Path
import numpy as np
import torch
from train.config import Config, LoaderConfig
from train.input.loader import Loader
config = Config(data="", loader=LoaderConfig(workers=2))
paths = [Path(p) for p in sys.argv[2:]]
cpu, folder = torch.device("cpu"), Path(sys.argv[1])
loader = Loader(paths, np.zeros(len(paths), int), config, device=cpu, folder=folder)
for loaded in loader.load(lambda epoch: [np.arange(len(paths))] * 10**6, range(1)):
    if loaded.number == 0:
        print(*[child.pid for child in multiprocessing.active_children()], flush=True)
"""


def alive(process: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_training_process(paths: list[Path], how: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _TRAIN, str(paths[0].parent), *map(str, paths)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    workers = list(map(int, process.stdout.readline().split()))
    assert len(workers) == 2
    if how == signal.SIGINT:  # like Ctrl-C, to all processes
        os.killpg(process.pid, how)
    else:
        process.send_signal(how)
    errors = process.communicate(timeout=60)[1]
    end = time.monotonic() + 60
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(alive, workers))
    assert errors.count("Traceback") == (1 if how == signal.SIGINT else 0), errors


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("augment", [CENTER, RANDOM, RESIZED], ids=lambda augment: augment.crop)
def test_batches_on_a_gpu_are_those_of_a_cpu(paths: list[Path], augment: AugmentConfig) -> None:
    """Within a grey level, or two where more contrast doubles it: products and sums are fused there."""
    with loader(paths, augment, workers=0) as ours:
        expected = load(ours, augment)
    with loader(paths, augment, workers=2, device=torch.device("cuda")) as ours:
        found = load(ours, augment)
    assert {batch.device.type for batch in found} == {"cuda"}
    difference = (torch.stack(found).cpu().int() - torch.stack(expected).int()).abs()
    assert difference.max() <= 2
    assert (difference > 0).float().mean() < 0.01
