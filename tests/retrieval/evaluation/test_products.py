"""Commands that count products: none measures, teaches or cleans with the views of one product apart."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from retrieval import Gallery
from retrieval.curation.leakage import find_leakage
from retrieval.curation.suspects import find_suspects
from retrieval.curation.thinning import plan_thinning
from retrieval.evaluation.calibration_fit import DEPTH, PRESENT, judged_hits
from retrieval.evaluation.comparison import Contender, compare_reports
from retrieval.evaluation.gallery import compare_models, evaluate_gallery
from retrieval.evaluation.ranking_rules import ranking_cost
from retrieval.search.options import SearchOptions
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import FileStamp, NewItem
from retrieval.storage.store import Store
from tests.conftest import lookalike_here

KINDS, PRODUCTS, VIEWS, DIM = 10, 6, 4, 24
COUNT = KINDS * PRODUCTS * VIEWS


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Views, float32 [N, D]: those of a product are alike, and those of a kind a little."""
    random = np.random.default_rng(0)
    shapes = ((KINDS, 1, 1), (KINDS, PRODUCTS, 1), (KINDS, PRODUCTS, VIEWS))
    kind, product, view = (random.normal(size=(*shape, DIM)) for shape in shapes)
    return unit((0.9 * kind + product + 0.35 * view).reshape(-1, DIM))


def label(i: int) -> str:
    return f"kind {i // (PRODUCTS * VIEWS)}"


def product(i: int) -> int:
    return i // VIEWS


def make(folder: Path, vectors: np.ndarray, labels: list[str], contents: list[str] | None = None) -> Gallery:
    store = Store.create(folder, Manifest("", DIM, embedding="random"))
    items = [
        NewItem(
            FileStamp("/p", f"{i}.jpg", 1, 1, one),
            *(contents[i] if contents else f"{i:064x}", 1, 1),
            {"sku": product(i)},
            str(i),
        )
        for i, one in enumerate(labels)
    ]
    with store.writing():
        store.commit(vectors, items)
    return Gallery.open(folder)


@pytest.fixture
def gallery(tmp_path: Path, vectors: np.ndarray) -> Gallery:
    made = make(tmp_path / "g", vectors, [label(i) for i in range(COUNT)])
    made.use_products("sku")
    return made


def recall(vectors: np.ndarray, k: int, *, products: bool) -> float:
    """Recall@k by kind, one query at a time: among other products, of each its best view if wanted."""
    found = []
    for i in range(COUNT):
        others = [j for j in range(COUNT) if product(j) != product(i)]
        others.sort(key=lambda j: -float(vectors[i] @ vectors[j]))
        if products:
            seen = [product(j) for j in others]
            others = [j for at, j in enumerate(others) if product(j) not in seen[:at]]
        found.append(any(label(j) == label(i) for j in others[:k]))
    return float(np.mean(found))


def test_evaluation_leaves_out_other_views_of_the_product(gallery: Gallery, vectors: np.ndarray) -> None:
    report = evaluate_gallery(gallery)
    values = report.results[0].values
    assert values["recall_at_1"] == pytest.approx(recall(vectors, 1, products=False))
    assert values["recall_at_4"] == pytest.approx(recall(vectors, 4, products=False))
    assert "other views of its product" in report.protocol
    gallery.use_products(None)
    alone = evaluate_gallery(gallery).results[0]
    assert alone.values["recall_at_1"] > values["recall_at_1"] + 0.1, "views find each other"
    low, high = report.results[0].intervals["recall_at_1"]
    assert high - low > 0.03, "of products, not of views"
    gallery.use_products("label")
    assert evaluate_gallery(gallery).results[0].values == alone.values, "the views are what is to be found"


def ranked_products(
    vectors: np.ndarray, query: int, kind: str, *, other: bool = True
) -> list[tuple[float, int]]:
    """Scores and numbers of products, best first, one view at a time; the query's own one is left out."""
    views: dict[int, list[float]] = {}
    for i in range(COUNT):
        if i != query and not (other and product(i) == product(query)):
            views.setdefault(product(i), []).append(float(vectors[query] @ vectors[i]))
    score = {
        "best": max,
        "mean": lambda one: sum(one) / len(one),
        "soft": lambda one: 0.05 * math.log(sum(math.exp(cosine / 0.05) for cosine in one) / len(one)),
    }[kind]
    return sorted(((score(one), number) for number, one in views.items()), reverse=True)


def test_evaluation_ranks_products(gallery: Gallery, vectors: np.ndarray) -> None:
    """Every measure by loops over the ranked products of each query, for each score of a product."""
    found = {one.by: one for one in evaluate_gallery(gallery).results[1:]}
    titles = {"best": "best view", "mean": "mean of views", "soft": "soft maximum of views"}
    for kind, title in titles.items():
        expected: dict[str, list[float]] = {}
        for i in range(COUNT):
            names = [number for _, number in ranked_products(vectors, i, kind)]
            right = [number // PRODUCTS == product(i) // PRODUCTS for number in names]
            ranks = [rank for rank, is_right in enumerate(right, 1) if is_right]
            precisions = [at / rank for at, rank in enumerate(ranks, 1)]
            expected.setdefault("recall_at_1", []).append(float(ranks[0] <= 1))
            expected.setdefault("recall_at_4", []).append(float(ranks[0] <= 4))
            expected.setdefault("mean_ap", []).append(sum(precisions) / len(ranks))
            inside = [one for one, rank in zip(precisions, ranks, strict=True) if rank <= len(ranks)]
            expected.setdefault("map_at_r", []).append(sum(inside) / len(ranks))
            expected.setdefault("r_precision", []).append(len(inside) / len(ranks))
        result = found[f"product, {title}"]
        for key, values in expected.items():
            assert result.values[key] == pytest.approx(np.mean(values), abs=1e-9), (kind, key)
            low, high = result.intervals[key]
            assert low <= result.values[key] <= high
    assert evaluate_gallery(gallery).headline.by is None
    best = found["product, best view"].intervals["mean_ap"]
    assert np.ptp(best) > 0.03, "of products, not of views"


def test_comparisons_go_by_products(gallery: Gallery, tmp_path: Path, vectors: np.ndarray) -> None:
    """The differences are those of ranked products, and the intervals those of resampled products."""
    random = np.random.default_rng(1)
    worse = unit(vectors + 0.2 * random.normal(size=vectors.shape))
    other = make(tmp_path / "other", worse, [label(i) for i in range(COUNT)])
    other.use_products("sku")
    values: dict[str, list[np.ndarray]] = {"recall_at_1": [], "map_at_r": []}
    for side in (vectors, worse):
        recalls, maps = [], []
        for i in range(COUNT):
            right = [n // PRODUCTS == product(i) // PRODUCTS for _, n in ranked_products(side, i, "best")]
            inside = right[: PRODUCTS - 1]
            precisions = [sum(inside[: at + 1]) / (at + 1) for at in range(len(inside)) if inside[at]]
            recalls.append(float(right[0]))
            maps.append(sum(precisions) / (PRODUCTS - 1))
        values["recall_at_1"].append(np.array(recalls))
        values["map_at_r"].append(np.array(maps))
    upgrade = compare_models(gallery, other)
    assert upgrade is not None
    reports = [Contender(name, (evaluate_gallery(one),)) for name, one in (("a", gallery), ("b", other))]
    comparison = compare_reports(reports)
    (pair,) = comparison.pairs
    assert pair.verdict is not None
    assert pair.mcnemar is None, "queries of a product are not independent"
    for key, (before, after) in values.items():
        of_products = (after - before).reshape(-1, VIEWS).mean(1)
        drawn = random.integers(0, len(of_products), (4000, len(of_products)))
        ends = np.quantile(of_products[drawn].mean(1), (0.025, 0.975))
        for verdict in (upgrade.verdict, pair.verdict):
            change = verdict.changes[key]
            assert change.difference == pytest.approx((after - before).mean(), abs=1e-5)
            np.testing.assert_allclose(change.interval, ends, atol=0.02)
        for row, side in zip(comparison.rows, (before, after), strict=True):
            assert row.numbers[key].mean == pytest.approx(side.mean(), abs=1e-6)
    gallery.use_products(None)
    mixed = [Contender("a", (evaluate_gallery(gallery),)), reports[1]]
    (row, _) = compare_reports(mixed).rows
    assert row.numbers["recall_at_1"].mean > values["recall_at_1"][0].mean() + 0.1, "of images, as before"


@pytest.mark.parametrize("column", ["label", "sku"])
def test_shown_variants_are_counted(tmp_path: Path, vectors: np.ndarray, column: str) -> None:
    """Among the right products with a choice, one by one: does the best view have the query's colour?"""
    random = np.random.default_rng(2)
    colours = [random.choice(["red", "green", None]) for _ in range(COUNT)]
    store = Store.create(tmp_path / "g", Manifest("", DIM, embedding="random"))
    items = [
        NewItem(
            FileStamp("/p", f"{i}.jpg", 1, 1, label(i)),
            f"{i:064x}",
            1,
            1,
            {"sku": product(i), "c": colours[i]},
            str(i),
        )
        for i in range(COUNT)
    ]
    with store.writing():
        store.commit(vectors, items)
    made = Gallery.open(tmp_path / "g")
    made.use_products(f"{column},c")
    shown = []
    for i in range(COUNT):
        best: tuple[float, bool] | None = None
        group = {"label": label, "sku": product}[column]
        for one in {group(j) for j in range(COUNT)}:
            views = [j for j in range(COUNT) if group(j) == one and j != i]
            if column == "sku" and one == product(i):
                continue
            if not any(label(j) == label(i) for j in views) or colours[i] is None:
                continue
            first = max(views, key=lambda j: float(vectors[i] @ vectors[j]))
            if 0 < sum(colours[j] == colours[i] for j in views) < len(views):
                score = float(vectors[i] @ vectors[first])
                if best is None or score > best[0]:
                    best = score, colours[first] == colours[i]
        if best is not None:
            shown.append(best[1])
    (note,) = [note for note in evaluate_gallery(made).notes if "variants to choose from" in note]
    assert f"{100 * np.mean(shown):.1f}%" in note
    assert f"of {len(shown)} queries" in note
    made.use_products(column)
    assert not any("variants" in note for note in evaluate_gallery(made).notes)


def test_products_that_are_the_labels_are_found(tmp_path: Path, vectors: np.ndarray) -> None:
    """A query finds its own product by its other views; without these, it is asked for nothing."""
    labels = [f"product {product(i)}" for i in range(COUNT)]
    made = make(tmp_path / "g", vectors, labels)
    made.use_products("sku")
    for kind, one in zip(("best", "mean", "soft"), evaluate_gallery(made).results[1:], strict=True):
        first = [ranked_products(vectors, i, kind, other=False) for i in range(COUNT)]
        for k in (1, 2, 8):
            right = [product(i) in [n for _, n in ranked[:k]] for i, ranked in enumerate(first)]
            assert one.values[f"recall_at_{k}"] == pytest.approx(np.mean(right))
    single = [i for i in range(COUNT) if i % VIEWS == 0 or i < VIEWS]  # one product has several views
    some = make(tmp_path / "s", vectors[single], [labels[i] for i in single])
    some.use_products("label")
    (_, best, _, _) = evaluate_gallery(some).results
    others = [
        sorted((float(vectors[i] @ vectors[j]), j) for j in single if j != i)[::-1] for i in range(VIEWS)
    ]
    assert best.values["recall_at_1"] == pytest.approx(np.mean([one[0][1] < VIEWS for one in others]))


def test_costs_of_a_ranking_are_those_of_products(gallery: Gallery, vectors: np.ndarray) -> None:
    cost = ranking_cost(gallery, SearchOptions(diversity=0.5))
    assert cost.plain["recall_at_1"] == pytest.approx(recall(vectors, 1, products=True))
    assert cost.plain["recall_at_10"] == pytest.approx(recall(vectors, 10, products=True))
    gallery.use_products("label")
    assert ranking_cost(gallery, SearchOptions(diversity=0.5)).plain["recall_at_1"] > 0.9


def test_calibration_judges_other_products(gallery: Gallery, vectors: np.ndarray) -> None:
    hits = judged_hits(gallery)
    for i in (0, 77, 200):
        mine = hits[(hits.queries == 4 * i + PRESENT)]
        best = {product(j): float(vectors[i] @ vectors[j]) for j in range(COUNT) if product(j) != product(i)}
        for j in range(COUNT):
            if product(j) in best:
                best[product(j)] = max(best[product(j)], float(vectors[i] @ vectors[j]))
        expected = sorted(best.items(), key=lambda pair: -pair[1])[:DEPTH]
        np.testing.assert_allclose(mine.scores, [score for _, score in expected], atol=1e-6)
        assert mine.right.tolist() == [label(VIEWS * number) == label(i) for number, _ in expected]


def test_a_label_that_all_views_share_is_suspected(tmp_path: Path, vectors: np.ndarray) -> None:
    labels = [label(i) for i in range(COUNT)]
    wrong = range(8, 12)  # all views of the third product
    for i in wrong:
        labels[i] = "kind 7"
    made = make(tmp_path / "g", vectors, labels)

    def suspected() -> set[int]:
        return {int(one.item.key) for one in find_suspects(made, k=3, limit=COUNT).suspects} & {*wrong}

    assert suspected() == set(), "they confirm each other"
    made.use_products("sku")
    assert suspected() == {*wrong}


def test_duplicates_are_those_of_different_products(tmp_path: Path, vectors: np.ndarray) -> None:
    contents = [f"{i:064x}" for i in range(COUNT)]
    contents[1] = contents[0]  # of one product
    contents[100] = contents[40]  # of two
    made = make(tmp_path / "g", vectors, [label(0)] * COUNT, contents)
    made.use_products("sku")
    groups = made.duplicates(0.9999).groups
    assert [{item.key for item in group.members} for group in groups] == [{"40", "100"}]
    thinned = plan_thinning(made, groups, "first", 0.9999)
    assert thinned.surplus == [], "an image of one product does not stand for another"


def test_leakage_names_products_in_both_galleries(tmp_path: Path, vectors: np.ndarray) -> None:
    half = [*range(0, COUNT // 2 + 2)], [*range(COUNT // 2 + 2, COUNT)]
    train, test = tmp_path / "train", tmp_path / "test"
    for folder, some in zip((train, test), half, strict=True):
        store = Store.create(folder, Manifest("", DIM, embedding="random"))
        items = [NewItem(FileStamp("", "", 0, 0, "a"), "", 1, 1, {"sku": product(i)}, str(i)) for i in some]
        with store.writing():
            store.commit(vectors[some], items)
        Gallery.open(folder).use_products("sku")
    found = find_leakage(Gallery.open(train), Gallery.open(test), 0.9999)
    assert found.products == [product(COUNT // 2 + 1)]
    assert not found.leaks
    text = lookalike_here("check", "leakage", str(train), str(test), "--min-score", "0.9999").stdout
    assert "products with views in both: 1" in text
