"""Evaluation of targets against brute force; published results, notes and findings."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from sklearn.linear_model import LogisticRegression

from export.model_file import export_run
from retrieval import Embedder, Gallery, InputError
from retrieval.evaluation.gallery import evaluate_gallery
from retrieval.evaluation.report import Report, kept_reports
from retrieval.evaluation.score import CURVE_KS, KS
from retrieval.images.decode import embed_files
from retrieval.metrics import clustering
from retrieval.metrics.table import by_k
from retrieval.progress import Progress
from retrieval.reports.folder import save_report
from retrieval.reports.report import render_report
from retrieval.reports.text_tables import report_table
from tests.conftest import draw, lookalike_here
from train import data, settings
from train.data import DataSet, LabelledImage
from train.data.splits import hold_out
from train.experiments.evaluation import evaluate_target
from train.experiments.linear_probe import held_out_accuracy
from train.experiments.targets import open_run
from train.loop.process_group import join_process_group
from train.loop.run_folder import Run, initial_model
from train.loop.training_data import TrainingData
from train.models.embedding_model import pixel_embedder

PUBLISHED = {"source": "a paper, Table 2", "recall": {1: 61.7, 4: 80.0}, "f1": 25.0, "note": "they crop."}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[LabelledImage]:
    """Six classes of six images, in two coarse groups; class 5 belongs to none."""
    folder = tmp_path_factory.mktemp("images")
    found = []
    for label, seed in np.ndindex(6, 6):
        file = folder / f"{label}{seed}.png"
        draw(seed + 10, hue=label).save(file)
        found.append(LabelledImage(file, f"class {label}", None if label == 5 else f"group {label % 2}"))
    return found


@pytest.fixture
def run_with(untrained_run: Path, tmp_path: Path) -> Callable[..., Path]:
    """The untrained run, with other settings in its configuration."""

    def change(**changed: object) -> Path:
        folder = tmp_path / "run"
        shutil.copytree(untrained_run, folder)
        values = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump({**values, **changed}))
        return folder

    return change


def brute_force(
    model: Path, queries: list[LabelledImage], gallery: list[LabelledImage], label: str, k: int
) -> float:
    """Recall@K by a loop; queries without a label or without a relevant image do not count.

    Of images that are equally similar, to 1e-6, the wrong ones come first.
    """
    embedder = Embedder(model)
    of = {image.path: embedder.embed(image.path)[0].astype(np.float64) for image in [*queries, *gallery]}
    hits = []
    for query in queries:
        others = [image for image in gallery if image.path != query.path]
        wanted = getattr(query, label)
        cosines: dict[bool, list[float]] = {True: [], False: []}
        for image in others:
            cosines[getattr(image, label) == wanted].append(float(of[query.path] @ of[image.path]))
        if wanted is not None and cosines[True]:
            before = sum(cosine > max(cosines[True]) - 1e-6 for cosine in cosines[False])
            hits.append(before < k)
    return sum(hits) / len(hits)


def test_queries_search_the_gallery_of_the_data_set(model_file: Path, images: list[LabelledImage]) -> None:
    queries, gallery = images[::3], [image for i, image in enumerate(images) if i % 3]
    theirs = DataSet("inshop:somewhere", [], queries, gallery, "hotel chain")
    ours = evaluate_target(model_file, theirs, ["pixels"])
    assert ours.protocol == "each searched for in the data set's gallery of 24 images"
    assert (ours.images, ours.classes, ours.ks) == (12, 6, (1, 10, 20, 30, 40, 50))
    titles = [result.title for result in ours.results]
    assert titles == [
        "raw pixels",
        "raw pixels, by hotel chain",
        "after training",
        "after training, by hotel chain",
    ]
    for result, label in zip(ours.results[2:], ("label", "coarse"), strict=True):
        assert result.values["recall_at_1"] == pytest.approx(
            brute_force(model_file, queries, gallery, label, 1)
        )
        assert result.values["recall_at_10"] == pytest.approx(
            brute_force(model_file, queries, gallery, label, 10)
        )
    assert report_table(ours).splitlines()[0].split()[:4] == ["R@1", "R@10", "R@20", "R@30"]


def test_without_a_gallery_each_query_searches_all_others(
    model_file: Path, images: list[LabelledImage]
) -> None:
    ours = evaluate_target(model_file, DataSet("csv:some.csv", [], images, coarse_name="group"))
    fine, coarse = ours.results
    assert ours.protocol == "each searched for among all the others"
    assert set(by_k(fine.values)) == set(CURVE_KS)
    for result, label in ((fine, "label"), (coarse, "coarse")):
        for k in (1, 4):
            assert result.values[f"recall_at_{k}"] == pytest.approx(
                brute_force(model_file, images, images, label, k)
            )
    assert 0 < fine.values["recall_at_1"] < 1, "images too easy or too hard to tell right from wrong"


@pytest.mark.slow
def test_report_includes_published_results(run_with: Callable[..., Path], shop: Path, tmp_path: Path) -> None:
    run = run_with(published=PUBLISHED)
    export_run(Run.open(run), tmp_path / "model.onnx")
    dataset = data.load(f"folder:{shop}")
    for target in (run, tmp_path / "model.onnx"):
        ours = evaluate_target(target, dataset)
        theirs = ours.results[0]
        assert theirs.title == "published (a paper, Table 2)"
        assert by_k(theirs.values) == pytest.approx({1: 0.617, 4: 0.8})
        text = report_table(ours)
        assert text.splitlines()[1].split()[-7:] == ["61.7", "-", "80.0", "-", "-", "-", "25.0"]
        assert "they crop." in text
        save_report(ours, tmp_path / "report")
        assert Report.load(tmp_path / "report") == ours
        assert [r.name for r in evaluate_target(target, DataSet("sop:x", [], dataset.test)).results] == [
            "after training"
        ]


def test_published_recall_by_coarse_label_and_accuracy_are_shown(
    run_with: Callable[..., Path], images: list[LabelledImage]
) -> None:
    published = {"source": "a paper", "recall": {1: 66.85}, "coarse_recall": {3: 57.5}, "accuracy": 80.4}
    run = run_with(published=published, data="csv:some.csv")
    ours = evaluate_target(run, DataSet("csv:some.csv", [], images, coarse_name="group"))
    assert [result.by for result in ours.results] == [None, "group", None, "group"]
    assert ours.results[0].values == pytest.approx({"recall_at_1": 0.6685, "linear_probe": 0.804})
    assert ours.results[1].values == pytest.approx({"recall_at_3": 0.575})


PRINTED = [1, 2, 4, 8, 16, 32]  # RAW, table 2
CHAINS = {"recall": {1: 21.5, 10: 34.9, 100: 51.8}, "coarse_recall": {1: 50.3, 3: 61.0, 5: 65.9}}  # SCT


@pytest.mark.parametrize(
    ("name", "published", "ks"),
    [
        ("cub200:x", None, KS),
        ("cub200:x", {"recall": dict.fromkeys(PRINTED, 66.85)}, PRINTED),
        ("cub200:x", {"recall": {3: 50.0}, "coarse_recall": {5: 50.0}}, [1, 2, 3, 4, 5, 8]),
        ("inshop:x", {"recall": {1: 89.64, 50: 99.2}}, [1, 10, 20, 30, 40, 50]),
        ("hotels50k:x", CHAINS, [1, 3, 5, 10, 100]),
    ],
)
def test_values_of_k_include_the_published_ones(
    name: str,
    published: dict[str, object] | None,
    ks: Sequence[int],
    run_with: Callable[..., Path],
    images: list[LabelledImage],
) -> None:
    run = run_with(published=published and {"source": "a paper", **published}, data=name)
    ours = evaluate_target(run, DataSet(name, [], images, coarse_name="chain"))
    head, *lines = report_table(ours).splitlines()
    assert head.split()[: len(ks)] == [f"R@{k}" for k in ks]
    assert list(ours.ks) == list(ks)
    measured = [line for line in lines if line.startswith("after training")]
    assert len(measured) == 2
    assert all("-" not in line.split()[-len(ks) :] for line in measured)


def test_evaluation_on_training_images_is_noted(
    untrained_run: Path, shop: Path, images: list[LabelledImage]
) -> None:
    assert "seen these images" in report_table(evaluate_target(untrained_run, data.load(f"folder:{shop}")))
    assert not evaluate_target(untrained_run, DataSet("folder:other", [], images)).notes


@pytest.fixture
def two_checkpoints(run_with: Callable[..., Path]) -> Path:
    """A run whose best epoch is not its last, with two very different networks."""
    run = Run.open(run_with())
    for step, which in enumerate(("best", "last")):
        model = initial_model(run.config)
        with torch.no_grad():
            for weight in model.parameters():
                weight += step * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        optimizer = torch.optim.SGD(model.parameters())
        run.save_checkpoint(which, {"step": step, "recall_at_1": 0.5 - step / 10}, optimizer, model=model)
    return run.folder


def test_reduced_clustering_effort_is_noted(
    model_file: Path, images: list[LabelledImage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "_MANY", 1)
    (note,) = evaluate_target(model_file, DataSet("folder:other", [], images)).notes
    assert "2 iterations from one start" in note


def test_best_and_last_epoch_are_both_reported(two_checkpoints: Path, images: list[LabelledImage]) -> None:
    dataset = DataSet("csv:some.csv", [], images)

    def numbers(which: str | None) -> Sequence[tuple[str, dict[int, float]]]:
        return [
            (r.name, by_k(r.values)) for r in evaluate_target(two_checkpoints, dataset, which=which).results
        ]

    (last_name, last), (best_name, best) = numbers(None)
    assert (last_name, best_name) == ("last epoch", "best epoch on held-out images")
    assert last != best
    assert numbers("best") == [("after training", best)]
    assert numbers("last") == [("after training", last)]


def test_run_without_held_out_classes_has_one_result(
    untrained_run: Path, model_file: Path, shop: Path
) -> None:
    dataset = data.load(f"folder:{shop}")
    names = [result.name for result in evaluate_target(untrained_run, dataset, ["untrained"]).results]
    assert names == ["before training", "after training"]
    with pytest.raises(InputError, match="--which"):
        evaluate_target(model_file, dataset, which="last")


@pytest.fixture
def closed_set(images: list[LabelledImage]) -> DataSet:
    """A data set with the same classes in training and test."""
    train = [image for number, image in enumerate(images) if number % 2]
    return DataSet("csv:some.csv", train, [image for number, image in enumerate(images) if not number % 2])


def probe(
    embedder: Embedder, train: Sequence[LabelledImage], test: Sequence[LabelledImage], given: dict[Path, str]
) -> float:
    """Return the accuracy of a classifier of standardised embeddings, learnt from given labels."""
    vectors, tested = (embedder.embed([image.path for image in images]) for images in (train, test))
    mean, deviation = vectors.mean(0), vectors.std(0)
    labels = [given.get(image.path, image.label) for image in train]
    classifier = LogisticRegression(max_iter=1000).fit((vectors - mean) / deviation, labels)
    return float(classifier.score((tested - mean) / deviation, [image.label for image in test]))


def test_linear_probe_learns_from_the_training_images(model_file: Path, closed_set: DataSet) -> None:
    plain, probed = (
        evaluate_target(model_file, closed_set, ["pixels"], linear_probe=labels) for labels in (None, "clean")
    )
    assert ["linear_probe" in result.values for result in plain.results] == [False, False]
    expected = probe(Embedder(model_file), closed_set.train, closed_set.test, {})
    assert probed.results[1].values["linear_probe"] == pytest.approx(expected)
    assert "linear_probe" in probed.results[0].values
    assert report_table(probed).splitlines()[0].split()[-1] == "probe"
    assert "Linear probe" in render_report(probed)
    assert probed.notes[-1] == "The linear probe is learnt on 18 training images with their true labels."


def test_linear_probe_learns_from_the_noisy_labels_of_the_run(
    model_file: Path, closed_set: DataSet, run_with: Callable[..., Path], tmp_path: Path
) -> None:
    noisy = {"kind": "symmetric", "rate": 0.5}
    folder = run_with(data=closed_set.name, noise=noisy, linear_probe="noisy", split={"validation": 0.0})
    found = evaluate_target(folder, closed_set)
    TrainingData(closed_set, Run.open(folder).config, join_process_group("cpu"), folder)  # writes noise.csv
    with (folder / "noise.csv").open(newline="") as rows:
        given = {Path(row["path"]): row["given"] for row in csv.DictReader(rows)}
    assert len(given) == 9
    expected = [
        probe(Embedder(model_file), closed_set.train, closed_set.test, labels) for labels in (given, {})
    ]
    assert expected[0] != expected[1], "otherwise the test shows nothing"
    assert found.headline.values["linear_probe"] == pytest.approx(expected[0])
    assert found.notes[-1] == (
        "The linear probe is learnt on 18 training images with the noisy labels of the run (symmetric, "
        "rate 0.5)."
    )
    clean = evaluate_target(folder, closed_set, linear_probe="clean")
    assert clean.headline.values["linear_probe"] == pytest.approx(expected[1])


def test_linear_probe_leaves_held_out_images_out(
    images: list[LabelledImage], run_with: Callable[..., Path], model_file: Path
) -> None:
    dataset = DataSet("csv:some.csv", images, images[::2])
    split = {"by": "images", "validation": 0.34}
    folder = run_with(data=dataset.name, split=split, linear_probe="clean")
    found = evaluate_target(folder, dataset)
    training, held_out = hold_out(images, Run.open(folder).config.split, 0)
    assert (len(training), len(held_out)) == (24, 12)
    expected = probe(Embedder(model_file), training, dataset.test, {})
    assert found.headline.values["linear_probe"] == pytest.approx(expected)
    assert "24 training images" in found.notes[-1]
    inner = held_out_accuracy(Run.open(folder), dataset)
    assert inner == pytest.approx(probe(Embedder(model_file), training, held_out, {}))


def test_linear_probe_keeps_held_out_classes(
    images: list[LabelledImage], run_with: Callable[..., Path]
) -> None:
    """Every class of the test images must be learnt; those held out of training have true labels."""
    dataset = DataSet("csv:some.csv", images, images[::2])
    folder = run_with(data=dataset.name, split={"validation": 0.34}, linear_probe="clean")
    assert "36 training images" in evaluate_target(folder, dataset).notes[-1]
    assert held_out_accuracy(Run.open(folder), dataset) is None, "its classes are unknown in training"


@pytest.mark.parametrize(
    ("train", "message"), [(slice(0), "no such split"), (slice(None), "no such split"), (slice(6), "class 1")]
)
def test_linear_probe_needs_the_same_classes(
    model_file: Path, images: list[LabelledImage], train: slice, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        evaluate_target(model_file, DataSet("csv:x.csv", images[train], images), linear_probe="clean")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data": "csv:some.csv"}, r"trained without label noise \(noise\.rate=0\); use clean"),
        (
            {"data": "csv:other.csv", "noise": {"rate": 0.5}},
            "noisy labels are of csv:other.csv, not of csv:some.csv",
        ),
    ],
)
def test_noisy_labels_need_a_run_with_noise_on_the_same_data(
    closed_set: DataSet, run_with: Callable[..., Path], changed: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        evaluate_target(run_with(**changed), closed_set, linear_probe="noisy")


def test_a_probe_of_the_settings_is_for_the_data_of_the_run(
    closed_set: DataSet, images: list[LabelledImage], run_with: Callable[..., Path]
) -> None:
    folder = run_with(data="csv:some.csv", linear_probe="clean")
    for dataset in (replace(closed_set, name="csv:other.csv"), DataSet("csv:some.csv", images, images)):
        assert "linear_probe" not in evaluate_target(folder, dataset).headline.values


# ---- findings


def test_findings_are_of_the_evaluated_model(
    model_file: Path, images: list[LabelledImage], tmp_path: Path
) -> None:
    ours = evaluate_target(model_file, DataSet("csv:some.csv", [], images, coarse_name="group"), ["pixels"])
    findings = ours.findings
    assert findings is not None
    assert (findings.name, ours.seed) == ("after training", 0)
    assert ours.headline is ours.results[2], "by class, not by group"
    ranks = findings.queries.first_right
    assert np.mean([rank == 1 for rank in ranks]) == pytest.approx(ours.headline.values["recall_at_1"])
    assert np.mean(findings.queries.average_precision) == pytest.approx(
        ours.headline.values["mean_ap"], abs=1e-5
    )
    assert [findings.absolute(path) for path in findings.queries.path] == [image.path for image in images]
    digests = [hashlib.sha256(image.path.read_bytes()).hexdigest() for image in images]
    assert findings.queries.content == [digest[:12] for digest in digests]
    save_report(ours, tmp_path)
    assert Report.load(tmp_path) == ours
    assert (tmp_path / "report.html").read_text().count("<img") > 0


def test_findings_of_a_gallery_have_the_paths_of_its_items(
    model_file: Path, shop: Path, tmp_path: Path
) -> None:
    Gallery.create(tmp_path / "g", Embedder(model_file)).add([shop])
    ours = evaluate_target(tmp_path / "g", data.load(f"folder:{shop}"))
    findings = ours.findings
    assert findings is not None
    embedder = Embedder(model_file)
    for hard in findings.hardest:
        query = findings.absolute(findings.queries.path[hard.query])
        for neighbour in hard.neighbours:
            there = findings.absolute(neighbour.path)
            assert there != query
            cosine = float(embedder.embed(query)[0] @ embedder.embed(there)[0])
            assert neighbour.score == pytest.approx(cosine, abs=1e-3)
    (kept,) = kept_reports(tmp_path / "g")
    assert Report.load(kept) == ours


_opened: list[str] = []
sys.addaudithook(lambda event, words: _opened.append(str(words[0])) if event == "open" else None)


def test_data_without_a_readable_image_names_one_with_the_reason(model_file: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("path,label\nred/1.jpg,red\nred/2.jpg,red\n")
    arguments = ["evaluate", str(model_file), "--data", f"csv:{table}", "--out", str(tmp_path / "report")]
    done = lookalike_here(*arguments, code=2)
    missing = f"{tmp_path / 'red' / '1.jpg'}: there is no such file"
    assert f"none of the data set's 2 images could be read, such as {missing}; check" in done.stderr


def test_model_file_is_opened_once(model_file: Path, shop: Path) -> None:
    _opened.clear()
    ours = evaluate_target(model_file, data.load(f"folder:{shop}"), ["untrained"])
    assert _opened.count(str(model_file)) == 1
    assert ours.fingerprint == Embedder(model_file).fingerprint
    before, after = (by_k(result.values) for result in ours.results)
    assert before == after, "no epoch was trained"


def test_model_has_the_settings_of_its_run(model_file: Path, untrained_run: Path) -> None:
    assert settings.parse_config(Embedder(model_file).provenance["config"]) == Run.open(untrained_run).config


def test_networks_of_a_run_are_on_the_chosen_device(two_checkpoints: Path) -> None:
    """Tensors of the device "meta" have no values: embedding fails where the vectors are copied back."""
    target = open_run(two_checkpoints, None, "meta")
    assert target.untrained is not None
    candidates = [*target.candidates, target.untrained()]
    assert len(candidates) == 3
    side = candidates[0].preprocess.size
    for candidate in candidates:
        assert candidate.batch_size == 256
        with pytest.raises(NotImplementedError, match="meta tensor"):
            candidate.embed_pixels(np.zeros((2, side, side, 3), np.uint8))
    with pytest.raises(NotImplementedError, match="meta tensor"):
        target.search(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 1)
    assert open_run(two_checkpoints, None, "meta", 7).candidates[0].batch_size == 7


def test_device_that_is_not_there_is_refused(two_checkpoints: Path, shop: Path) -> None:
    words = ["evaluate", str(two_checkpoints), "--data", f"folder:{shop}", "--device"]
    done = lookalike_here(*words, "cuda:99", code=2)
    assert "device: 'cuda:99' cannot be used here" in done.stderr
    assert "known: auto, cpu, cuda, cuda:N" in lookalike_here(*words, "gpu", code=2).stderr


def test_a_run_is_evaluated_on_its_own_data(run_with: Callable[..., Path], shop: Path) -> None:
    folder = run_with(data=f"folder:{shop}")
    words = ["evaluate", str(folder), "--json"]
    done = lookalike_here(*words)
    assert f"data: folder:{shop}, which {folder} was trained with" in done.stderr
    given = json.loads(lookalike_here(*words, "--data", f"folder:{shop}").stdout)
    ours = json.loads(done.stdout)
    assert (ours["data"], ours["results"]) == (given["data"], given["results"])


def test_prefixes_of_a_matryoshka_embedding_are_evaluated(
    run_with: Callable[..., Path], images: list[LabelledImage]
) -> None:
    """Recall@1 of a prefix is that of the cut and normalized vectors."""
    run = Run.open(run_with(loss={"name": "triplet", "dims": [2, 5]}))
    paths = [image.path for image in images]
    progress = Progress("", len(paths), show=False)
    embedded = embed_files(paths, run.config.preprocess, pixel_embedder(run.trained()), progress)
    report = evaluate_target(run.folder, DataSet("set", images, images))
    *_, first, second, whole = report.results
    assert [first.name, second.name] == [f"{whole.name}, first {dim} dimensions" for dim in (2, 5)]
    for dim, result in ((2, first), (5, second)):
        vectors = embedded.vectors[:, :dim] / np.linalg.norm(embedded.vectors[:, :dim], axis=1, keepdims=True)
        cosines = vectors @ vectors.T
        np.fill_diagonal(cosines, -2)
        best = cosines.argmax(1).tolist()
        hits = [images[place].label == image.label for image, place in zip(images, best, strict=True)]
        assert result.values["recall_at_1"] == pytest.approx(np.mean(hits), abs=1.5 / len(images))
    assert f"{first.name} " in report_table(report)
    assert f"{second.name}" in render_report(report)


def test_images_of_a_gallery_of_products_do_not_find_their_own_product(
    model_file: Path, shop: Path, tmp_path: Path
) -> None:
    """Images that the gallery has are as its own queries; one that it lacks is of no product there."""
    rows = [
        f"{path.relative_to(shop)},{path.parent.name} {int(path.stem) // 2}" for path in shop.rglob("*.png")
    ]
    (tmp_path / "table.csv").write_text("\n".join(["path,sku", *rows]) + "\n")
    gallery = tmp_path / "x.gallery"
    words = ["index", "build", str(gallery), str(shop), "--model", str(model_file), "--product", "sku"]
    lookalike_here(*words, "--metadata", str(tmp_path / "table.csv"))
    given = evaluate_target(gallery, data.load(f"folder:{shop}"))
    own = evaluate_gallery(Gallery.open(gallery))
    assert [one.by for one in given.results] == [one.by for one in own.results]
    assert len(given.results) == 4
    for ours, theirs in zip(given.results, own.results, strict=True):
        shared = [key for key in ours.values if key in theirs.values and key not in ("nmi", "f1")]
        assert {key: ours.values[key] for key in shared} == pytest.approx(
            {key: theirs.values[key] for key in shared}, abs=1e-6
        )
    assert "by product, best view" in lookalike_here("evaluate", str(gallery)).stdout
    strange = tmp_path / "strange"
    for name in ("red", "green", "blue"):
        (strange / name).mkdir(parents=True)
        draw(777, hue=len(name)).save(strange / name / "new.png")
    found = evaluate_target(gallery, data.load(f"folder:{strange}"))
    assert found.findings
    assert len(found.findings.queries.path) == 3
