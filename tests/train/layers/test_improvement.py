"""Improvement: the selection choice, trials, the journal, and the command on galleries and in a database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import fractional_matrix_power
from sklearn.covariance import ledoit_wolf

from retrieval import Gallery
from retrieval.storage.records import FileStamp, NewItem
from tests.conftest import lookalike_here
from tests.retrieval.filling import small_gallery
from tests.retrieval.stores import databases
from tests.train.layers.test_teaching import classes_in_noise
from train.layers import improvement, trials
from train.layers.choosing import PARTS, Selection, Tried
from train.layers.folds import KINDS
from train.layers.improvement import journal_folder
from train.layers.journal import Entry, Journal
from train.layers.lesson import Lesson
from train.layers.trials import within_class_whitening

CLASSES, EACH = 40, 8
QUICK_RUN = """import sys
from retrieval.cli import main
from train.layers import improvement, trials
trials._STEPS, improvement._RERANKED = 40, 20
main(sys.argv[1:])
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer batches and queries, so that a run takes a few seconds."""
    monkeypatch.setattr(trials, "_STEPS", 40)
    monkeypatch.setattr(improvement, "_RERANKED", 20)


def fill(folder: Path, labels: list[str | None], seed: int = 0) -> Gallery:
    """Return a gallery of vectors whose classes differ in a few dimensions, with these labels."""
    gallery = small_gallery(folder)
    vectors, _ = classes_in_noise(CLASSES, EACH, seed)
    stamps = [FileStamp("/photos", f"{row}.jpg", 1, 1, label) for row, label in enumerate(labels)]
    with gallery.store.writing():
        gallery.store.commit(vectors, [NewItem(stamp, "", 4, 3) for stamp in stamps])
    gallery.refresh()
    return gallery


def half_labelled() -> list[str | None]:
    """Labels of the first half of the classes; the others never have any."""
    return [f"c{row // EACH}" if row // EACH < CLASSES // 2 else None for row in range(CLASSES * EACH)]


def run(*words: str, code: int = 0) -> dict[str, Any]:
    """Run the command in this process, and return its facts."""
    facts: dict[str, Any] = json.loads(lookalike_here("improve", *words, "--json", code=code).stdout or "{}")
    return facts


def precision(vectors: np.ndarray, classes: np.ndarray, rows: np.ndarray) -> float:
    """Return MAP@R of some rows among all, by brute force."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -2)
    values = []
    for row in rows:
        relevant = int((classes == classes[row]).sum()) - 1
        right = (classes == classes[row])[np.argsort(-cosines[row])[:relevant]]
        values.append((right * np.cumsum(right) / np.arange(1, relevant + 1)).sum() / relevant)
    return float(np.mean(values))


@pytest.mark.usefixtures("quick")
def test_gain_holds_on_classes_that_were_never_labelled(tmp_path: Path) -> None:
    gallery = fill(tmp_path, half_labelled())
    folder = str(gallery.folder)
    vectors, classes = classes_in_noise(CLASSES, EACH)
    facts = run(folder, "--minutes", "0")
    assert (facts["accepted"], facts["improved"]) == (True, False)
    text = lookalike_here("improve", folder, "--minutes", "0").stdout
    assert "what unseen classes gain or lose in MAP@R is at least this" in text
    assert facts["not_tried"], "no time for more"
    assert {row["method"] for row in facts["tried"]} >= {"whitening", "taught layer"}
    assert not gallery.changed()
    before = gallery.state.vectors(np.arange(len(classes)))
    facts = run(folder, "--minutes", "0", "--apply")
    assert facts["improved"]
    assert not journal_folder(gallery.folder).exists()
    improved = Gallery(folder)
    calibration = facts["calibration"]
    assert calibration["written"] == (calibration["quality"]["ece"] <= 0.05)
    assert (improved.calibration is not None) == calibration["written"]
    unseen = np.flatnonzero(classes >= CLASSES // 2)
    after = precision(improved.state.vectors(np.arange(len(classes))), classes, unseen)
    gain = facts["gains"]["unseen"]["metrics"]["map_at_r"]
    assert gain["low"] > 0
    measured = after - precision(vectors, classes, unseen)
    assert measured > gain["low"]
    (note,) = improved.embedder.provenance["layers"]
    assert note["command"] == "improve"
    assert note["gains"] == facts["gains"]
    run(folder, "--undo")
    restored = Gallery(folder)
    assert np.array_equal(restored.state.vectors(np.arange(len(classes))), before)
    assert restored.fingerprint == gallery.fingerprint


@pytest.mark.usefixtures("quick")
def test_random_labels_are_refused(tmp_path: Path) -> None:
    shuffled = np.random.default_rng(0).permutation(CLASSES * EACH) % CLASSES
    gallery = fill(tmp_path, [f"c{number}" for number in shuffled.tolist()])
    facts = run(str(gallery.folder), "--minutes", "0", "--apply", code=1)
    assert (facts["accepted"], facts["improved"]) == (False, False)
    assert not gallery.changed()
    assert not gallery.folder.with_name("g.old").exists()


def noise(selection: Selection, layers: int, random: np.random.Generator, effect: float = 0.0) -> list[Tried]:
    """Trials whose gain is an effect and noise of classes and queries, and the present vectors are 0.5."""
    queries = len(selection.queries)
    found = []
    for _ in range(layers):
        of_class = random.normal(0, 0.03, selection.classes.max() + 1)[selection.classes]
        values = 0.5 + effect + of_class + random.normal(0, 0.1, queries)
        found.append(Tried(np.tile(values[:, None], (PARTS, 1, 1, 2)), 0.0))
    return found


def gain_of_choice(selection: Selection, tried: list[Tried]) -> tuple[float, float, float]:
    """Return difference and interval of the choice among trials, made by the other parts."""
    before = np.full((PARTS, len(selection.queries), 2), 0.5)
    gain = selection.gains_of_choice("unseen", before, tried, may_decline=True)["unseen"]
    assert gain is not None
    change = gain.metrics["map_at_r"]
    return change.difference, change.low, change.high


def test_choice_among_many_useless_layers_gains_nothing() -> None:
    """The best looks good on the queries that chose it; what is printed does not, as often as it says."""
    selection = Selection(np.repeat(np.arange(40), 8), 0, 320)
    random = np.random.default_rng(0)
    before = np.full((PARTS, 320, 2), 0.5)
    differences, accepted, flattered = [], 0, []
    for _ in range(40):
        tried = noise(selection, 40, random)
        difference, low, _ = gain_of_choice(selection, tried)
        differences.append(difference)
        accepted += low > 0
        flattered.append(selection.choose("unseen", before, tried)[1])
    assert min(flattered) > 1.01
    assert abs(np.mean(differences)) < 3 * np.std(differences) / 40**0.5
    assert accepted <= 4, "2.5% of 40 are expected; five or more have a probability of 0.3%"


def test_choice_finds_a_layer_that_helps() -> None:
    selection = Selection(np.repeat(np.arange(40), 8), 0, 320)
    random = np.random.default_rng(1)
    difference, low, high = gain_of_choice(
        selection, [*noise(selection, 30, random), *noise(selection, 1, random, 0.1)]
    )
    assert low < 0.1 < high
    assert low > 0
    assert difference == pytest.approx(0.1, abs=0.03)


def test_what_gains_for_known_classes_alone_is_named() -> None:
    selection = Selection(np.repeat(np.arange(40), 8), 0, 320)
    before = np.full((PARTS, 320, 2), 0.5)
    tried = noise(selection, 5, np.random.default_rng(2))
    assert not improvement._certain_alone(selection, before, tried)
    for part in range(PARTS):
        tried[3].values[part, :, selection.tests(part, "known")] += 0.1
    (line,) = improvement._certain_alone(selection, before, tried)
    assert line.startswith("certain with --for known: MAP@R +")


def test_what_measures_has_neither_taught_nor_chosen() -> None:
    """Held-out classes have no row among those that were learned from, held-out images not their own."""
    classes = np.repeat(np.arange(20), 6)
    selection = Selection(classes, 3, len(classes))
    tested = []
    for part in range(PARTS):
        training = selection.training(part)
        for kind in KINDS:
            tests = selection.tests(part, kind)
            rows = selection.queries[tests]
            assert not np.intersect1d(rows, training).size
            shared = np.isin(classes[rows], classes[training])
            assert shared.all() if kind == "known" else not shared.any()
            tested += rows.tolist() if kind == "unseen" else []
            for other in set(range(PARTS)) - {part}:
                chose = np.concatenate([selection.tests(other, by, part) for by in KINDS])
                assert len(chose)
                assert not np.intersect1d(tests, chose).size
    assert sorted(tested) == list(range(len(classes))), "each image is a test of its class once"


def test_choice_of_each_part_by_the_others() -> None:
    """By brute force over queries: what was chosen without a part, and what is measured on it."""
    random = np.random.default_rng(4)
    classes = np.repeat(np.arange(16), 5)
    selection = Selection(classes, 1, len(classes))
    queries = np.arange(len(classes))
    assert np.array_equal(selection.queries, queries)
    before = random.random((PARTS, len(queries), 2))
    values = random.random((3, PARTS, 2, len(queries), 2))
    part_of = {kind: np.full(len(queries), -1) for kind in KINDS}
    for part in range(PARTS):
        for kind in KINDS:
            part_of[kind][selection.tests(part, kind)] = part
    expected = []
    for part in range(PARTS):
        clean = [
            query for query in queries if part not in (part_of["known"][query], part_of["unseen"][query])
        ]
        ratios = np.zeros((3, 2, 2))
        for trial, variant, number in np.ndindex(ratios.shape):
            of = part_of[KINDS[number]]
            used = [query for query in clean if of[query] >= 0]
            new = [values[trial, of[query], variant, query, 0] for query in used]
            old = [before[of[query], query, 0] for query in used]
            ratios[trial, variant, number] = np.mean(new) / np.mean(old)
        smaller = ratios.min(2)
        good = smaller >= smaller.max() - 0.1 * max(smaller.max() - 1, 0)
        best = np.unravel_index(np.where(good, ratios.mean(2), -1).argmax(), good.shape)
        choice, ratio = selection.choose("both", before, [Tried(one, 0) for one in values], part)
        assert (choice.trial, choice.variant) == best
        assert ratio == pytest.approx(smaller[best])
        rows = np.flatnonzero(part_of["unseen"] == part)
        expected += (values[best[0], part, best[1]][rows] - before[part, rows]).tolist()
    gain = selection.gains_of_choice("both", before, [Tried(one, 0) for one in values])["unseen"]
    assert gain is not None
    assert gain.metrics["map_at_r"].difference == pytest.approx(np.mean(expected, axis=0)[0])


def some_trials(gallery: Gallery, vectors: np.ndarray, classes: np.ndarray) -> improvement._Trials:
    """Trials on the labels of the first vectors; those of the others are -1."""
    labelled = classes >= 0
    lesson = Lesson(vectors[labelled], classes[labelled], vectors[~labelled], int(labelled.sum()), 0)
    return improvement._Trials(gallery, lesson, "both", 0.0)


def test_what_is_searched(tmp_path: Path) -> None:
    """By brute force: known classes among all images, unseen ones among those that were not learned from."""
    gallery = fill(tmp_path, half_labelled())
    vectors, classes = classes_in_noise(CLASSES, EACH)
    classes = np.where(classes < CLASSES // 2, classes, -1)
    found = some_trials(gallery, vectors, classes)
    selection = found._selection
    for part in range(PARTS):
        values = found._before[part, :, 0]
        learned = selection.training(part)
        for kind in KINDS:
            tests = selection.tests(part, kind)
            kept = np.delete(np.arange(len(classes)), [] if kind == "known" else learned)
            places = np.searchsorted(kept, selection.queries[tests])
            expected = precision(vectors[kept], classes[kept], places)
            assert values[tests].mean() == pytest.approx(expected, abs=1e-6)
        tested = np.concatenate([selection.tests(part, kind) for kind in KINDS])
        assert np.isnan(np.delete(values, tested)).all()


def test_a_search_of_many_images_is_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = fill(tmp_path, half_labelled())
    vectors, classes = classes_in_noise(CLASSES, EACH)
    monkeypatch.setattr(improvement, "MOST_SEARCHED", 200)
    monkeypatch.setattr(improvement, "_FEWEST_LABELLED", 40)
    for count, labelled in ((20, 100), (5, 40)):  # of 40 classes
        found = some_trials(gallery, vectors, np.where(classes < count, classes, -1))
        searched = found._searched_classes
        assert len(searched) == 200
        assert labelled - EACH <= (searched >= 0).sum() <= labelled + EACH


def test_random_labels_do_not_seem_to_help_unseen_classes(tmp_path: Path) -> None:
    """Images that were learned from stand apart from all others, which helps whatever is searched for."""
    gallery = fill(tmp_path, half_labelled())
    trial = next(trial for trial in trials.TRIALS if trial.method == trials.WITHIN)
    honest, flattered = [], []
    for seed in range(16):
        vectors = np.random.default_rng(seed).normal(size=(320, 128)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        classes = np.arange(320) // EACH
        found = some_trials(gallery, vectors, classes)
        selection = found._selection
        after = np.zeros_like(found._before)
        for part in range(PARTS):
            entry = found._entry(trial, [part], may_work=True)
            assert entry is not None
            after[part] = entry.values[0, -1]
            learned = selection.training(part)
            *_, moved = found._bench.moved(
                trial, found._bench.matrix(trial, vectors[learned], classes[learned])
            )
            rows = selection.queries[selection.tests(part, "unseen")]
            flattered.append(precision(moved, classes, rows) - precision(vectors, classes, rows))
        gain = selection.gains(found._before, after)["unseen"]
        assert gain is not None
        honest.append(gain.metrics["map_at_r"].difference)
    assert np.mean(flattered) > 4 * np.std(flattered) / len(flattered) ** 0.5, "what is to be avoided"
    assert abs(np.mean(honest)) < 3 * np.std(honest) / len(honest) ** 0.5


def test_within_class_whitening() -> None:
    """It is the inverse square root of the shrunk covariance within classes, up to a factor."""
    random = np.random.default_rng(0)
    classes = np.repeat(np.arange(30), 6)
    spread = random.normal(size=(5, 5))
    vectors = 10 * random.normal(size=(30, 5))[classes] + random.normal(size=(180, 5)) @ spread
    means = np.stack([vectors[classes == number].mean(0) for number in range(30)])
    covariance, _ = ledoit_wolf(vectors - means[classes], assume_centered=True)
    expected = fractional_matrix_power(covariance, -0.5)
    matrix = within_class_whitening(vectors, classes)
    assert np.allclose(matrix / matrix[0, 0], expected / expected[0, 0], atol=1e-4)


def test_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", [b"data"])
    assert journal.read("one") is None
    journal.write("one", Entry(np.arange(6.0).reshape(2, 3), 1.5))
    found = Journal(tmp_path / "j", [b"data"]).read("one")
    assert found is not None
    assert (found.values.tolist(), found.seconds) == ([[0, 1, 2], [3, 4, 5]], 1.5)
    (file,) = (tmp_path / "j").rglob("*.npz")
    file.write_bytes(file.read_bytes()[:100])
    assert journal.read("one") is None, "damaged: to be done again"
    (tmp_path / "j" / "mine.txt").write_text("")
    other = Journal(tmp_path / "j", [b"other data"])
    assert other.read("one") is None
    assert not file.exists(), "results on other data are deleted"
    other.delete()
    assert [file.name for file in (tmp_path / "j").iterdir()] == ["mine.txt"]


class Clock:
    """Clock that stands still but for what is slept."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("minutes", [2, 4])
def test_trials_end_in_time(minutes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave the time for one more fit, that of the layer to apply, and would not for one more trial."""
    clock = Clock()
    learn, each = trials.learn, 9.0
    monkeypatch.setattr(improvement, "time", clock)

    def slow(*given: Any, **options: Any) -> np.ndarray:
        clock.sleep(each)
        return learn(*given, **options)

    monkeypatch.setattr(trials, "learn", slow)
    facts = run(str(fill(tmp_path, half_labelled()).folder), "--minutes", str(minutes))
    left = 1000 + 60 * minutes - clock.now
    assert facts["not_tried"]
    assert each < left < (PARTS + 1) * each + 1


@pytest.mark.usefixtures("quick")
def test_killed_run_continues(tmp_path: Path) -> None:
    """What was finished before a kill is not done again; the result is that of a run that was not killed."""
    gallery = fill(tmp_path, half_labelled())
    folder = journal_folder(gallery.folder)
    words = [sys.executable, "-c", QUICK_RUN, "improve", str(gallery.folder), "--minutes", "0"]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        while len(list(folder.glob("*/*.npz"))) < 9:  # re-ranking, whitening, and learned layers
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = {file: file.stat().st_mtime_ns for file in folder.glob("*/*.npz")}
    continued = run(str(gallery.folder), "--minutes", "0")
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert len(list(folder.glob("*/*.npz"))) > len(kept)
    again = run(str(gallery.folder), "--minutes", "0")
    for file in folder.glob("*/*.npz"):
        os.unlink(file)
    fresh = run(str(gallery.folder), "--minutes", "0")
    assert continued["gains"] == again["gains"] == fresh["gains"]
    assert again["chosen"] == fresh["chosen"]


def test_without_labels_it_needs_images(tmp_path: Path) -> None:
    gallery = fill(tmp_path, [None] * (CLASSES * EACH))
    err = lookalike_here("improve", str(gallery.folder), code=2).stderr
    assert "no labels" in err
    assert "whitening is all that is tried" in err


def test_gallery_in_a_database(tmp_path: Path) -> None:
    """Each command is a process of its own, as one process at a time has the folder open."""
    gallery = fill(tmp_path, half_labelled())
    vectors, _ = classes_in_noise(CLASSES, EACH)
    labels = np.array([label or "" for label in half_labelled()])
    ids = np.array([f"i{row}" for row in range(len(labels))])
    np.savez(tmp_path / "v.npz", vectors=vectors, label=labels, id=ids)

    def command(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", QUICK_RUN, *words, "--json"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts

    with databases.running("qdrant-edge", tmp_path / "qdrant") as database:
        folder = str(tmp_path / "d")
        model = ["--model", str(gallery.embedder.path), "--store", database.new_collection()]
        command("index", "import", folder, str(tmp_path / "v.npz"), *model)
        facts = command("improve", folder, "--minutes", "0", "--apply")
        assert facts["improved"]
        assert facts["labels"] == CLASSES * EACH // 2
        command("improve", folder, "--undo")
        restored = Gallery.open(folder)
        assert not restored.embedder.provenance.get("layers")
        (number,) = restored.ids_of(["i7"])
        np.testing.assert_allclose(restored.vector(number), vectors[7], atol=2e-3)
        restored.engine.close()
