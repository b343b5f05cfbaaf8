"""Approximate indexes of every kind: recall, exact scores, filters, extension and damage."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest

from retrieval import InputError, LookalikeError
from retrieval.search import costs, kinds, training, tuning
from retrieval.search import snapshot as snapshots
from retrieval.search.index import KINDS, BuiltIndex, Index, build_index, work_needed, write_index
from retrieval.search.kinds import memory_needed
from retrieval.search.snapshot import Snapshot
from retrieval.search.vectors import Vectors
from retrieval.storage.records import IndexSpec
from retrieval.storage.segments import checksums
from tests.retrieval.vectors import brute_force, clustered, snapshot

DIM = 24
VECTORS = clustered(12_000, DIM, 1)
QUERIES = clustered(300, DIM, 2)
APPROXIMATE = list(kinds.APPROXIMATE)
EVERY_KIND = pytest.mark.parametrize("kind", APPROXIMATE)


def stored(vectors: np.ndarray) -> Vectors:
    return Vectors(np.array_split(vectors, 3), vectors.shape[1])


def reopened(built: BuiltIndex | None, folder: Path) -> Index:
    assert built is not None
    active = write_index(built, folder)
    return Index(folder / active.folder, active.sha256, active.card_sha256)


@pytest.fixture(scope="module", autouse=True)
def few_queries() -> Iterator[None]:
    """Measure recall with fewer queries, to save time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "QUERIES", 120)
        patch.setattr(tuning, "_TIMED", 4)
        yield


@pytest.fixture(scope="module")
def indexes(few_queries: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Index]:
    """Return one index of each kind over all vectors."""
    folder = tmp_path_factory.mktemp("indexes")
    return {kind: reopened(build_index(stored(VECTORS), IndexSpec(kind)), folder) for kind in APPROXIMATE}


@pytest.fixture(scope="module")
def older(few_queries: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[BuiltIndex, Index]]:
    """Return one index of each kind over the first 8,000 vectors, as built and as opened."""
    folder = tmp_path_factory.mktemp("older")
    found = {}
    for kind in APPROXIMATE:
        built = build_index(stored(VECTORS[:8000]), IndexSpec(kind))
        assert built is not None
        found[kind] = built, reopened(built, folder)
    return found


def state(index: Index, **options: list[int]) -> Snapshot:
    return snapshot(np.array_split(VECTORS, 5), index=index, covered=len(VECTORS), **options)


def share_found(scores: np.ndarray, expected: np.ndarray) -> float:
    return float((scores >= expected[:, -1:] - 1e-6).mean())


@pytest.mark.parametrize("kind", ["sq8", "ivf-rabitq", "hnsw", "ivf-disk"])
def test_index_of_leading_dimensions(kind: str, tmp_path: Path) -> None:
    """Candidates by half of the dimensions, scores by all of them; extended and asked for again as it is."""
    scale = np.geomspace(1, 0.05, DIM, dtype=np.float32)
    vectors, queries = (scale * some for some in (VECTORS[:4000], QUERIES[:60]))
    vectors, queries = (some / np.linalg.norm(some, axis=1, keepdims=True) for some in (vectors, queries))
    spec = IndexSpec(kind, recall=0.95, dim=DIM // 2)
    first = reopened(build_index(stored(vectors[:3000]), spec, work=tmp_path / "parts"), tmp_path)
    built = build_index(stored(vectors), spec, previous=first, work=tmp_path / "parts")
    assert built is not None
    assert built.is_extended
    index = reopened(built, tmp_path)
    assert (index.card["dim"], index.faiss.d) == (DIM // 2, DIM // 2)
    assert index.card["bytes_per_vector"] < memory_needed(kind, DIM, 4000) / 4000 or kind == "hnsw"
    expected, _ = brute_force(vectors, queries, 10)
    scores, rows = snapshot([vectors], index=index, covered=len(vectors)).nearest(queries, 10)
    assert share_found(scores, expected) >= 0.93
    np.testing.assert_allclose(scores, np.einsum("qd,qkd->qk", queries, vectors[rows]), atol=1e-6)
    for dim, reason in ((DIM // 2, ""), (None, "it has"), (2 * DIM, "it has")):
        assert work_needed(index, stored(vectors), replace(spec, dim=dim)).startswith(reason)
        assert bool(work_needed(index, stored(vectors), replace(spec, dim=dim))) == bool(reason)
    with pytest.raises(InputError, match="flat"):
        build_index(stored(vectors), IndexSpec("flat", dim=8))


@EVERY_KIND
@pytest.mark.parametrize("k", [1, 10, 60])
def test_reaches_its_recall_with_exact_scores(indexes: dict[str, Index], kind: str, k: int) -> None:
    scores, rows = state(indexes[kind]).nearest(QUERIES, k)
    expected, _ = brute_force(VECTORS, QUERIES, k)
    assert indexes[kind].card["at_least"] >= 0.99
    assert share_found(scores, expected) >= 0.98, "other queries than it was examined with"
    found = np.einsum("nd,nkd->nk", QUERIES.astype(np.float64), VECTORS[rows].astype(np.float64))
    np.testing.assert_allclose(scores, found, rtol=0, atol=1e-7)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert all(len(set(line)) == k for line in rows.tolist())


@EVERY_KIND
@pytest.mark.parametrize("share", [0.002, 0.05, 0.3, 0.9])
def test_filter_narrow_and_broad(indexes: dict[str, Index], kind: str, share: float) -> None:
    allowed = np.random.default_rng(0).random(len(VECTORS)) < share
    scores, rows = state(indexes[kind]).nearest(QUERIES, 10, allowed)
    expected, _ = brute_force(VECTORS, QUERIES, 10, allowed)
    assert allowed[rows].all()
    assert (rows >= 0).all()
    assert share_found(scores, expected) >= 0.98


@EVERY_KIND
@pytest.mark.parametrize("share", [0.01, 0.12, 0.5])
def test_filter_within_the_index_reaches_its_recall(
    indexes: dict[str, Index], kind: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without exact search where few rows are allowed, which otherwise hides what the index finds."""
    monkeypatch.setattr(snapshots, "_FEW", 0)
    monkeypatch.setattr(costs, "_SCAN", 1e9)
    allowed = np.random.default_rng(0).random(len(VECTORS)) < share
    scores, rows = state(indexes[kind]).nearest(QUERIES, 10, allowed)
    expected, _ = brute_force(VECTORS, QUERIES, 10, allowed)
    assert allowed[rows].all()
    assert share_found(scores, expected) >= 0.95


@EVERY_KIND
def test_filter_of_classes_far_from_the_query(indexes: dict[str, Index], kind: str) -> None:
    """Allowed rows far from the query, in cells that the index would not visit, are found."""
    _, order = brute_force(VECTORS, VECTORS[:1], len(VECTORS))
    allowed = np.ones(len(VECTORS), bool)
    allowed[order[0, :1500]] = False
    scores, rows = state(indexes[kind]).nearest(VECTORS[:1], 10, allowed)
    assert allowed[rows].all()
    assert (rows >= 0).all()
    assert (scores <= brute_force(VECTORS, VECTORS[:1], 10, allowed)[0] + 1e-6).all()


@EVERY_KIND
def test_removed_rows_are_never_found(indexes: dict[str, Index], kind: str) -> None:
    _, nearest = brute_force(VECTORS, QUERIES[:20], 5)
    removed = sorted(set(nearest.ravel().tolist()))
    _, rows = state(indexes[kind], removed=removed).nearest(QUERIES[:20], 10)
    assert not np.isin(rows, removed).any()
    assert (rows >= 0).all()


@EVERY_KIND
def test_many_threads_at_once_each_with_its_own_filter(indexes: dict[str, Index], kind: str) -> None:
    opened = indexes[kind]
    fresh = state(Index(opened.folder, opened._sha256, opened._card_sha256))
    filters = [np.arange(len(VECTORS)) % 9 != number for number in range(9)]
    alone = [fresh.nearest(QUERIES[:5], 10, allowed)[1] for allowed in filters]
    again = state(Index(opened.folder, opened._sha256, opened._card_sha256))
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda allowed: again.nearest(QUERIES[:5], 10, allowed)[1], filters))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


@EVERY_KIND
def test_k_beyond_the_number_of_items(indexes: dict[str, Index], kind: str) -> None:
    _, rows = state(indexes[kind]).nearest(QUERIES[:2], len(VECTORS) + 5)
    assert (np.sort(rows, axis=1)[:, 5:] == np.arange(len(VECTORS))).all()


@EVERY_KIND
def test_newer_vectors_are_found_outside_the_index(
    older: dict[str, tuple[BuiltIndex, Index]], kind: str
) -> None:
    _, old = older[kind]
    both = snapshot(np.array_split(VECTORS, 4), index=old, covered=8000)
    _, rows = both.nearest(VECTORS[8000:8100], 1)
    assert rows[:, 0].tolist() == list(range(8000, 8100))
    expected, _ = brute_force(VECTORS, QUERIES, 10)
    assert share_found(both.nearest(QUERIES, 10)[0], expected) >= 0.98


@EVERY_KIND
@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_tiny_index(kind: str, count: int, tmp_path: Path) -> None:
    few = VECTORS[:count]
    index = reopened(build_index(Vectors([few], DIM), IndexSpec(kind)), tmp_path)
    proposed = index.propose(QUERIES, 3)
    assert np.isin(proposed, np.arange(-1, count)).all()
    _, rows = snapshot([few], index=index, covered=count).nearest(QUERIES, 3)
    np.testing.assert_array_equal(rows, brute_force(few, QUERIES, 3)[1])


@EVERY_KIND
def test_identical_vectors(kind: str, tmp_path: Path) -> None:
    same = np.repeat(VECTORS[:1], 200, 0)
    index = reopened(build_index(Vectors([same], DIM), IndexSpec(kind)), tmp_path)
    assert len(set(index.propose(VECTORS[:1], 10)[0].tolist()) - {-1}) >= 10
    assert snapshot([same], index=index, covered=200).nearest(VECTORS[:1], 4)[1].tolist() == [[0, 1, 2, 3]]


def test_index_and_card_are_checked_before_they_are_used(tmp_path: Path) -> None:
    index = reopened(build_index(stored(VECTORS[:2000]), IndexSpec("ivf-sq8")), tmp_path)
    expected = index.propose(QUERIES, 5)
    for name in ("index.faiss", "card.json"):
        path = index.folder / name
        good = path.read_bytes()
        path.write_bytes(good[:-100] + bytes(byte ^ 1 for byte in good[-100:]))
        damaged = Index(index.folder, index._sha256, index._card_sha256)
        with pytest.raises(LookalikeError, match=r"damaged.*verify"):
            damaged.propose(QUERIES, 5)
        path.unlink()
        lost = Index(index.folder, index._sha256, index._card_sha256)
        assert lost.missing == [name]
        with pytest.raises(LookalikeError, match=r"missing.*verify"):
            lost.propose(QUERIES, 5)
        path.write_bytes(good)
    again = Index(index.folder, index._sha256, index._card_sha256)
    np.testing.assert_array_equal(again.propose(QUERIES, 5), expected)


def test_open_index_survives_deletion_of_its_files(tmp_path: Path) -> None:
    built = build_index(stored(VECTORS[:2000]), IndexSpec("ivf-sq8"))
    expected = reopened(built, tmp_path).propose(QUERIES, 5)
    index = reopened(built, tmp_path)
    shutil.rmtree(index.folder)
    np.testing.assert_array_equal(index.propose(QUERIES, 5), expected)


@EVERY_KIND
def test_index_is_memory_mapped(indexes: dict[str, Index], kind: str) -> None:
    """Pages are shared with other processes: opening an index dirties hardly any memory."""
    program = (
        "import sys, faiss\n"
        "def written():\n"
        "    lines = dict(line.split(':') for line in open('/proc/self/smaps_rollup').readlines()[1:])\n"
        "    return int(lines['Anonymous'].split()[0]) * 1024\n"
        "flags = faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY\n"
        "before = written()\n"
        "index = faiss.read_index(sys.argv[1], flags)\n"
        "print(written() - before)"
    )
    if not Path("/proc/self/smaps_rollup").is_file():
        pytest.skip("needs Linux to say which memory is a process's own")
    path = indexes[kind].folder / "index.faiss"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    own_numbers = 8 * len(VECTORS) * (3 if kind == "hnsw" else 1)
    assert int(done.stdout) < own_numbers + 2**20


def centres(built: BuiltIndex | None) -> np.ndarray:
    assert built is not None
    return faiss.downcast_index(built.index.quantizer).reconstruct_n(0, built.index.nlist)


@EVERY_KIND
def test_extended_index_finds_old_and_new(
    older: dict[str, tuple[BuiltIndex, Index]], kind: str, tmp_path: Path
) -> None:
    first, opened = older[kind]
    extended = build_index(stored(VECTORS), IndexSpec(kind), previous=opened)
    assert extended is not None
    assert extended.index.ntotal == len(VECTORS)
    if kinds.APPROXIMATE[kind].in_cells:
        np.testing.assert_array_equal(centres(extended), centres(first))
    index = reopened(extended, tmp_path)
    scores, _ = state(index).nearest(QUERIES, 10)
    assert share_found(scores, brute_force(VECTORS, QUERIES, 10)[0]) >= 0.98
    _, rows = state(index).nearest(VECTORS[::40], 1)
    assert (rows[:, 0] == np.arange(0, len(VECTORS), 40)).mean() >= 0.98


NUMBERS = np.arange(12_000) * 3 + 7 * (np.arange(12_000) >= 5000)


def numbered(rows: np.ndarray) -> Vectors:
    """Return some of the vectors with numbers that have gaps."""
    parts = np.array_split(rows, 3)
    return Vectors([VECTORS[part] for part in parts], DIM, [NUMBERS[part] for part in parts])


@EVERY_KIND
def test_ids_are_vector_numbers_and_dead_vectors_are_left_out(kind: str, tmp_path: Path) -> None:
    rows, live = np.arange(12_000), np.arange(12_000) % 4 != 0
    built = build_index(numbered(rows[:9000]), IndexSpec(kind, recall=0.9), live=live[:9000])
    assert built is not None
    assert (built.index.ntotal, built.last) == (6750, NUMBERS[8999])
    index = reopened(built, tmp_path)
    proposed = index.propose(VECTORS[1:9000:40], 1)
    assert np.isin(proposed, [-1, *NUMBERS[:9000][live[:9000]]]).all()
    assert (proposed == NUMBERS[1:9000:40, None]).any(1).mean() >= 0.98
    # More vectors died, were compacted away, and others came.
    left = np.flatnonzero((rows % 5 != 1) & live)
    alive = left % 7 != 0
    extended = build_index(numbered(left), IndexSpec(kind, recall=0.9), live=alive, previous=index)
    assert extended is not None
    inside = np.count_nonzero(left[alive] < 9000)
    new = np.count_nonzero(left[alive] >= 9000)
    rebuilt = 1 - inside / 6750 > 0.3
    assert extended.index.ntotal == (inside if rebuilt else 6750) + new
    assert extended.last == NUMBERS[left[-1]]


@pytest.mark.parametrize(("share", "kept"), [(0.2, True), (0.4, False)])
def test_index_with_many_dead_vectors_is_built_again(share: float, kept: bool, tmp_path: Path) -> None:
    first = reopened(build_index(stored(VECTORS[:8000]), IndexSpec("ivf-sq8")), tmp_path)
    live = np.random.default_rng(0).random(12_000) >= share
    again = build_index(stored(VECTORS), IndexSpec("ivf-sq8"), live=live, previous=first)
    assert again is not None
    assert again.index.ntotal == (8000 if kept else np.count_nonzero(live[:8000])) + np.count_nonzero(
        live[8000:]
    )


def test_recall_after_compaction_left_dead_vectors_in_the_index(tmp_path: Path) -> None:
    """The nearest vectors of the queries are dropped: their entries take no place among the candidates."""
    index = reopened(build_index(stored(VECTORS), IndexSpec("ivf-sq8")), tmp_path)
    _, nearest = brute_force(VECTORS, QUERIES, 20)
    rows = np.setdiff1d(np.arange(len(VECTORS)), nearest)
    parts = np.array_split(rows, 3)
    numbers = [np.stack([part, part + 1]) for part in parts]
    facts = [
        np.concatenate([both, checksums(VECTORS[part], both)[None]])
        for part, both in zip(parts, numbers, strict=True)
    ]
    compacted = Snapshot([VECTORS[part] for part in parts], facts, None, index, 11_999, dim=DIM)
    scores, found = compacted.nearest(QUERIES, 10)
    assert (found >= 0).all()
    assert share_found(scores, brute_force(VECTORS[rows], QUERIES, 10)[0]) >= 0.98


@pytest.mark.parametrize("new", [0, 3])
def test_few_new_vectors_keep_the_parameters(new: int, tmp_path: Path) -> None:
    first = reopened(build_index(stored(VECTORS[:8000]), IndexSpec("ivf-pq")), tmp_path)
    again = build_index(stored(VECTORS[: 8000 + new]), IndexSpec("ivf-pq"), previous=first)
    assert again is not None
    assert again.index.ntotal == 8000 + new
    kept = ("effort", "oversample", "recall", "recall_wanted", "chosen_for")
    assert [again.card[name] for name in kept] == [first.card[name] for name in kept]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"recall": 0.9}, "another recall is requested"),
        ({"memory": 10**9}, "another memory limit is requested"),
        ({"kind": "ivf-pq"}, "another kind is requested"),
        ({"vectors": clustered(40_000, DIM, 3)}, "the number of vectors has multiplied"),
        (
            {"vectors": np.concatenate([VECTORS[:6000], clustered(6000, DIM, 4, shift=3.0)])},
            "the new vectors fall into few of the old cells",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_index_is_rebuilt_if_it_cannot_be_extended(change: dict, why: str, tmp_path: Path) -> None:
    first = build_index(stored(VECTORS[:6000]), IndexSpec("ivf-sq8"))
    options = {"kind": "ivf-sq8", "vectors": VECTORS, **change}
    vectors = options.pop("vectors")
    second = build_index(stored(vectors), IndexSpec(**options), previous=reopened(first, tmp_path))
    assert not np.array_equal(centres(second), centres(first)), why


@pytest.mark.parametrize("kind", ["ivf-sq8", "ivf-pq"])
def test_graph_over_many_cells(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_GRAPH_OVER_CELLS", 64)
    first = build_index(stored(VECTORS[:8000]), IndexSpec(kind, recall=0.95))
    assert first is not None
    assert isinstance(faiss.downcast_index(first.index.quantizer), faiss.IndexHNSW)
    extended = build_index(stored(VECTORS), IndexSpec(kind, recall=0.95), previous=reopened(first, tmp_path))
    index = reopened(extended, tmp_path)
    assert index.faiss.ntotal == len(VECTORS)
    scores, _ = state(index).nearest(QUERIES, 10)
    assert share_found(scores, brute_force(VECTORS, QUERIES, 10)[0]) >= 0.94
    allowed = np.random.default_rng(0).random(len(VECTORS)) < 0.9
    scores, rows = state(index).nearest(QUERIES, 10, allowed)
    assert allowed[rows].all()


def test_cells_are_trained_in_two_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean similarity to the nearest centroid is that of plain k-means, or better."""
    monkeypatch.setattr(training, "_TWO_LEVELS", 64)
    two = training.train_cells(VECTORS, 128)
    plain = faiss.Kmeans(DIM, 128, niter=10, spherical=True, max_points_per_centroid=1000)
    plain.train(VECTORS)
    quality = [(VECTORS @ centroids.T).max(1).mean() for centroids in (two, plain.centroids)]
    assert two.shape == (128, DIM)
    np.testing.assert_allclose(np.linalg.norm(two, axis=1), 1, rtol=1e-4)
    assert quality[0] >= quality[1] - 0.005


def test_training_sample_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "SAMPLE_BYTES", 4 * DIM * 1000)
    assert kinds.number_of_cells(10**9, DIM) == 16
    monkeypatch.undo()
    assert [kinds.number_of_cells(10**n, 64) for n in (4, 5, 6, 7, 8)] == [128, 1024, 4096, 16384, 32768]
    assert kinds.number_of_cells(10**9, 512) == 16384, "1 GiB of training vectors"


def test_damaged_index_is_rebuilt(tmp_path: Path) -> None:
    index = reopened(build_index(stored(VECTORS[:2000]), IndexSpec("pq")), tmp_path)
    (index.folder / "index.faiss").write_bytes(b"nothing")
    again = build_index(stored(VECTORS), IndexSpec("pq"), previous=index)
    assert again is not None
    assert again.index.ntotal == len(VECTORS)


def test_full_disk(tmp_path: Path) -> None:
    built = build_index(stored(VECTORS[:2000]), IndexSpec("sq8"))
    assert built is not None
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(LookalikeError, match="not written"):
            write_index(built, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not list(tmp_path.rglob("*.faiss*"))


def test_no_index_for_few_vectors_or_flat() -> None:
    assert build_index(stored(VECTORS), IndexSpec("auto")) is None
    assert build_index(stored(VECTORS), IndexSpec("flat")) is None
    assert build_index(Vectors([], DIM), IndexSpec("hnsw")) is None


def test_invalid_index_specs() -> None:
    with pytest.raises(InputError, match="did you mean 'hnsw'"):
        build_index(stored(VECTORS), IndexSpec("hnws"))
    for recall in (0.0, 1.5, -1.0):
        with pytest.raises(InputError, match="recall"):
            build_index(stored(VECTORS), IndexSpec(recall=recall))
    with pytest.raises(InputError, match="memory"):
        build_index(stored(VECTORS), IndexSpec(memory=0))
    for kind in ("flat", "hnsw"):
        with pytest.raises(InputError, match=rf"{kind} needs [1-9],\d+,\d+ bytes"):
            build_index(stored(VECTORS), IndexSpec(kind, memory=100_000))
    assert set(KINDS) == {"auto", "flat", *APPROXIMATE}


def test_auto_takes_what_fits_and_keeps_the_trials(tmp_path: Path) -> None:
    memory = kinds.memory_needed("sq8", DIM, len(VECTORS))
    index = reopened(build_index(stored(VECTORS), IndexSpec(memory=memory)), tmp_path)
    tried = {trial["kind"] for trial in index.card["tried"]}
    assert index.card["kind"] in tried - {"ivf-disk"} <= {"pq", "sq8", "ivf-pq", "ivf-sq4"}
    assert (index.folder / "index.faiss").stat().st_size <= 1.15 * memory
    scores, _ = state(index).nearest(QUERIES, 10)
    assert share_found(scores, brute_force(VECTORS, QUERIES, 10)[0]) >= 0.98
    with pytest.raises(LookalikeError, match="allow more memory"):
        build_index(stored(VECTORS), IndexSpec(memory=1000))
