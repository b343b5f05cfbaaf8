"""Indexes whose lists stay on disk: the same as in memory, within a budget, and safe from interruptions."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
import pytest

from retrieval import Gallery, LookalikeError
from retrieval.search import index as indexes
from retrieval.search import kinds, training, tuning
from retrieval.search.index import BuiltIndex, Index, build_index, write_index
from retrieval.search.inverted_lists import Workplace
from retrieval.search.vectors import Vectors
from retrieval.storage.records import IndexSpec
from retrieval.upkeep.snapshot import copy_gallery
from retrieval.upkeep.verify import verify
from tests.retrieval.filling import bare_gallery, commit
from tests.retrieval.vectors import brute_force, clustered, snapshot

DIM = 24
VECTORS = clustered(6000, DIM, 1)
QUERIES = clustered(40, DIM, 2)
SPEC = IndexSpec("ivf-disk", recall=0.95)
SMALL = 60_000  # bytes, about a sixth of the lists of all vectors


@pytest.fixture(scope="module", autouse=True)
def few_queries() -> Iterator[None]:
    """Measure recall with fewer queries, to save time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "QUERIES", 120)
        patch.setattr(tuning, "_TIMED", 4)
        yield


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "PART_BYTES", SMALL)


def stored(vectors: np.ndarray) -> Vectors:
    return Vectors(np.array_split(vectors, 3), DIM)


def written(built: BuiltIndex | None, folder: Path) -> Index:
    assert built is not None
    active = write_index(built, folder)
    return Index(folder / active.folder, active.sha256, active.card_sha256)


def content(index: Index) -> bytes:
    return (index.folder / "index.faiss").read_bytes()


def on_disk(folder: Path, vectors: np.ndarray, previous: Index | None = None) -> Index:
    folder.mkdir(exist_ok=True)
    built = build_index(stored(vectors), SPEC, previous=previous, work=folder / "parts")
    assert built is not None
    assert built.file is not None
    return written(built, folder)


@pytest.mark.usefixtures("small_parts")
def test_the_file_is_that_of_an_index_built_in_memory(tmp_path: Path) -> None:
    """Also when it is extended; and each of its files has as many parts as the memory asks for."""
    (tmp_path / "memory").mkdir()
    before = after = None
    for count in (5000, 6000):
        in_memory = build_index(stored(VECTORS[:count]), SPEC, previous=before)
        assert in_memory is not None
        before, after = (
            written(in_memory, tmp_path / "memory"),
            on_disk(tmp_path / "disk", VECTORS[:count], after),
        )
        assert in_memory.is_extended == (count == 6000)
        assert content(before) == content(after)
        same = ("effort", "oversample", "recall", "vectors", "last", "head")
        assert [before.card[name] for name in same] == [after.card[name] for name in same]
    assert after is not None
    assert after.card["bytes_per_vector"] < 8 + DIM < kinds.disk_needed("ivf-disk", DIM, 2)
    scores, _ = snapshot([VECTORS], index=after, covered=6000).nearest(QUERIES, 10)
    assert (scores >= brute_force(VECTORS, QUERIES, 10)[0][:, -1:] - 1e-6).mean() >= 0.93
    assert len(np.unique(after.faiss.search(VECTORS[:50], 1)[1])) == 50


@pytest.mark.parametrize("share", [0.02, 0.9])
def test_merged_lists_are_those_of_one_build(share: float, tmp_path: Path) -> None:
    """Few and many of the lists have vectors, for which FAISS writes different headers; some are empty."""
    random = np.random.default_rng(3)
    centroids = clustered(64, DIM, 4)
    near = centroids[: int(64 * share) + 1]
    points = near[random.integers(0, len(near), 3000)] + 0.01 * random.standard_normal((3000, DIM))
    vectors = Vectors([points.astype(np.float32)], DIM, [np.sort(random.choice(9000, 3000, replace=False))])
    trained = training.Training(vectors.parts[0], centroids)
    for name in ("ivf-sq8", "ivf-sq4", "ivf-flat"):
        index = training.train_index(kinds.APPROXIMATE[name], trained)
        rows = np.arange(2900), np.arange(2950, 3000)
        file = Workplace(tmp_path / "parts", 20_000).build(index, vectors, rows)
        assert index.ntotal == 0
        assert len([*file.parent.iterdir()]) > 4
        training.add_rows(index, vectors, np.concatenate(rows))
        faiss.write_index(index, str(tmp_path / "memory"))
        assert file.read_bytes() == (tmp_path / "memory").read_bytes()


_CHILD = """
import sys, threading
from pathlib import Path
import numpy as np
from retrieval.search import kinds, training
from retrieval.search.inverted_lists import Workplace
from retrieval.search.vectors import Vectors

folder, budget, repeated = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
part = np.load(folder / "v.npy", mmap_mode="r")
numbers = np.arange(repeated * len(part)).reshape(repeated, -1)
vectors = Vectors([part] * repeated, part.shape[1], list(numbers))
sample = vectors.take(np.arange(2000))
index = training.train_index(kinds.APPROXIMATE["ivf-flat"], training.Training(sample, sample[:64]))


def memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def watch():
    while not end.wait(0.002):
        most.append(memory())


most, end = [memory()], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
if budget:
    Workplace(folder / "parts", budget).build(index, vectors, [numbers.ravel()])
else:
    training.add_rows(index, vectors, numbers.ravel())
end.set()
watcher.join()
print(max(most) - most[0])
"""


def test_memory_is_that_of_a_part(tmp_path: Path) -> None:
    """With a block of vectors, for lists of 4 and of 8 times as much; in memory they are there whole."""
    np.save(tmp_path / "v.npy", clustered(20_000, 128, 1))

    def taken(budget: int, repeated: int) -> int:
        command = [sys.executable, "-c", _CHILD, str(tmp_path), str(budget), str(repeated)]
        return int(subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout)

    lists, budget = 20_000 * (4 * 128 + 8), 10 << 20
    limit = budget + training._BLOCK_BYTES + (8 << 20)
    assert [taken(budget, repeated) < limit < repeated * lists for repeated in (4, 8)] == [True, True]
    assert taken(0, 4) > 4 * lists


_KILLED = """
import os, signal, sys
from pathlib import Path
from retrieval import Gallery
from retrieval.progress import progress_listener
from retrieval.search import index
from retrieval.storage.records import IndexSpec


def kill(stage):
    if stage.what == "merging" and stage.done == 4:
        os.kill(os.getpid(), signal.SIGKILL)


index.PART_BYTES = 10_000
gallery = Gallery(Path(sys.argv[1]))
with gallery.store.writing(), progress_listener(kill):
    gallery.build_index(IndexSpec("ivf-disk"))
"""


def images(folder: Path, count: int = 400) -> Gallery:
    gallery = bare_gallery(folder)
    commit(gallery, [f"a{number}" for number in range(count)])
    return gallery


def build(gallery: Gallery) -> None:
    with gallery.store.writing():
        gallery.build_index(IndexSpec("ivf-disk"))


def finish(gallery: Gallery, monkeypatch: pytest.MonkeyPatch, parts: list[Path]) -> None:
    """Build the index from finished parts, of which none is encoded again."""
    assert len(parts) == 5
    assert gallery.index is None
    found = verify(gallery.folder)
    assert (found.problems, found.leftovers) == ([], 0)
    with gallery.store.writing():
        pass  # another writer, which keeps them
    monkeypatch.setattr(indexes, "PART_BYTES", 10_000)
    with monkeypatch.context() as patch:
        patch.setattr(training, "add_blocks", None)
        build(gallery)
    assert gallery.index is not None
    assert gallery.index.card["vectors"] == 400
    assert not gallery.store.index_parts.exists()


def test_killed_while_merging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = images(tmp_path / "g")
    done = subprocess.run([sys.executable, "-c", _KILLED, str(gallery.folder)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    left = {path.name.partition(".")[2]: path.stat().st_size for path in gallery.store.index_parts.iterdir()}
    assert set(left) == {"lists", ""}
    finish(gallery, monkeypatch, [*gallery.store.index_parts.glob("*.lists")])


def test_disk_gets_full_while_merging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = images(tmp_path / "g")
    monkeypatch.setattr(indexes, "PART_BYTES", 10_000)
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, limits[1]))
    try:
        with pytest.raises(LookalikeError, match=r"^[^\n]*cannot be written \(File too large\)[^\n]*safe$"):
            build(gallery)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    finish(gallery, monkeypatch, [*gallery.store.index_parts.glob("*.lists")])


def test_too_little_disk_space_is_found_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = images(tmp_path / "g")
    free = shutil.disk_usage(tmp_path)._replace(free=2 * 400 * (48 + 8) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(LookalikeError, match=r"needs 44,800 bytes of disk while it is built, and 44,799 are"):
        build(gallery)
    assert not [*gallery.store.index_parts.iterdir()]


def test_parts_of_other_vectors_are_not_used(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    points = [random.standard_normal((200, DIM)).astype(np.float32) for _ in range(2)]
    trained = training.Training(points[0], points[0][:8])
    index = training.train_index(kinds.APPROXIMATE["ivf-disk"], trained)
    workplace = Workplace(tmp_path / "parts")
    for numbers in (np.arange(200), np.arange(200) + 7):
        file = workplace.build(index, Vectors(points[:1], DIM, [numbers]), [np.arange(200)])
        found = faiss.read_index(str(file)).search(points[0][:5], 1)[1]
        assert found[:, 0].tolist() == numbers[:5].tolist()
    other = training.train_index(kinds.APPROXIMATE["ivf-disk"], training.Training(points[1], points[1][:8]))
    before = [*(tmp_path / "parts").glob("*.lists")]
    workplace.build(other, Vectors(points[:1], DIM, [numbers]), [np.arange(200)])
    assert len(before) == 1
    assert before != [*(tmp_path / "parts").glob("*.lists")]


def test_damaged_part_is_made_again(tmp_path: Path) -> None:
    index = training.train_index(kinds.APPROXIMATE["ivf-disk"], training.Training(VECTORS[:200], VECTORS[:8]))
    workplace, rows = Workplace(tmp_path / "parts"), [np.arange(200)]
    expected = workplace.build(index, stored(VECTORS), rows).read_bytes()
    (part,) = (tmp_path / "parts").glob("*.lists")
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(LookalikeError, match="this part of the index was damaged; build the index again"):
        workplace.build(index, stored(VECTORS), rows)
    assert workplace.build(index, stored(VECTORS), rows).read_bytes() == expected


def test_copied_to_another_folder(tmp_path: Path) -> None:
    gallery = images(tmp_path / "g")
    build(gallery)
    (file,) = gallery.folder.glob("indexes/*/index.faiss")
    assert str(tmp_path).encode() not in file.read_bytes()
    copy_gallery(gallery.folder, tmp_path / "copy")
    shutil.rmtree(gallery.folder)
    moved = Gallery((tmp_path / "copy").rename(tmp_path / "moved"))
    assert moved.index is not None
    assert moved.index.card["kind"] == "ivf-disk"
    assert not verify(moved.folder).problems
    assert moved.index.faiss.search(moved.state.stored.parts[0][:5], 1)[1].shape == (5, 1)
    (file,) = moved.folder.glob("indexes/*/index.faiss")
    file.write_bytes(file.read_bytes()[:-1])
    assert [problem.what for problem in verify(moved.folder, repair=True).problems]
    (file,) = moved.folder.glob("indexes/*/index.faiss")
    assert Gallery(moved.folder).index is not None
    assert not verify(moved.folder).problems


@pytest.mark.parametrize("place", ["head", "list"])
def test_only_the_head_of_a_large_file_is_checked_when_it_is_opened(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged list can only hide neighbours: what is found has its true score."""
    monkeypatch.setattr(indexes, "CHECKED_AT_ONCE", 1000)
    index = on_disk(tmp_path, VECTORS)
    file = index.folder / "index.faiss"
    damaged = bytearray(file.read_bytes())
    at = index.card["head"]["bytes"] - 9 if place == "head" else len(damaged) - 4
    damaged[at] ^= 0xFF
    file.write_bytes(damaged)
    again = Index(index.folder, index._sha256, index._card_sha256)
    assert again.usable == (place == "list")
    assert again.checking is None
    scores, rows = snapshot([VECTORS], index=again, covered=6000).nearest(QUERIES, 10)
    found = np.einsum("nd,nkd->nk", QUERIES.astype(np.float64), VECTORS[rows].astype(np.float64))
    np.testing.assert_allclose(scores, found, rtol=0, atol=1e-6)


def test_auto_uses_the_disk_only_if_nothing_fits_in_memory(tmp_path: Path) -> None:
    chosen = []
    for memory in (200_000, 60_000):
        built = build_index(stored(VECTORS), IndexSpec(memory=memory), work=tmp_path / "parts")
        assert built is not None
        chosen.append((built.card["kind"] == "ivf-disk", built.file is not None))
    assert chosen == [(False, False), (True, True)]
