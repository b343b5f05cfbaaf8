"""Evaluation on judged sets, of models and galleries, against brute force."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from retrieval import Embedder, Gallery, InputError
from retrieval.evaluation.comparison import compare_reports, load_contenders
from retrieval.evaluation.report import Report
from retrieval.metrics.recognition import Neighbours, fit_confidence, global_average_precision
from retrieval.reports.folder import save_report
from retrieval.reports.text_tables import report_table
from tests.conftest import draw, lookalike_here
from train.data.judged import RecognitionSet, load_judged
from train.experiments.judged_evaluation import evaluate_judged

QUERIES = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten rooms and 60 products; each room has easy, hard and ignored ones."""
    top, random = tmp_path_factory.mktemp("judged"), np.random.default_rng(3)
    rows = ["query,image,judgement"]
    for name, count in (("rooms", QUERIES), ("gallery", 60)):
        (top / name).mkdir()
        for number in range(count):
            draw(number + 100 * (name == "rooms"), hue=number % 7).save(top / name / f"{number}.png")
    for query in range(QUERIES):
        judged = random.permutation(60)[:9]
        kinds = np.repeat(["easy", "hard", "ignored"], 3)
        rows += [f"rooms/{query}.png,gallery/{n}.png,{kind}" for n, kind in zip(judged, kinds, strict=True)]
    (top / "judgements.csv").write_text("\n".join(rows) + "\n")
    return top


def expected(folder: Path, embedder: Embedder, protocol: str, k: int = 100) -> float:
    """mAP@k by loops over sorted similarities."""
    right = {"easy": {"easy"}, "hard": {"hard"}, "medium": {"easy", "hard"}}[protocol]
    judged: dict[str, dict[str, str]] = {}
    for line in (folder / "judgements.csv").read_text().split()[1:]:
        query, image, kind = line.split(",")
        judged.setdefault(query, {})[image] = kind
    names = [f"gallery/{number}.png" for number in range(60)]
    gallery = embedder.embed([folder / name for name in names])
    found = []
    for query, kinds in judged.items():
        cosines = gallery @ embedder.embed([folder / query])[0]
        order = [names[row] for row in np.argsort(-cosines)]
        kept = [name for name in order if kinds.get(name) in (None, *right)]
        hits, total = 0, 0.0
        for rank, name in enumerate(kept[:k], 1):
            if kinds.get(name) in right:
                hits += 1
                total += hits / rank
        found.append(total / min(k, sum(kind in right for kind in kinds.values())))
    return float(np.mean(found))


def test_models_and_galleries_are_as_brute_force(folder: Path, model_file: Path, tmp_path: Path) -> None:
    judged, embedder = load_judged(f"judged:{folder}"), Embedder(model_file)
    assert judged
    gallery = tmp_path / "x.gallery"
    Gallery.create(gallery, model_file).add([folder / "gallery"])
    for target in (model_file, gallery):
        report = evaluate_judged(target, judged)
        assert [one.name.rpartition(", ")[2] for one in report.results] == ["easy", "medium", "hard"]
        for one in report.results:
            protocol = one.name.rpartition(", ")[2]
            assert one.values["map_at_100"] == pytest.approx(expected(folder, embedder, protocol), abs=1e-9)
            low, high = one.class_intervals["map_at_100"]
            assert low < one.values["map_at_100"] < high
        save_report(report, tmp_path / "kept")
        assert Report.load(tmp_path / "kept").results == report.results


def test_gallery_that_moved_or_lacks_an_image(folder: Path, model_file: Path, tmp_path: Path) -> None:
    """Images are known by their bytes if they are elsewhere; what is missing is named."""
    judged = load_judged(f"judged:{folder}")
    assert judged
    copies = tmp_path / "copies"
    copies.mkdir()
    for file in (folder / "gallery").iterdir():
        (copies / f"copy-{file.name}").write_bytes(file.read_bytes())
    gallery = tmp_path / "x.gallery"
    Gallery.create(gallery, model_file).add([copies])
    moved, model = evaluate_judged(gallery, judged), evaluate_judged(model_file, judged)
    for ours, theirs in zip(moved.results, model.results, strict=True):
        assert ours.values == pytest.approx(theirs.values, abs=1e-9)
    (lost, *_) = (judged.gallery[row] for row in judged.protocols["hard"].relevant[0])
    opened = Gallery.open(gallery)
    assert opened.remove([f"copy-{lost.name}"]) == 1
    with pytest.raises(InputError, match=rf"1 of \d+ images to find are not in the gallery, .*{lost.name}"):
        evaluate_judged(gallery, judged)


def test_unreadable_images_are_not_found(folder: Path, model_file: Path, tmp_path: Path) -> None:
    judged = load_judged(f"judged:{folder}")
    assert judged
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    row = int(judged.protocols["easy"].relevant[0][0])
    judged.gallery[row] = broken
    report = evaluate_judged(model_file, judged)
    assert [path for path, _ in report.bad_files] == [str(broken)]
    every = load_judged(f"judged:{folder}")
    assert every
    whole = evaluate_judged(model_file, every)
    assert report.results[0].values["map_at_100"] < whole.results[0].values["map_at_100"]


def test_verdict_is_against_the_best_baseline(folder: Path, untrained_run: Path) -> None:
    """The differences of the last protocol, query by query, as `compare` finds them in two reports."""
    judged = load_judged(f"judged:{folder}")
    assert judged
    both = evaluate_judged(untrained_run, judged, ["pixels", "untrained"])
    alone = evaluate_judged(untrained_run, judged)
    assert alone.verdict is None
    hard = {one.name.rpartition(", ")[0]: one for one in both.results if one.name.endswith(", hard")}
    best = max(("raw pixels", "before training"), key=lambda name: hard[name].values["map_at_100"] or 0)
    assert both.verdict
    assert both.verdict.theirs == f"{best}, hard"
    expected = hard["after training"].values["map_at_100"] - hard[best].values["map_at_100"]
    assert both.verdict.changes["map_at_100"].difference == pytest.approx(expected, abs=2e-6)
    assert both.verdict.sentence in report_table(both)


def test_command_reports_by_protocol(folder: Path, model_file: Path, tmp_path: Path) -> None:
    gallery, out = tmp_path / "x.gallery", tmp_path / "report"
    Gallery.create(gallery, model_file).add([folder / "gallery"])
    words = ["evaluate", str(gallery), "--data", f"judged:{folder}"]
    shown = lookalike_here(*words, "--out", str(out)).stdout
    assert "mAP@100" in shown
    assert ", hard" in shown
    assert "queries find one of the images that they should find first" in (out / "report.html").read_text()
    outputs = [
        lookalike_here(*words, "--json", *more).stdout for more in ((), ("--rerank", "query-expansion"))
    ]
    plain, reranked = (json.loads(one)["results"][0]["values"] for one in outputs)
    assert plain != reranked
    refused = lookalike_here(*words, "--linear-probe", code=2)
    assert "judged queries have none" in refused.stderr
    refused = lookalike_here("evaluate", str(model_file), *words[2:], "--rerank", "k-reciprocal", code=2)
    assert "are for a gallery" in refused.stderr


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains in the layout of UnED: one with an index, one whose queries find each other."""
    root = tmp_path_factory.mktemp("uned")
    for domain, name, count, classes in (
        ("cars", "test", 30, 9),
        ("art", "test", 12, 8),
        ("art", "index", 20, 8),
    ):
        entries = []
        for number in range(count):
            path, kind = root / "images" / domain / name / f"{number}.png", number % classes
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(50 * kind + number + (500 if name == "index" else 0), hue=kind + len(domain)).save(path)
            entries.append({"path": f"{domain}/{name}/{number}.png", "class_id": kind})
        (root / "info_files" / domain).mkdir(parents=True, exist_ok=True)
        (root / "info_files" / domain / f"{name}.json").write_text(json.dumps(entries))
    return root


def expected_domains(root: Path, embedder: Embedder, tie: float) -> dict[str, tuple[float, float]]:
    """MMP@5 and R@1 of each domain, by loops over the merged index; right images are so much less similar."""

    def listed(domain: str, name: str) -> list[tuple[str, str]]:
        entries = json.loads((root / "info_files" / domain / f"{name}.json").read_text())
        return [(entry["path"], f"{domain} {entry['class_id']}") for entry in entries]

    index = listed("art", "index") + listed("cars", "test")
    vectors = embedder.embed([root / "images" / path for path, _ in index])
    found = {}
    for domain in ("art", "cars"):
        precisions, firsts = [], []
        for path, kind in listed(domain, "test"):
            cosines = vectors @ embedder.embed([root / "images" / path])[0]
            order = np.argsort(tie * np.array([one == kind for _, one in index]) - cosines.astype(float))
            ranked = [index[row][1] == kind for row in order if index[row][0] != path]
            depth = min(5, sum(ranked))
            precisions.append(sum(ranked[:depth]) / depth)
            firsts.append(float(ranked[0]))
        found[domain] = float(np.mean(precisions)), float(np.mean(firsts))
    return found


def test_domains_are_searched_together(domains: Path, model_file: Path, tmp_path: Path) -> None:
    judged = load_judged(f"uned:{domains}")
    assert judged
    gallery = tmp_path / "x.gallery"
    Gallery.create(gallery, model_file).add(
        [domains / "images" / "cars", domains / "images" / "art" / "index"]
    )
    # The untrained network gives some images almost the same similarity: wrong ones come first, and those of
    # a gallery in any order.
    worse, exact, better = (
        expected_domains(domains, Embedder(model_file), tie) for tie in (3e-6, 1e-6, -3e-6)
    )
    for target, bounds in ((model_file, (exact, exact)), (gallery, (worse, better))):
        report = evaluate_judged(target, judged)
        names = [one.name.rpartition(", ")[2] for one in report.results]
        assert names == ["art", "cars", "mean of domains"]
        for name, one in zip(names, report.results, strict=True):
            low, high = (
                np.array({**side, "mean of domains": np.mean(list(side.values()), 0)}[name])
                for side in bounds
            )
            values = np.array([one.values["modified_precision_at_5"], one.values["recall_at_1"]])
            assert (low - 1e-9 <= values).all()
            assert (values <= high + 1e-9).all()
            assert one.class_intervals["recall_at_1"][0] <= values[1] <= one.class_intervals["recall_at_1"][1]


def write_exhibits(root: Path) -> None:
    random = np.random.default_rng(8)

    def image(name: str, seed: int, hue: int) -> str:
        (root / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        draw(seed, hue=hue).save(root / "images" / name)
        return name

    lists: dict[str, list[dict[str, object]]] = {"MET_database": [], "testset": [], "valset": []}
    for exhibit in range(15):
        for number in range(1 + exhibit % 2):
            path = image(f"MET/{exhibit}/{number}.png", 50 * exhibit + number, exhibit % 6)
            lists["MET_database"].append({"id": 100 + exhibit, "path": path})
    for number in range(36):
        exhibit, name = int(random.integers(15)), "testset" if number < 24 else "valset"
        path = image(f"test_met/{number}.png", 50 * exhibit + 5 + number, exhibit % 6)
        lists[name].append({"MET_id": 100 + exhibit, "path": path})
        path = image(f"test_other/{number}.png", 5000 + number, number % 6)
        lists[name].append({"path": path})
    (root / "ground_truth").mkdir()
    for name, entries in lists.items():
        (root / "ground_truth" / f"{name}.json").write_text(json.dumps(entries))


def test_exhibits_are_recognized_with_a_confidence(model_file: Path, tmp_path: Path) -> None:
    """R@1 by a loop; GAP by the definitions, which have their own tests, on neighbours that a loop finds."""
    root, embedder = tmp_path / "met", Embedder(model_file)
    write_exhibits(root)
    judged = load_judged(f"met:{root}")
    assert isinstance(judged, RecognitionSet)
    vectors = embedder.embed(judged.gallery)
    depth = min(50, len(vectors))

    def neighbours(files: Sequence[Path]) -> Neighbours:
        cosines = embedder.embed(list(files)) @ vectors.T
        order = np.argsort(-cosines, axis=1)[:, :depth]
        return Neighbours(np.take_along_axis(cosines, order, 1), judged.classes[order])

    found, classes = neighbours([query.path for query in judged.queries]), 15
    k, sharpness = fit_confidence(neighbours(judged.validation), judged.validation_truth, classes)
    right, confidence = found.right(judged.truth), found.confidence(k, sharpness, classes)
    known = judged.truth >= 0
    gallery = tmp_path / "x.gallery"
    Gallery.create(gallery, model_file).add([root / "images" / "MET"])
    for target in (model_file, gallery):
        report = evaluate_judged(target, judged)
        (result,) = report.results
        assert result.values["recall_at_1"] == pytest.approx(right[known].mean())
        gaps = (
            global_average_precision(right, confidence, known),
            global_average_precision(right[known], confidence[known], known[known]),
        )
        assert (result.values["gap"], result.values["gap_of_known"]) == pytest.approx(gaps, abs=1e-6)
        assert result.values["gap"] < result.values["gap_of_known"]
        for key in ("gap", "gap_of_known", "recall_at_1"):
            for low, high in (result.intervals[key], result.class_intervals[key]):
                assert low < result.values[key] < high
        assert (report.images, report.classes) == (48, len(set(judged.truth[known].tolist())))
    strange = tmp_path / "y.gallery"
    Gallery.create(strange, model_file).add([root / "images"])  # the queries find themselves: wrong things
    assert evaluate_judged(strange, judged).headline.values["recall_at_1"] == 0


def test_gaps_are_compared_with_the_answers_of_both(
    model_file: Path, untrained_run: Path, tmp_path: Path
) -> None:
    write_exhibits(tmp_path / "met")
    judged = load_judged(f"met:{tmp_path / 'met'}")
    assert judged
    both = evaluate_judged(untrained_run, judged, ["pixels"])
    pixels, ours = both.results
    assert both.verdict
    for key in ("gap", "gap_of_known", "recall_at_1"):
        change = both.verdict.changes[key]
        before, after = pixels.values[key], ours.values[key]
        assert before is not None
        assert after is not None
        assert change.difference == pytest.approx(after - before, abs=1e-6)
        for low, high in (change.interval, change.class_interval or (0, 0)):
            assert low < change.difference < high
            # Paired: narrower than if the two had other queries.
            alone = [np.ptp(one.intervals[key]) for one in (pixels, ours)]
            assert high - low < 1.2 * np.hypot(*alone)
    assert "GAP" in both.verdict.sentence
    save_report(both, tmp_path / "a")
    found = compare_reports(load_contenders([str(tmp_path / "a"), f"b={tmp_path / 'a'}"]))
    assert found.pairs[0].verdict
    assert found.pairs[0].verdict.outcome == "same"
    assert "GAP-" in lookalike_here("compare", str(tmp_path / "a"), f"b={tmp_path / 'a'}").stdout


def test_reports_are_compared_query_by_query(
    folder: Path, domains: Path, model_file: Path, shop: Path, tmp_path: Path
) -> None:
    """By each protocol, and by the mean of domains: differences of the queries of both."""
    other = tmp_path / "run"
    words = ["train", "--recipe", "scratch", "--data", f"folder:{shop}", "--out", str(other)]
    settings = ("epochs=0", "preprocess.size=32", "model.embedding_dim=16", "seed=9")
    lookalike_here(*words, *(word for one in settings for word in ("--set", one)))
    for spec, protocols, keys in (
        (f"judged:{folder}", ["easy", "medium", "hard"], ("map_at_100", "recall_at_1")),
        (
            f"uned:{domains}",
            ["art", "cars", "mean of domains"],
            ("modified_precision_at_5", "recall_at_1"),
        ),
    ):
        judged = load_judged(spec)
        assert judged
        reports = [evaluate_judged(file, judged) for file in (model_file, other)]
        for name, report in zip("ab", reports, strict=True):
            save_report(report, tmp_path / spec.partition(":")[0] / name)
        folders = [str(tmp_path / spec.partition(":")[0] / name) for name in "ab"]
        found = compare_reports(load_contenders(folders))
        assert [row.name for row in found.rows] == [f"{name}, {one}" for one in protocols for name in "ab"]
        for number, pair in enumerate(found.pairs):
            assert (pair.first, pair.other) == (f"a, {protocols[number]}", f"b, {protocols[number]}")
            assert pair.verdict
            assert pair.verdict.sentence.count("a, ") + (pair.verdict.outcome == "same") >= 1
            for key in keys:
                ours, theirs = (report.results[number].values[key] for report in reports[::-1])
                change = pair.verdict.changes[key]
                assert ours is not None
                assert theirs is not None
                assert change.difference == pytest.approx(ours - theirs, abs=2e-6)
                assert change.class_interval is not None
                assert change.class_interval[0] <= change.difference <= change.class_interval[1]
            assert pair.mcnemar
            difference = pair.mcnemar.only_ours - pair.mcnemar.only_theirs
            if protocols[number] != "mean of domains":
                assert difference / pair.queries == pytest.approx(
                    pair.verdict.changes["recall_at_1"].difference, abs=1e-6
                )
        shown = lookalike_here("compare", *folders, "--out", str(tmp_path / "compared")).stdout
        for protocol in protocols:
            assert f"b, {protocol}" in shown
        page = (tmp_path / "compared" / "compare.html").read_text()
        assert f"b, {protocols[-1]} against a, {protocols[-1]}" in page
    shop = tmp_path / "judged" / "a"
    old = json.loads((shop / "report.json").read_text())
    old.pop("judged")  # as older versions wrote them
    (shop / "report.json").write_text(json.dumps(old))
    with pytest.raises(InputError, match="only some reports know judged queries"):
        compare_reports(load_contenders([str(shop), str(tmp_path / "judged" / "b")]))
