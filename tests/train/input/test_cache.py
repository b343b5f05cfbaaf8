"""Kept pictures: those of the one loader, made once, whatever happens meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from retrieval import LookalikeError, Preprocess, load_image
from retrieval.errors import ImageError
from tests.conftest import draw, wait_until
from train.input.cache import Kept, Scale, fingerprint, keep, keep_for_now

WHOLE = Scale(Preprocess(size=20, resize=24), whole=True)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Five pictures of several shapes, the third of which is none."""
    for number, size in enumerate([(48, 40), (30, 60), (24, 24), (200, 50), (24, 31)]):
        draw(number, size).save(tmp_path / f"{number}.png")
    (tmp_path / "2.png").write_bytes(b"no")
    return sorted(tmp_path.glob("*.png"))


def assert_same(kept: Kept, paths: list[Path], scale: Scale) -> None:
    for number, path in enumerate(paths):
        picture = kept[number]
        if isinstance(picture, ImageError):
            assert (picture.source, picture.reason) == (str(path), ImageError.NOT_AN_IMAGE)
        else:
            np.testing.assert_array_equal(picture, scale(load_image(path)))
    assert list(kept.bad) == [2]


@pytest.mark.parametrize("scale", [WHOLE, Scale(Preprocess(size=20, resize=24))])
def test_pictures_are_those_of_the_one_loader(tmp_path: Path, paths: list[Path], scale: Scale) -> None:
    before = set(tmp_path.iterdir())
    assert_same(keep_for_now(paths, scale, tmp_path), paths, scale)
    assert set(tmp_path.iterdir()) == before, "nothing is left on the disk"
    for _ in range(2):
        assert_same(keep(paths, scale, tmp_path / "cache"), paths, scale)
    assert len(list((tmp_path / "cache").glob("*.pictures"))) == 1


def test_no_pictures_at_all(tmp_path: Path) -> None:
    assert len(keep([], WHOLE, tmp_path).sizes) == 0
    assert len(keep_for_now([], WHOLE, tmp_path).sizes) == 0


def test_made_once_and_again_when_a_file_changes(tmp_path: Path, paths: list[Path]) -> None:
    cache = tmp_path / "cache"
    first = np.array(keep(paths, WHOLE, cache)[0])
    stamp = paths[0].stat()
    draw(9, (48, 40), 1).save(paths[0])
    changed = paths[0].read_bytes()
    paths[0].write_bytes(changed[: stamp.st_size].ljust(stamp.st_size))
    os.utime(paths[0], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    np.testing.assert_array_equal(keep(paths, WHOLE, cache)[0], first)  # by its stamp nothing happened
    paths[0].write_bytes(changed)
    assert_same(keep(paths, WHOLE, cache), paths, WHOLE)
    assert not np.array_equal(keep(paths, WHOLE, cache)[0], first)
    assert len(list(cache.glob("*.pictures"))) == 2, "the other one is left alone"


def test_fingerprint_is_of_all_that_matters_and_nothing_else(tmp_path: Path, paths: list[Path]) -> None:
    seen = [fingerprint(paths, WHOLE), fingerprint(paths[::-1], WHOLE), fingerprint(paths[:4], WHOLE)]
    others = [Preprocess(size=20, resize=25), Preprocess(size=20, resize=24, interpolation="bilinear")]
    seen += [fingerprint(paths, Scale(other, whole=True)) for other in others]
    seen += [fingerprint(paths, Scale(Preprocess(size=size, resize=24))) for size in (20, 21)]
    assert len(set(seen)) == len(seen)
    same = Preprocess(size=10, resize=24, mean=(0, 0, 0))
    relative = [Path(os.path.relpath(path)) for path in paths]
    assert fingerprint(relative, Scale(same, whole=True)) == seen[0]


def test_a_file_that_was_cut_short_is_made_again(tmp_path: Path, paths: list[Path]) -> None:
    keep(paths, WHOLE, tmp_path / "cache")
    [file] = (tmp_path / "cache").glob("*.pictures")
    whole = file.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert_same(keep(paths, WHOLE, tmp_path / "cache"), paths, WHOLE)
        assert file.read_bytes() == whole


# ---- other processes: a named pipe is a picture that is read when we say so

_KEEP = """
import resource, sys
from pathlib import Path
from retrieval import Preprocess
from train.cache import Scale, keep
if sys.argv[1] != "-":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
kept = keep([Path(p) for p in sys.argv[3:]], Scale(Preprocess(size=20, resize=24), whole=True),
            Path(sys.argv[2]), show_progress=True)
print(kept.pixels.sum(), list(kept.bad))
"""


def keeper(cache: Path, paths: list[Path], limit: str = "-") -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _KEEP, limit, str(cache), *map(str, paths)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_while_it_is_made(tmp_path: Path, paths: list[Path]) -> None:
    pipe, cache = tmp_path / "pipe.png", tmp_path / "cache"
    os.mkfifo(pipe)
    builder = keeper(cache, [*paths, pipe])
    wait_until(lambda: list(cache.glob("*.tmp-*")))
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    assert not list(cache.glob("*.pictures"))
    assert_same(keep(paths, WHOLE, cache), paths, WHOLE)
    assert sorted(file.suffix for file in cache.iterdir()) == ["", ".pictures"], "the lock, and the pictures"


def test_one_makes_it_and_the_others_wait(tmp_path: Path, paths: list[Path]) -> None:
    pipe, cache = tmp_path / "pipe.png", tmp_path / "cache"
    os.mkfifo(pipe)
    first = keeper(cache, [*paths, pipe])
    wait_until(lambda: list(cache.glob("*.tmp-*")))
    second = keeper(cache, [*paths, pipe])
    assert second.stderr is not None
    assert "waiting for another process" in second.stderr.readline()
    pipe.write_bytes(paths[0].read_bytes())  # once: a second reader would wait for ever
    outputs = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert outputs[0] == outputs[1]
    assert outputs[0].endswith("[2]\n")


def test_a_full_disk_is_named(tmp_path: Path, paths: list[Path]) -> None:
    done = keeper(tmp_path / "cache", paths, limit="4000")
    errors = done.communicate(timeout=30)[1]
    last = errors.splitlines()[-1]
    assert last.startswith("retrieval.errors.LookalikeError")
    assert str(tmp_path / "cache") in last
    assert "File too large" in last
    assert "loader.cache" in last
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["LOCK"]


def test_a_place_that_is_no_folder(tmp_path: Path, paths: list[Path]) -> None:
    shutil.copyfile(paths[0], tmp_path / "file")
    with pytest.raises(LookalikeError, match="cannot be kept there"):
        keep(paths, WHOLE, tmp_path / "file" / "cache")
