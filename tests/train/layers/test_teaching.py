"""Teaching: starts, learning, measurement on held-out images, decisions on pairs, and the command."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from retrieval import Gallery, InputError
from retrieval.cli import main
from retrieval.evaluation.calibration_fit import calibrate
from retrieval.storage.records import FileStamp, NewItem
from tests.conftest import lookalike_here
from tests.retrieval.filling import gallery_of_unknown_training, small_gallery, trained_on
from train.layers.components import fit_starts
from train.layers.flow import GalleryTarget
from train.layers.learning import learn, learn_layer
from train.layers.lesson import join_pairs, print_lesson, read_lesson
from train.layers.measuring import METRICS, Study, study
from train.layers.settings import TeachingConfig, explain_teaching, parse_teaching
from train.layers.whitening import candidates, fit_whitening, gain_by_labels

DIM, SIGNAL = 48, 6  # dimension of the small model; leading dimensions that the classes differ in
QUICK = ("steps=40", "batch.classes=12", "folds=2", "powers=[0.0]", "blends=[0.0, 0.5, 1.0]")


def classes_in_noise(classes: int, each: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors whose classes differ in a few dimensions, with more noise in the others."""
    random = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(classes), each)
    vectors = random.standard_normal((len(numbers), DIM))
    vectors[:, :SIGNAL] *= 0.3
    vectors[:, :SIGNAL] += random.standard_normal((classes, SIGNAL))[numbers]
    vectors[:, SIGNAL:] *= 1.3
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), numbers


def config(*texts: str) -> TeachingConfig:
    from train.settings import parse_changes

    return parse_teaching(parse_changes([*QUICK, *texts]))


def studied(
    vectors: np.ndarray, classes: np.ndarray, settings: TeachingConfig, others: np.ndarray | None = None
) -> Study:
    """Return the study of labelled vectors and others, with the starts fitted to all of them."""
    others = vectors[:0] if others is None else others
    starts = fit_starts(np.concatenate([vectors, others]), settings.powers, settings.dim)
    return study(vectors, classes, others, starts, settings)


def test_starts(tmp_path: Path) -> None:
    """Power 0 keeps all distances; power 1 whitens, with the shrinkage of scikit-learn."""
    vectors, _ = classes_in_noise(10, 8)
    plain, whitened = fit_starts(vectors, (0.0, 1.0), DIM)
    moved = (vectors - plain.layer.mean) @ plain.layer.weight.T
    assert np.allclose(
        moved @ moved.T, (vectors - vectors.mean(0)) @ (vectors - vectors.mean(0)).T, atol=1e-5
    )
    covariance, _ = ledoit_wolf(vectors)
    weight = whitened.layer.weight.astype(np.float64)
    result = weight @ covariance @ weight.T
    assert np.allclose(result, np.eye(DIM) * result[0, 0], atol=1e-4 * result[0, 0])
    (small,) = fit_starts(vectors, (0.0,), 12)
    assert (small.layer.weight.shape, small.learned) == ((DIM, DIM), 12), (
        "few images: no dimension is left out"
    )
    (small,) = fit_starts(np.concatenate([vectors, vectors]), (0.0,), 12)
    assert small.layer.weight.shape == (12, DIM)


def test_learned_layer_and_blends() -> None:
    vectors, classes = classes_in_noise(20, 8)
    (start,) = fit_starts(vectors, (0.0,), DIM)
    matrix = learn(start.components(vectors), classes, start.learned, config())
    assert np.array_equal(start.blended(matrix, 0).weight, start.layer.weight)
    same = learn_layer(vectors, classes, start, 1.0, config())
    assert np.allclose(start.blended(matrix, 1).weight, same.weight, atol=1e-5)
    signal = np.linalg.norm(same.weight[:, :SIGNAL], axis=0).mean()
    assert signal > 1.3 * np.linalg.norm(same.weight[:, SIGNAL:], axis=0).mean()


def test_balanced_batches_learn_a_small_category_as_much() -> None:
    """Four classes beside 60 that need the opposite: a batch of 16 has about one of them, or half of it."""
    vectors, classes = classes_in_noise(64, 8)
    small = classes >= 60
    vectors[small] = np.roll(vectors[small], SIGNAL, axis=1)  # what tells these apart is noise elsewhere
    (start,) = fit_starts(vectors, (0.0,), DIM)
    components = start.components(vectors)

    def signal(categories: np.ndarray | None) -> float:
        """How much the layer keeps of what tells the small category apart, beside the rest."""
        matrix = learn(components, classes, start.learned, config(), categories=categories)
        weight = np.linalg.norm(start.blended(matrix, 1).weight, axis=0)
        return float(weight[SIGNAL : 2 * SIGNAL].mean() / weight.mean())

    assert signal(small) > 1.1 * signal(None)


def test_gain_is_proven_for_both_kinds() -> None:
    """The classes share their dimensions, so that what is learned holds for other classes."""
    vectors, classes = classes_in_noise(40, 8)
    found = studied(vectors, classes, config())
    best = found.conclude("both")
    assert best.is_accepted
    assert best.chosen.blend > 0
    known, unseen = best.gains["known"], best.gains["unseen"]
    assert known is not None
    assert unseen is not None
    assert (found.folds, known.queries, unseen.queries) == (2, 160, 320)
    for gain in (known, unseen):
        change = gain.metrics[METRICS[0]]
        assert 0 < change.low < change.difference < change.high
        assert change.after - change.before == pytest.approx(change.difference)


def test_what_is_measured_is_what_is_applied() -> None:
    """The start alone: its values are those of its layer in the whole gallery, by brute force."""
    vectors, classes = classes_in_noise(30, 4)  # few images, so that the fit depends on each of them
    labelled = np.isin(classes, np.arange(18))
    mine, others = vectors[labelled], vectors[~labelled]
    settings = config("powers=[1.0]", "blends=[0.0]", "steps=1")
    gains = studied(mine, classes[labelled], settings, others).conclude("unseen").gains
    whitened = learn_layer(
        mine, classes[labelled], fit_starts(np.concatenate([mine, others]), (1.0,), DIM)[0], 0.0, settings
    )

    def precision(moved: np.ndarray) -> float:
        cosines = moved @ moved.T
        np.fill_diagonal(cosines, -2)
        values = []
        for row in np.flatnonzero(labelled):
            right = (classes == classes[row])[np.argsort(-cosines[row])[:3]]
            values.append((right * np.cumsum(right) / np.arange(1, 4)).sum() / 3)
        return float(np.mean(values))

    unseen = gains["unseen"]
    assert unseen is not None
    assert unseen.queries == labelled.sum()
    change = unseen.metrics[METRICS[0]]
    assert change.before == pytest.approx(precision(vectors))
    assert change.after == pytest.approx(precision(whitened(vectors)))
    assert change.after != pytest.approx(change.before, abs=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_labels_at_random_are_refused(seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors, classes = classes_in_noise(20, 8, seed)
    found = studied(vectors, random.permutation(classes), config("steps=20"))
    for purpose in ("known", "unseen", "both"):
        assert not found.conclude(purpose).is_accepted


def test_too_few_labels() -> None:
    vectors, classes = classes_in_noise(7, 4)  # intervals over so few classes would be too narrow
    found = studied(vectors, classes, config("steps=2")).conclude("both")
    assert found.gains["known"] is not None
    assert found.gains["unseen"] is None
    assert not found.is_accepted
    with pytest.raises(InputError, match="two classes or more"):
        studied(vectors, np.zeros(len(vectors), int), config())


def test_settings() -> None:
    assert config("loss.name=triplet", "loss.margin=0.3").loss == {"name": "triplet", "margin": 0.3}
    with pytest.raises(InputError, match=r"stepz: there is no such setting; did you mean 'steps'"):
        config("stepz=3")
    vectors, classes = classes_in_noise(4, 4)
    with pytest.raises(InputError, match=r"^loss: .*tripled"):
        studied(vectors, classes, config("loss=tripled", "loss={name: tripled}"))
    assert "steps = 300" in explain_teaching()


def test_decisions_are_joined() -> None:
    """1-2-3 are one class, 4 another one; 5-6-7 contradict; the last decision on 8 and 9 counts."""
    pairs = [(1, 2, True), (2, 3, True), (3, 4, False), (5, 6, True), (6, 7, True), (7, 5, False)]
    found, left_out = join_pairs([*pairs, (8, 9, True), (9, 8, False)])
    groups = {frozenset(i for i in found if found[i] == group) for group in found.values()}
    assert groups == {frozenset({1, 2, 3}), frozenset({4}), frozenset({8}), frozenset({9})}
    assert left_out == 3


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    """Return a gallery whose labelled vectors have something to learn, and some without a label."""
    gallery = small_gallery(tmp_path)
    vectors, classes = classes_in_noise(40, 8)
    labels = [f"c{number}" if number < 38 else None for number in classes.tolist()]
    stamps = [FileStamp("/photos", f"{row}.jpg", 1, 1, label) for row, label in enumerate(labels)]
    with gallery.store.writing():
        gallery.store.commit(vectors, [NewItem(stamp, "", 4, 3) for stamp in stamps])
    gallery.refresh()
    return gallery


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[dict[str, object], str]:
    """Run the command in this process, and return its facts and what it printed on stderr."""
    with pytest.raises(SystemExit) as left:
        main(["teach", *words, "--json"])
    out, err = capsys.readouterr()
    assert left.value.code == code, err
    return json.loads(out) if out else {}, err


def test_command(gallery: Gallery, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(gallery.folder)
    quick = [word for text in QUICK for word in ("--set", text)]
    before = gallery.state.vectors(np.arange(320))
    facts, _ = run(capsys, folder, "--dry-run", *quick)
    assert (facts["accepted"], facts["taught"], facts["labels"], facts["classes"]) == (True, False, 304, 38)
    assert not gallery.changed()
    facts, _ = run(capsys, folder, *quick)
    assert (facts["accepted"], facts["taught"]) == (True, True)
    taught = Gallery(folder)
    (note,) = taught.embedder.provenance["layers"]
    assert (note["command"], note["labels"], note["for"]) == ("teach", 304, "both")
    assert note["gains"] == facts["gains"]
    assert len(taught) == 320
    _, err = run(capsys, folder, *quick, code=2)
    assert "g.old: already exists" in err
    state = Gallery(folder).state_digest()
    for word in ("--dry-run", "--drop-old"):
        _, err = run(capsys, folder, *quick, word, code=2)
        assert "g: `teach` has learned from labels (20" in err
        assert f"`lookalike teach {folder} --undo`" in err
    assert Gallery(folder).state_digest() == state
    run(capsys, folder, "--undo")
    assert np.array_equal(Gallery(folder).state.vectors(np.arange(320)), before)
    _, err = run(capsys, folder, "--undo", code=2)
    assert "nothing to undo" in err


def test_labels_that_were_learned_by_heart_do_not_calibrate(
    gallery: Gallery, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hits between the images of the lesson look right; those of new images of the same classes are not."""
    calibrate(gallery)
    words = [str(gallery.folder), "--for", "known"]
    for setting in ("steps=300", "folds=2", "powers=[0.0]", "blends=[1.0]"):
        words += ["--set", setting]
    run(capsys, *words)
    with pytest.raises(InputError, match="have learned from labels; by these"):
        calibrate(Gallery(gallery.folder))


def test_images_that_the_network_was_trained_on_teach_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are neither learned from nor searched, and count neither as labelled nor as others."""
    vectors, classes = classes_in_noise(12, 8)
    contents = [hashlib.sha256(b"%d" % row).hexdigest() for row in range(len(vectors))]
    new = np.arange(len(vectors)) % 8 >= 4
    known = trained_on([content for content, is_new in zip(contents, new, strict=True) if not is_new], ["c1"])
    gallery = small_gallery(tmp_path, known)
    stamps = [FileStamp("/photos", f"{row}.jpg", 1, 1, f"c{one}") for row, one in enumerate(classes.tolist())]
    items = [NewItem(stamp, content, 4, 3) for stamp, content in zip(stamps, contents, strict=True)]
    with gallery.store.writing():
        gallery.store.commit(vectors, items)
    gallery.refresh()
    lesson = read_lesson(gallery, "gallery")
    np.testing.assert_allclose(lesson.vectors, vectors[new], atol=1e-6)
    assert (len(lesson.others), lesson.known, len(np.unique(lesson.classes))) == (0, 48, 12)
    facts, err = run(capsys, str(gallery.folder), "--dry-run", "--set", "steps=5", "--set", "folds=2", code=1)
    assert facts["left_out"] == 48
    assert "48 labelled images left out: the network was trained on them" in err
    note = "the model file does not tell which images the network was trained on"
    assert note not in err
    elsewhere = gallery_of_unknown_training(tmp_path / "elsewhere")
    with elsewhere.store.writing():
        elsewhere.store.commit(vectors, items)
    elsewhere.refresh()
    print_lesson(elsewhere, read_lesson(elsewhere, "gallery"))
    assert note in capsys.readouterr().err
    images = GalleryTarget(gallery, by_labels=True).images()
    assert images.learned.tolist() == (~new).tolist()
    expected = gain_by_labels(vectors[new], classes[new], candidates(vectors))
    measured = fit_whitening(images, by="labels").facts
    assert (measured["queries"], measured["before"]) == (48, pytest.approx(expected.before, abs=1e-6))
    whole = small_gallery(tmp_path / "whole", trained_on(contents, []))
    with whole.store.writing():
        whole.store.commit(vectors, items)
    whole.refresh()
    with pytest.raises(InputError, match="0 classes that the network was not trained on"):
        read_lesson(whole, "gallery")
    err = lookalike_here("improve", str(whole.folder), code=2).stderr
    assert "beside 96 that it was trained on" in err
    assert "whitening is all that is tried" in err


def test_losses_and_the_start_alone_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A layer for known classes alone costs others; whitening alone, of which only this profits, is named."""
    random = np.random.default_rng(0)
    gallery, classes = small_gallery(tmp_path), np.repeat(np.arange(40), 6)
    vectors = random.standard_normal((40, DIM))[classes] + 0.9 * random.standard_normal((240, DIM))
    vectors[:, :4] += 6 * random.standard_normal((240, 4))  # a nuisance, which whitening reduces
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    items = [
        NewItem(FileStamp("/photos", f"{row}.jpg", 1, 1, f"c{number}"), "", 4, 3)
        for row, number in enumerate(classes.tolist())
    ]
    with gallery.store.writing():
        gallery.store.commit(vectors, items)
    words = [str(gallery.folder), "--dry-run", "--for", "known"]
    for setting in ("steps=60", "folds=2", "powers=[0.5]"):
        words += ["--set", setting]
    facts, _ = run(capsys, *words)
    known, unseen = (facts["gains"][kind]["metrics"]["map_at_r"] for kind in ("known", "unseen"))
    alone = facts["adapt"]
    assert known["low"] > 0
    assert alone["low"] > 0
    assert alone["after"] - alone["before"] > unseen["difference"]
    lost = [text for text in facts["warnings"] if "MAP@R" in text]
    assert len(lost) == (unseen["high"] < 0)
    with pytest.raises(SystemExit):
        main(["teach", *words])
    out = capsys.readouterr().out
    assert f"`lookalike adapt {gallery.folder}`, which needs no labels, gains more" in out
    assert all(text in out for text in facts["warnings"])


def test_tables(gallery: Gallery, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels at random are refused with exit code 1; decisions are read."""
    classes = np.random.default_rng(0).integers(0, 20, 100)
    table = tmp_path / "labels.csv"
    table.write_text("key,label\n" + "".join(f"{row}.jpg,x{c}\n" for row, c in enumerate(classes.tolist())))
    lesson = read_lesson(gallery, str(table))
    assert (lesson.labels, len(lesson.classes), len(lesson.others)) == (100, 100, 220)
    words = ["--labels", str(table), "--set", "steps=5", "--set", "folds=2"]
    facts, err = run(capsys, str(gallery.folder), *words, code=1)
    assert (facts["accepted"], facts["taught"]) == (False, False)
    assert not gallery.folder.with_name("g.old").exists()
    decisions = tmp_path / "decisions.csv"
    decisions.write_text("a,b,same,when\n0.jpg,1.jpg,1,monday\n0.jpg,9.jpg,0,\n1.jpg,9.jpg,,\n")
    lesson = read_lesson(gallery, str(decisions))
    assert (lesson.labels, lesson.contradictory) == (2, 0)
    first, second, third = lesson.classes.tolist()
    assert first == second != third
    table.write_text("key,label\n0.jpg,a\n")
    _, err = run(capsys, str(gallery.folder), "--labels", str(table), code=2)
    assert "1 labelled image of 1 class; label two classes or more" in err
    table.write_text("key,label\n0.jpg,\n")
    _, err = run(capsys, str(gallery.folder), "--labels", str(table), code=2)
    assert "no labels" in err
