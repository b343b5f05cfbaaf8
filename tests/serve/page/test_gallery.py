"""Statistics against independent computations."""

from __future__ import annotations

import statistics as reference
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.search.where import parse_condition
from retrieval.storage.records import FileStamp, NewItem
from serve.page.statistics import (
    NO_LABEL,
    CachedStatistics,
    gallery_statistics,
    label_filter,
    statistics_view,
)
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
            assert len(gallery.select(where=label_filter(label))) == n
        if found.labels.without:
            assert len(gallery.select(where=NO_LABEL)) == found.labels.without
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
