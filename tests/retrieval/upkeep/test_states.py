"""States that a gallery may be found in, and what open, search, add, verify and repair do with each.

Each file is missing, damaged, or that of an earlier state or of another gallery. Nothing is served that is
not the gallery's, nothing is deleted that a repair could use, and a repair leaves what the columns hold.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from retrieval import Gallery, LookalikeError
from retrieval.search.calibration import NAME as CALIBRATION
from retrieval.storage.decisions import FILE as DECISIONS
from retrieval.storage.records import IndexSpec
from retrieval.storage.store import Store
from retrieval.upkeep.verify import verify
from tests.conftest import draw_classes, lookalike_here
from tests.retrieval.filling import contents
from tests.serve.model import write_model

Contents = dict[str, tuple[str | None, dict[str, object], bytes]]


@dataclass(frozen=True)
class Shop:
    """A folder with a gallery, an earlier copy of it, and two others: of its model, and of another one."""

    folder: Path

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


def build(folder: Path, name: str, images: str, model: str, *, kind: str = "sq8", table: str = "") -> None:
    words = ("--metadata", table) if table else ()
    lookalike_here("index", "build", name, images, "--model", model, "--kind", kind, *words, cwd=folder)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    draw_classes(folder / "photos", ("red", "green", "blue"), 6)
    draw_classes(folder / "more", ("red", "black"), 3, first=20)
    draw_classes(folder / "new", ("white",), 2, first=50)
    draw_classes(folder / "foreign", ("blue", "yellow"), 6, first=70)
    write_model(folder / "model.onnx")
    write_model(folder / "other.onnx", note="other")
    rows = "".join(f"{color}/{n}.png,{n}.5\n" for color in ("red", "green", "blue") for n in range(6))
    (folder / "photos" / "prices.csv").write_text("path,price\n" + rows)
    build(folder, "g", "photos", "model.onnx", table="photos/prices.csv", kind="hnsw")
    shutil.copytree(folder / "g", folder / "earlier")
    lookalike_here("index", "remove", "g", "--where", "price < 1", cwd=folder)
    lookalike_here("index", "optimize", "g", "--kind", "sq8", cwd=folder)
    shutil.copytree(folder / "g", folder / "before more")
    lookalike_here("index", "add", "g", "more", cwd=folder)
    lookalike_here("index", "optimize", "g", cwd=folder)
    build(folder, "foreign.gallery", "foreign", "model.onnx")
    build(folder, "foreign.model", "foreign", "other.onnx")
    draw_classes(folder / "twins", ("red", "green", "blue"), 6, first=90)
    build(folder, "twin", "twins", "model.onnx")
    assert not verify(folder / "g").problems
    return Shop(folder)


@pytest.fixture(scope="module")
def expected(shop: Shop) -> Contents:
    return contents(Gallery(shop / "g"))


def segment(folder: Path, suffix: str) -> Path:
    """Return a file of the largest segment."""
    files = [path for path in (folder / "segments").glob("*.npy") if not path.name.endswith(".rows.npy")]
    largest = max(files, key=lambda path: path.stat().st_size)
    return largest.with_name(f"{largest.stem}{suffix}")


def indexed(folder: Path, name: str = "index.faiss") -> Path:
    (found,) = folder.glob(f"indexes/*/{name}")
    return found


def put(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def lose(*files: Path) -> None:
    for file in files:
        shutil.rmtree(file) if file.is_dir() else file.unlink()


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@dataclass(frozen=True)
class State:
    """A state, and what is done about it.

    Attributes:
        make: Makes it, given the gallery and the shop.
        word: Part of what `verify` says; empty if it finds no problem.
        opens: Whether it can be opened and searched, with the right hits.
        adds: Whether images can be added.
        heals: Whether `verify` finds nothing more after images were added.
        lost: Vectors that are lost.
    """

    make: Callable[[Path, Shop], object]
    word: str
    opens: bool = True
    adds: bool = True
    heals: bool = False
    lost: int = 0


def refused(make: Callable[[Path, Shop], object], word: str, lost: int = 0) -> State:
    return State(make, word, opens=False, adds=False, lost=lost)


def index_of_another(g: Path, shop: Shop) -> None:
    for name in ("index.faiss", "card.json"):
        put(indexed(shop / "foreign.gallery", name), indexed(g, name))


def segment_of_another(g: Path, shop: Shop) -> None:
    for suffix in (".npy", ".rows.npy", ".facts"):
        put(segment(shop / "foreign.gallery", suffix), segment(g, suffix))


def vectors_of_a_twin(g: Path, shop: Shop) -> None:
    """Put in vectors and rows of as many images, with the same numbers and ids."""
    for suffix in (".npy", ".rows.npy"):
        put(segment(shop / "twin", suffix), segment(g, suffix))


def compacted(g: Path, shop: Shop) -> None:
    """Put a database back from before a compaction, which leaves removed images out of the segments."""
    before = (g / "gallery.db").read_bytes()
    lookalike_here("index", "optimize", str(g), "--compact")
    (g / "gallery.db").write_bytes(before)


def without_marks(g: Path, shop: Shop) -> None:
    store = Store(g)
    with store.writing(), store.transaction() as db:
        assert db.execute("DELETE FROM meta WHERE key LIKE 'rows %'").rowcount
    lose(g / "segments" / "last")


def drafts(g: Path, shop: Shop) -> None:
    (g / "indexes" / "unfinished").mkdir()
    for name in ("segments/a.npy.tmp-1", "gallery.json.tmp-1", "model/probes.npy.tmp-1"):
        (g / name).touch()


STATES = {
    "index missing": State(lambda g, s: lose(g / "indexes"), "index.faiss: missing", heals=True),
    "index damaged": State(lambda g, s: cut(indexed(g)), "index.faiss: damaged", heals=True),
    "index stale": State(
        lambda g, s: put(indexed(s / "earlier"), indexed(g)), "or of another state", heals=True
    ),
    "index foreign": State(index_of_another, "or of another state", heals=True),
    "card missing": State(lambda g, s: lose(indexed(g, "card.json")), "card.json: missing", heals=True),
    "vectors missing": refused(lambda g, s: lose(segment(g, ".npy")), ".npy: missing", lost=15),
    "vectors damaged": refused(lambda g, s: cut(segment(g, ".npy")), ".rows.npy: damaged", lost=9),
    "vectors foreign": refused(segment_of_another, ".rows.npy: of another gallery", lost=15),
    "vectors foreign, with equal numbers": refused(
        vectors_of_a_twin, ".rows.npy: of another gallery", lost=15
    ),
    "rows missing": refused(lambda g, s: lose(segment(g, ".rows.npy")), ".rows.npy: missing"),
    "rows damaged": refused(lambda g, s: cut(segment(g, ".rows.npy")), ".rows.npy: damaged"),
    "facts missing": State(lambda g, s: lose(segment(g, ".facts")), ".facts: missing"),
    "facts damaged": State(lambda g, s: cut(segment(g, ".facts")), ".facts: damaged"),
    "facts foreign": State(
        lambda g, s: put(segment(s / "foreign.gallery", ".facts"), segment(g, ".facts")), ".facts: damaged"
    ),
    "copy missing": State(lambda g, s: lose(g / "gallery.json"), "gallery.json: missing"),
    "copy damaged": State(lambda g, s: cut(g / "gallery.json"), "gallery.json: damaged"),
    "copy a folder": State(lambda g, s: make_folder(g / "gallery.json"), "gallery.json: damaged"),
    "copy stale": State(lambda g, s: put(s / "earlier" / "gallery.json", g / "gallery.json"), "", heals=True),
    "copy foreign": State(
        lambda g, s: put(s / "foreign.gallery" / "gallery.json", g / "gallery.json"),
        "gallery.json: of another gallery",
    ),
    "database missing": refused(lambda g, s: lose(g / "gallery.db"), "gallery.db: missing"),
    "database damaged": refused(lambda g, s: cut(g / "gallery.db"), "gallery.db: damaged"),
    "database a folder": refused(lambda g, s: make_folder(g / "gallery.db"), "gallery.db: missing"),
    "database stale": State(
        lambda g, s: put(s / "earlier" / "gallery.db", g / "gallery.db"),
        "gallery.db: older than the gallery",
        adds=False,
    ),
    "database stale, images were added since": State(
        lambda g, s: put(s / "before more" / "gallery.db", g / "gallery.db"),
        "gallery.db: older than the gallery",
        adds=False,
    ),
    "database and copy stale": State(
        lambda g, s: [put(s / "before more" / name, g / name) for name in ("gallery.db", "gallery.json")],
        "gallery.db: older than the gallery",
        adds=False,
    ),
    "database stale, segments rewritten since": refused(
        compacted, "gallery.db: of another state of the gallery"
    ),
    "database foreign": refused(
        lambda g, s: put(s / "foreign.gallery" / "gallery.db", g / "gallery.db"),
        "gallery.db: of another gallery",
    ),
    "database of another model": refused(
        lambda g, s: put(s / "foreign.model" / "gallery.db", g / "gallery.db"),
        "gallery.db: of another gallery",
    ),
    "database and copy missing": refused(
        lambda g, s: lose(g / "gallery.db", g / "gallery.json"), "gallery.db: missing"
    ),
    "database missing, copy of another model": refused(
        lambda g, s: (lose(g / "gallery.db"), put(s / "foreign.model" / "gallery.json", g / "gallery.json")),
        "gallery.db: missing",
    ),
    "probes missing": State(lambda g, s: lose(g / "model" / "probes.npy"), "probes.npy: missing", adds=False),
    "calibration damaged": State(
        lambda g, s: (g / CALIBRATION).write_text("[" * 100_000), f"{CALIBRATION}: damaged"
    ),
    "decisions damaged": State(
        lambda g, s: (g / DECISIONS).write_text('{"n": 1}\n' + (g / DECISIONS).read_text()),
        f"{DECISIONS}: line 1 is damaged",
        adds=False,
    ),
    "lock damaged": State(lambda g, s: (g / "LOCK").write_bytes(b"\xff\xfe"), "", heals=True),
    "drafts": State(drafts, "", heals=True),
    "of an earlier version": State(without_marks, "", heals=True),
}


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest) -> State:
    return STATES[request.param]


@pytest.fixture
def folder(shop: Shop, tmp_path: Path, state: State) -> Path:
    copied = shutil.copytree(shop / "g", tmp_path / "g")
    state.make(copied, shop)
    return copied


def said(folder: Path) -> str:
    return "\n".join(problem.what for problem in verify(folder).problems)


def test_opened_and_searched(folder: Path, state: State, expected: Contents) -> None:
    if not state.opens:
        with pytest.raises(LookalikeError, match="index verify"):
            Gallery(folder)
        return
    gallery = Gallery(folder)
    for key in ("red/1.png", "blue/2.png"):
        (hits,) = gallery.search_vectors(np.frombuffer(expected[key][2], np.float32)[None], 1)
        found = hits[0]
        assert (found.key, found.label, found.metadata) == (key, *expected[key][:2])
        assert found.score == pytest.approx(1, abs=1e-6)
    assert gallery.info()["images"] in (len(expected), 15, 18), "18 before the removal, 15 after it"


def test_verified_with_a_word_for_it(folder: Path, state: State) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    found = said(folder)
    assert state.word in found
    assert bool(found) == bool(state.word), found
    shown = lookalike_here("index", "verify", str(folder), code=bool(state.word)).stdout
    assert ("no problems" in shown) == (not state.word)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before, "looking changes nothing"


def test_added_to(folder: Path, state: State, shop: Shop, expected: Contents) -> None:
    code = 0 if state.adds else 1
    done = lookalike_here("index", "add", str(folder), str(shop / "new"), code=code)
    assert "Traceback" not in done.stderr
    if not state.adds:
        assert "index verify" in done.stderr
        assert state.word in said(folder), "nothing hides it"
        return
    after = contents(Gallery(folder))
    assert {key: after[key] for key in expected} == expected
    assert len(after) == len(expected) + 2
    assert (said(folder) == "") == state.heals
    assert not [*folder.rglob("*.tmp-*")]
    if state.heals:
        assert not verify(folder).outdated_copy
        assert Gallery(folder).index_kind == "sq8"


def test_repaired(folder: Path, state: State, shop: Shop, expected: Contents) -> None:
    repaired = verify(folder, repair=True)
    assert bool(repaired.problems) == bool(state.word)
    assert not repaired.left
    assert not verify(folder).problems
    after = contents(Gallery(folder))
    assert after == {key: expected[key] for key in after}, "with label, metadata and vector"
    assert len(expected) - len(after) == repaired.waiting == state.lost
    kind = Gallery(folder).index_kind
    assert kind == ("flat" if Store(folder).manifest.index_spec == IndexSpec() else "sq8")
    for images in ("photos", "more"):
        lookalike_here("index", "add", str(folder), str(shop / images))
    assert contents(Gallery(folder)).keys() == expected.keys(), "what was removed by hand stays removed"
    assert not verify(folder).problems


def test_facts_of_a_twin_are_known_and_repaired(shop: Shop, expected: Contents, tmp_path: Path) -> None:
    """Only `verify` can tell them, as they are whole and of as many images with the same ids."""
    folder = shutil.copytree(shop / "g", tmp_path / "g")
    put(segment(shop / "twin", ".facts"), segment(folder, ".facts"))
    assert said(folder).endswith(".facts: of another gallery")
    assert not verify(folder, repair=True).left
    assert contents(Gallery(folder)) == expected
