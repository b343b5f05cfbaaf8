"""Statistics and near-duplicates against independent computations."""

from __future__ import annotations

import shutil
import statistics as reference
import threading
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import Gallery, InputError
from retrieval.search.where import parse_condition
from retrieval.storage.records import FileStamp, NewItem
from retrieval.upkeep.duplicate_groups import Group
from retrieval.upkeep.duplicates import find_duplicates
from serve.core import analyses, changes
from serve.core.errors import BusyError, UnavailableError
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from serve.page.contents import image_page
from serve.page.duplicates import Duplicates
from serve.page.statistics import (
    NO_LABEL,
    CachedStatistics,
    gallery_statistics,
    label_filter,
    statistics_view,
)
from tests.conftest import draw, wait_until
from tests.retrieval.filling import bare_gallery, unit_vectors

texts = st.text(alphabet="ab'\"<é ", min_size=1, max_size=4)
image_items = st.fixed_dictionaries(
    {
        "label": st.none() | st.just("") | texts,
        "size": st.tuples(st.integers(0, 9), st.integers(0, 9)),
        "note": st.none() | texts,
        "price": st.none() | st.integers(-5, 5) | st.floats(-10, 10),
        "gone": st.booleans(),
    }
)


@given(st.lists(image_items, max_size=30))
def test_statistics_match_a_direct_computation(given: list[dict[str, object]]) -> None:
    with TemporaryDirectory() as folder:
        gallery = bare_gallery(Path(folder) / "g")
        items = [
            NewItem(
                FileStamp("/p", f"{n}.png", 1, 1, one["label"]),  # type: ignore[arg-type]
                "",
                *one["size"],  # type: ignore[misc]
                {"note": one["note"], "price": one["price"]},  # type: ignore[dict-item]
            )
            for n, one in enumerate(given)
        ]
        with gallery.store.writing():
            gallery.store.commit(unit_vectors(len(items)), items)
            gallery.store.remove(n for n, one in enumerate(given, 1) if one["gone"])
        gallery.refresh()
        found = gallery_statistics(gallery)
        there = [one for one in given if not one["gone"]]
        assert found.images == len(there)
        labels = Counter(one["label"] for one in there if one["label"])
        assert found.labels.count == len(labels)
        assert found.labels.without == len(there) - labels.total()
        assert [n for _, n in found.labels.most] == [n for _, n in labels.most_common(12)]
        assert all(labels[label] == n for label, n in found.labels.most)
        if found.labels.least:
            assert labels[found.labels.least[0]] == found.labels.least[1] == min(labels.values())
        areas = sorted(w * h for w, h in (one["size"] for one in there) if w * h)  # type: ignore[misc]
        if found.sizes is None:
            assert not areas
        else:
            sizes = (found.sizes.smallest, found.sizes.median, found.sizes.largest)
            expected = [areas[0], reference.median_low(areas), areas[-1]]
            assert [width * height for width, height in sizes] == expected
        columns = {column.name: column for column in found.columns}
        for name, column in columns.items():
            values = [one[name] for one in there if one[name] is not None]
            assert (column.filled, column.distinct) == (len(values), len(set(values)))
            if column.numbers:
                expected = [min(values), reference.median(values), max(values)]  # type: ignore[type-var]
                assert column.numbers == pytest.approx(expected)
            if column.most:
                assert column.most[1] == Counter(values)[column.most[0]] == max(Counter(values).values())
        for label, n in found.labels.most:
            assert image_page(gallery, label_filter(label), 0).total == n
        if found.labels.without:
            assert image_page(gallery, NO_LABEL, 0).total == found.labels.without
        assert "<é" not in statistics_view(found)


def test_statistics_are_computed_once_for_each_state(tmp_path: Path) -> None:
    gallery = bare_gallery(tmp_path / "g")
    counted = CachedStatistics()
    first = counted.of(gallery)
    assert counted.of(gallery) is first
    with gallery.store.writing():
        gallery.store.commit(unit_vectors(1), [NewItem(FileStamp("/p", "x", 1, 1, "red"), "", 1, 1)])
    gallery.refresh()
    assert counted.of(gallery).labels.count == 1


def test_any_label_gives_a_valid_filter() -> None:
    for label in ("it's", '"', "' or 1 = 1 --", "\\"):
        parse_condition(label_filter(label))


# ---- near-duplicates


@pytest.fixture
def service(shop_gallery: Path, tmp_path: Path) -> SearchService:
    """The shop, and four images stored twice."""
    folder = shutil.copytree(shop_gallery, tmp_path / "g")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for n in range(4):
            draw(700 + n, hue=n).save(tmp_path / name / f"{n}{name}.{'png' if name == 'one' else 'bmp'}")
    Gallery(folder).add([tmp_path / "one", tmp_path / "two"])
    return SearchService(folder, permissions=Permissions(changes=True))


def found(looked: Duplicates, min_score: float) -> list[Group]:
    """Run a search for near-duplicates and return its groups."""
    looked.start(min_score)
    wait_until(lambda: not looked.status(min_score).running)
    look = looked.status(min_score)
    assert not look.failure
    assert look.result is not None
    return look.result


def test_duplicates_are_searched_once_for_each_state(
    service: SearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(*args: object) -> list[Group]:
        calls.append(args)
        return find_duplicates(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(analyses, "find_duplicates", counted)
    looked = Duplicates(service)
    groups = found(looked, 0.999)
    assert groups == find_duplicates(service.gallery, 0.999).groups
    assert len(groups) >= 4
    assert found(looked, 0.999) == groups
    assert len(calls) == 1
    found(looked, 0.99)
    assert len(calls) == 2
    gone = groups[0].members[0].id
    changes.remove(service, [gone])
    left = looked.status(0.999).result
    assert len(calls) == 2  # nothing is compared again
    assert left == find_duplicates(service.gallery, 0.999).groups
    assert gone not in {item.id for group in left for item in group.members}
    found(looked, 0.999)
    assert len(calls) == 3
    for score in (0.95, 0.9, 0.85):
        found(looked, score)
    assert looked.status(0.999).result == left  # of another visitor, perhaps
    with pytest.raises(InputError, match="search again"):
        looked.status(0.99)


def test_only_one_duplicate_search_runs_at_a_time(
    service: SearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def slow(*args: object) -> list[Group]:
        go.wait(30)
        return find_duplicates(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(analyses, "find_duplicates", slow)
    looked, other = Duplicates(service), Duplicates(service)
    looked.start(0.95)
    try:
        assert looked.status(0.95).running
        with pytest.raises(BusyError):
            other.start(0.95)
        with pytest.raises(BusyError):
            looked.start(0.9)
        with pytest.raises(InputError, match="search again"):
            looked.status(0.9)
        looked.start(0.95)  # the same search continues
        assert looked.status(0.95).running
    finally:
        go.set()
    assert found(looked, 0.95) == found(other, 0.95) == find_duplicates(service.gallery, 0.95).groups


def test_failed_duplicate_search_can_be_retried(
    service: SearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> list[Group]:
        raise UnavailableError("it is gone")

    looked = Duplicates(service)
    with monkeypatch.context() as patch:
        patch.setattr(analyses, "find_duplicates", broken)
        looked.start(0.95)
        wait_until(lambda: not looked.status(0.95).running)
        assert "it is gone" in str(looked.status(0.95).failure)
    assert found(looked, 0.95)


def test_duplicates_of_a_replaced_gallery_are_not_shown(service: SearchService) -> None:
    looked = Duplicates(service)
    assert found(looked, 0.95)
    service.folder.rename(service.folder.with_name("before"))
    bare_gallery(service.folder)
    wait_until(lambda: not len(service.gallery))
    with pytest.raises(InputError, match="search again"):
        looked.status(0.95)


@pytest.mark.parametrize("score", [0.79, 1.01, float("nan"), -1])
def test_thresholds_out_of_range_are_refused(service: SearchService, score: float) -> None:
    with pytest.raises(InputError):
        Duplicates(service).start(score)


def test_duplicate_search_in_a_large_gallery_is_refused(
    service: SearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analyses, "MAX_COMPARED", 10)
    with pytest.raises(InputError, match="more than 10 images"):
        Duplicates(service).start(0.95)


def test_lowest_similarity_follows_removals(service: SearchService) -> None:
    looked = Duplicates(service)
    large = next(group for group in found(looked, 0.9) if len(group.members) > 4)
    changes.remove(service, [item.id for item in large.members[:3]])
    (left,) = [
        group for group in looked.status(0.9).result or [] if group.members[0].id == large.members[3].id
    ]
    vectors = np.array([service.gallery.vector(item.id) for item in left.members])
    assert left.lowest == pytest.approx(float((vectors @ vectors.T).min()), abs=1e-6)
