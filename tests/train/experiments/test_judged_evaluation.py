"""Evaluation on judged sets, of models and galleries, against brute force."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from retrieval import Embedder, Gallery, InputError
from retrieval.evaluation.report import Report
from retrieval.reports.folder import save_report
from tests.conftest import draw, lookalike_here
from train.data.judged import load_judged
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
