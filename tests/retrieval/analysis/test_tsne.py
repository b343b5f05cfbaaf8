"""t-SNE map: neighbourhoods, reproducibility, and the self-contained page."""

from __future__ import annotations

import json
import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from retrieval import InputError, metrics
from retrieval.analysis.embeddings import Embeddings
from retrieval.analysis.map_page import map_page
from retrieval.analysis.tsne import TsneMap, draw_map, draw_maps, tsne_map
from retrieval.reports.figures import render_figure
from tests.conftest import draw


def groups(count: int = 10, each: int = 8, labels: np.ndarray | None = None) -> Embeddings:
    """Clustered points; every fourth is synthetic."""
    random = np.random.default_rng(0)
    numbers = np.repeat(np.arange(count), each)
    vectors = random.normal(size=(count, 16))[numbers] + 0.2 * random.normal(size=(len(numbers), 16))
    names = numbers if labels is None else labels
    return Embeddings("groups", vectors, names, None, np.arange(len(numbers)) % 4 == 0)


@pytest.fixture(scope="module")
def found() -> TsneMap:
    return tsne_map(groups())


def test_neighbours_on_the_map_are_of_one_cluster(found: TsneMap) -> None:
    points = np.ascontiguousarray(found.points, np.float32)
    distances = ((points[:, None] - points[None]) ** 2).sum(2)
    np.fill_diagonal(distances, np.inf)
    assert (found.embeddings.labels[distances.argmin(1)] == found.embeddings.labels).all()


def test_map_figure_and_page_are_reproducible(found: TsneMap) -> None:
    again = tsne_map(groups())
    np.testing.assert_array_equal(found.points, again.points)
    assert render_figure(partial(draw_map, found), 10, 7) == render_figure(partial(draw_map, again), 10, 7)
    assert map_page(found) == map_page(again)


def test_beyond_the_limit_a_random_sample_is_mapped() -> None:
    first, again, other = (tsne_map(groups(), limit=30, seed=seed) for seed in (1, 1, 2))
    assert len(first.points) == 30
    assert first.total == 80
    assert "24 images and 6 synthetic points (a random sample of 80)" in first.title
    np.testing.assert_array_equal(first.embeddings.vectors, again.embeddings.vectors)
    assert not np.array_equal(first.embeddings.vectors, other.embeddings.vectors)
    everything = {row.tobytes() for row in groups().vectors}
    assert len({row.tobytes() for row in first.embeddings.vectors} & everything) == 30


def test_default_perplexity_depends_on_the_number_of_points() -> None:
    assert tsne_map(groups(2, 2)).perplexity == 1
    assert tsne_map(groups(5, 4)).perplexity == pytest.approx(19 / 3)
    assert tsne_map(groups(10, 10)).perplexity == 30


def test_largest_or_chosen_classes_have_colours(found: TsneMap) -> None:
    sizes = np.repeat([f"c{i}" for i in range(10)], [3, 9, 9, 9, 9, 9, 9, 9, 9, 5])
    assert tsne_map(groups(labels=sizes)).shown == tuple(f"c{i}" for i in range(1, 9))
    assert tsne_map(groups(), shown=["7", "3", "7"]).shown == ("7", "3")
    assert len(found.shown) == 8


def test_invalid_input_is_refused() -> None:
    equal = Embeddings("equal", np.tile(groups().vectors[0], (9, 1)), np.arange(9))
    flat = Embeddings("flat", np.array([[1.0], [-1], [1], [-1]]), np.arange(4))
    for embeddings, options, why in [
        (groups(3, 1), {}, "at least 4 embeddings, there are 3"),
        (equal, {}, "equal: all embeddings are equal"),
        (flat, {}, "at least 2 numbers"),
        (groups(), {"perplexity": 80}, "at least 1 and below 80, not 80"),
        (groups(), {"perplexity": 0.5}, "at least 1"),
        (groups(), {"perplexity": float("nan")}, "at least 1"),
        (groups(), {"shown": ["11"]}, "no image on the map is of class '11'; did you mean '1'?"),
        (groups(), {"shown": [str(i) for i in range(9)]}, "at most 8 classes"),
    ]:
        with pytest.raises(InputError, match=re.escape(why)):
            tsne_map(embeddings, **options)  # type: ignore[arg-type]


class Reader(HTMLParser):
    """Collects the marks of the map, its data, and all URLs that a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.marks: list[str] = []
        self.fetched: list[str] = []
        self.stack: list[str] = []
        self.data = self.shown = ""
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        self.stack.append(f"{tag}#{values.get('id')}")
        self.fetched += [value for name in ("src", "href") if (value := values.get(name))]
        if tag == "path" and values.get("transform"):
            self.marks.append(values["class"] or "")

    def handle_data(self, data: str) -> None:
        if self.stack[-1:] == ["script#data"]:
            self.data += data
        elif self.stack[-1:] and not self.stack[-1].startswith(("script", "style")):
            self.shown += data


def test_page_is_self_contained_and_safe(tmp_path: Path) -> None:
    hostile = ["</script><b>bold</b>", "@data@", "a & b", "plain", "@title@"]
    paths = [tmp_path / "photos" / f"{i}" / f"{i}.png" for i in range(20)]
    for seed, path in enumerate(paths[:-1]):  # the last one is gone
        path.parent.mkdir(parents=True)
        draw(seed, (200, 90)).save(path)
    some = groups(5, 4, np.repeat(hostile, 4))
    mapped = tsne_map(Embeddings("<i>", some.vectors, some.labels, np.array(list(map(str, paths)))))
    text = map_page(mapped)
    read = Reader(text)
    assert len(read.marks) == 20
    assert read.fetched == []
    assert "b" not in read.tags
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    assert str(tmp_path) not in text  # paths are relative to their common folder
    data = json.loads(read.data)
    assert [data["classes"][i] for i in data["labels"]] == some.labels.tolist()
    assert data["names"][3] == "3/3.png"
    assert all(uri.startswith("data:image/webp;base64,") for uri in data["images"][:-1])
    assert data["images"][-1].startswith("data:image/svg+xml")
    assert all(label in read.shown for label in hostile)


def test_synthetic_points_are_hollow(found: TsneMap) -> None:
    read = Reader(map_page(found))
    hollow = ["s" in kind.split() for kind in read.marks]
    assert hollow == found.embeddings.synthetic.tolist()
    assert "Hollow: synthetic points." in read.shown
    assert set(json.loads(read.data)["images"]) == {""}


def test_points_without_files_have_no_thumbnail(shop: Path) -> None:
    paths = np.array([str(shop / "red" / "0.png"), "", str(shop / "blue" / "1.png"), ""])
    some = groups(2, 2)
    data = json.loads(Reader(map_page(tsne_map(Embeddings("x", some.vectors, some.labels, paths)))).data)
    assert data["names"] == ["red/0.png", "", "blue/1.png", ""]
    assert [uri[:15] for uri in data["images"]] == ["data:image/webp", ""] * 2


def test_page_keeps_the_aspect_ratio(found: TsneMap) -> None:
    """Distances on the page are those of the map, times a constant."""
    places = np.array(re.findall(r'translate\(([\d.-]+) ([\d.-]+)\)"', map_page(found)), float)
    assert places.min() >= 0
    assert places.max() <= 1000
    ours, theirs = (np.linalg.norm(p[1:] - p[:-1], axis=1) for p in (places, found.points))
    np.testing.assert_allclose(ours / ours.sum(), theirs / theirs.sum(), atol=1e-3)


def test_nearest_neighbours_of_digits_are_kept() -> None:
    """The nearest neighbour of a digit on the map is nearly always of its class."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    embeddings = Embeddings("digits", digits.data[:600], digits.target[:600])
    mapped = tsne_map(embeddings)
    points = np.ascontiguousarray(mapped.points, np.float32)
    points -= points.mean(0)
    nearest = ((points[:, None] - points[None]) ** 2).sum(2)
    np.fill_diagonal(nearest, np.inf)
    on_map = (embeddings.labels[nearest.argmin(1)] == embeddings.labels).mean()
    assert on_map > metrics.recall_at_k(embeddings.vectors, embeddings.classes, ks=(1,))[1] - 0.05


def test_maps_side_by_side_share_their_colours() -> None:
    """A title for each panel, one legend, and hollow marks for synthetic points in either colouring."""
    some = groups()
    marks = np.arange(len(some)) % 4 == 0
    maps = []
    for name in ("step 0", "step 9", "step 20", "step 30"):
        shown = maps[0].shown if maps else ()
        maps.append(tsne_map(Embeddings(name, some.vectors, some.labels, None, marks), shown=shown))
    texts = {}
    for by_kind in (False, True):
        figure = Figure()
        draw_maps(maps, figure, by_kind=by_kind)
        panels = figure.get_axes()
        assert [axes.get_title().partition("\n")[0] for axes in panels] == [
            "step 0",
            "step 9",
            "step 20",
            "step 30",
        ]
        texts[by_kind] = [text.get_text() for text in figure.legends[0].get_texts()]
        drawn = [mark for mark in panels[0].collections if len(mark.get_offsets())]
        hollow = [mark for mark in drawn if not len(mark.get_facecolor())]
        assert sum(len(mark.get_offsets()) for mark in hollow) == marks.sum()
        assert sum(len(mark.get_offsets()) for mark in drawn) == len(some)
    assert texts[True] == ["images", "synthetic points"]
    assert texts[False][-1] == "hollow: synthetic"
    assert set(maps[0].shown) < set(texts[False])
    assert f"{(~marks).sum()} images and {marks.sum()} synthetic points" in maps[0].title
