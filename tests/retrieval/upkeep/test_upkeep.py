"""Compaction, concurrent readers, and the output of the upkeep commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Gallery
from retrieval.cli import main
from retrieval.storage import merging
from retrieval.storage.records import IndexSpec
from retrieval.upkeep.verify import verify
from tests.retrieval.filling import (
    DIM,
    bare_gallery,
    commit,
    contents,
    new_items,
    small_gallery,
    unit_vectors,
)


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Run a command in this process and return its output."""
    with pytest.raises(SystemExit) as left:
        main(["index", *words])
    out, err = capsys.readouterr()
    assert left.value.code == code, err
    return out + err


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sets(st.integers(0, 9), min_size=1)),
        st.tuples(st.just("remove"), st.sets(st.integers(0, 9), min_size=1)),
        st.tuples(st.just("compact"), st.integers(1, 12)),
        st.tuples(st.just("merge"), st.integers(1, 12)),
        st.tuples(st.just("index"), st.sampled_from(["flat", "sq8"])),
    ),
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=25)
@given(STEPS)
def test_any_history_matches_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]]
) -> None:
    gallery = bare_gallery(tmp_path_factory.mktemp("history") / "g")
    expected: dict[str, bytes] = {}
    ids: dict[str, int] = {}
    for seed, (step, what) in enumerate(steps):
        if step == "add":
            names = [f"n{i}" for i in sorted(what)]  # type: ignore[call-overload]
            vectors = commit(gallery, names, seed)
            expected |= {f"{n}.jpg": v.tobytes() for n, v in zip(names, vectors, strict=True)}
        elif step == "remove":
            keys = [f"n{i}.jpg" for i in sorted(what) if f"n{i}.jpg" in expected]  # type: ignore[call-overload]
            gallery.remove(keys)
            expected = {key: value for key, value in expected.items() if key not in keys}
        elif step == "compact":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(merging, "SEGMENT_BYTES", what * 4 * DIM)  # type: ignore[operator]
                done = gallery.compact()
            assert done.segments[1] <= done.segments[0]
            assert not gallery.info()["removed"]
        elif step == "merge":
            with pytest.MonkeyPatch.context() as patch, gallery.store.writing():
                patch.setattr(merging, "SEGMENT_BYTES", what * 4 * DIM)  # type: ignore[operator]
                merging.merge_small(gallery.store)
        else:
            with gallery.store.writing():
                gallery.build_index(IndexSpec(str(what)))
        now = {key: gallery.ids_of([key])[0] for key in expected}
        assert all(ids.get(key, item) == item for key, item in now.items()), "an id stays with its key"
        assert not set(now.values()) & {item for key, item in ids.items() if key not in now}
        ids |= now
        if step == "compact":  # forgets removed keys, but not that their ids were used
            ids = {key if key in now else f"forgotten {item}": item for key, item in ids.items()}
    assert {key: vector for key, (_, _, vector) in contents(gallery).items()} == expected
    assert contents(Gallery(gallery.folder)) == contents(gallery)
    unindexed = "indexes: no index instead of the kind"  # asked for before there were vectors
    assert not [p for p in verify(gallery.folder).problems if not p.what.startswith(unindexed)]
    numbers = gallery.state.stored.numbers_of(np.arange(len(gallery.state)))
    assert (np.diff(numbers) > 0).all(), "rows stay in the order of the vector numbers"


def test_compaction_merges_drops_and_indexes_again(tmp_path: Path) -> None:
    gallery = bare_gallery(tmp_path / "g")
    for seed in range(4):
        commit(gallery, [f"{seed}-{i}" for i in range(5)], seed)
    with gallery.store.writing():
        gallery.build_index(IndexSpec("sq8"))
    commit(gallery, ["last"])
    only_merged = gallery.compact()
    assert (only_merged.segments, only_merged.dropped, only_merged.reindexed) == ((5, 1), 0, False)
    assert gallery.outside_index == 1, "no row moved, so that the index is good still"
    gallery.remove(["1-3.jpg", "3-0.jpg"])
    before = contents(gallery)
    done = gallery.compact()
    assert (done.segments, done.dropped, done.reindexed) == ((1, 1), 2, False)
    assert contents(gallery) == before
    assert gallery.index is not None
    assert gallery.outside_index == 1, "vectors keep their numbers, so that the index is good still"
    again = gallery.compact()
    assert (again.segments, again.dropped, again.reindexed) == ((1, 1), 0, False)
    gallery.remove([key for key in before if key[0] in "01"])  # half of the index
    assert gallery.compact().reindexed
    assert gallery.index is not None
    assert gallery.outside_index == 0
    assert contents(gallery) == {key: found for key, found in before.items() if key[0] not in "01"}
    gallery.remove(list(contents(gallery)))
    assert gallery.compact().segments == (1, 0)
    assert contents(gallery) == {}


COMMITS = st.lists(st.one_of(st.just(1), st.integers(1, 100), st.just(5000)), max_size=300)


@settings(max_examples=30)
@given(COMMITS, st.sampled_from([100, 4096, 1 << 17]))
def test_merging_keeps_segments_few_and_writes_little(commits: list[int], capacity: int) -> None:
    """After every commit, by the sizes of the segments alone."""
    sizes: list[int] = []
    written = 0
    for rows in commits:
        sizes.append(rows)
        found = merging.mergeable(sizes, capacity)
        for some in reversed(found):
            written += sum(sizes[some])
            sizes[some] = [sum(sizes[some])]
        assert not merging.mergeable(sizes, capacity), "nothing is left to do"
        assert max(sizes) <= max(capacity, 5000)
    tiers = [limit for limit in (8, 64, 512, 4096, 32768) if limit < capacity // 2] + [capacity // 2]
    assert sum(sizes) == sum(commits)
    assert written <= len(tiers) * sum(commits)
    if set(commits) == {1}:
        assert len(sizes) <= 7 * len(tiers) + sum(commits) // (capacity // 2)


def test_readers_see_committed_states_only(tmp_path: Path) -> None:
    """The writer always commits ten items of one generation, in many or few segments."""
    gallery = bare_gallery(tmp_path / "g")
    commit(gallery, [f"n{i}" for i in range(10)], generation=0)
    program = (
        "import sys\n"
        "from retrieval import Gallery\n"
        "from retrieval.upkeep.compact import compact\n"
        "from tests.retrieval.filling import commit\n"
        "gallery = Gallery(sys.argv[1])\n"
        "for generation in range(1, 16):\n"
        "    commit(gallery, [f'n{i}' for i in range(10)], generation, generation=generation)\n"
        "    if generation % 2: compact(gallery)\n"
    )
    command = [sys.executable, "-c", program, str(gallery.folder)]
    generations = set()
    with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as writer:
        reader = Gallery(gallery.folder)
        while writer.poll() is None:
            fresh = Gallery(gallery.folder)
            if reader.changed():
                reader.refresh()
            for one in (fresh, reader):
                hits = one.search_vectors(unit_vectors(1), 100)[0]
                if len(hits) == 10:  # those of an older state may be gone from the database since
                    found = {hit.metadata["generation"] for hit in hits}
                    assert len(found) == 1
                    generations |= found
                assert len(one) == 10
        assert writer.returncode == 0
    assert len(generations) > 1
    assert {m["generation"] for _, m, _ in contents(gallery).values()} == {15}


def test_command_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gallery = small_gallery(tmp_path)
    folder = str(gallery.folder)
    commit(gallery, ["a", "b", "c"], brand="acme")
    (b,) = gallery.ids_of(["b.jpg"])
    assert "2 removed; 1 image in the gallery" in run(capsys, "remove", folder, "a.jpg", str(b))
    assert "no item 'a.jpg'" in run(capsys, "remove", folder, "a.jpg", code=2)
    text = run(capsys, "info", folder)
    for part in ("images  1", "removed  2", "flat", "/pictures (1)", "brand", "remove  removed 2"):
        assert part in text
    assert "2 removed images dropped" in run(capsys, "optimize", folder, "--compact")
    assert "no problems: 1 images, 1 vectors" in run(capsys, "verify", folder)
    facts = json.loads(run(capsys, "info", folder, "--json"))
    assert (facts["images"], facts["removed"], facts["columns"]) == (1, 0, ["brand"])
    assert facts["bytes"]["all"] == sum(f.stat().st_size for f in gallery.folder.rglob("*") if f.is_file())


def test_verify_command_reports_and_repairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gallery = small_gallery(tmp_path)
    folder = str(gallery.folder)
    commit(gallery, ["a", "b", "c"])
    path = gallery.folder / "segments" / gallery.store.segments()[0].file
    path.write_bytes(path.read_bytes()[:-4])
    text = run(capsys, "verify", folder, code=1)
    assert "1 of its 3 vectors lost; with --repair" in text
    found = json.loads(run(capsys, "verify", folder, "--json", code=1).partition("checking")[0])
    assert [problem["repairable"] for problem in found["problems"]] == [True]
    assert "images without a vector: 1" in run(capsys, "verify", folder, "--repair")
    assert "no problems" in run(capsys, "verify", folder)
    assert "waiting  1" in run(capsys, "info", folder)
    (gallery.folder / "model" / "model.onnx").unlink()
    assert "restore the exported model file" in run(capsys, "verify", folder, "--repair", code=1)


def test_folder_that_is_no_gallery(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("info", "verify", "optimize"):
        assert "not a gallery" in run(capsys, command, str(tmp_path), code=2)


def test_locked_gallery_names_its_writer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gallery = bare_gallery(tmp_path / "g")
    with gallery.store.writing():
        gallery.store.commit(unit_vectors(1), new_items(["a"]))
        for words in (
            ("remove", str(gallery.folder), "a.jpg"),
            ("optimize", str(gallery.folder), "--compact"),
        ):
            assert "being written by process" in run(capsys, *words, code=1)
        assert "no problems" in run(capsys, "verify", str(gallery.folder)), "looking needs no lock"
