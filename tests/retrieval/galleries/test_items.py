"""Hits as a sequence and as a table, galleries and embeddings as tables of other libraries."""

from __future__ import annotations

import gc
import pickle
import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from retrieval import Gallery, Hit, InputError, Item
from retrieval.arrow import AT_ONCE
from retrieval.galleries.items import Hits
from tests.retrieval.filling import bare_gallery, commit, new_items, unit_vectors

NAMES = ("apple", "banana", "cherry", "damson")
COLUMNS = {
    "id": pa.int64(),
    "key": pa.string(),
    "path": pa.string(),
    "label": pa.string(),
    "width": pa.int64(),
    "height": pa.int64(),
}
METADATA = {"brand": pa.string(), "stock": pa.int64(), "price": pa.float64()}


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    """Four fruits, of which the last has no metadata."""
    made = bare_gallery(tmp_path / "g")
    commit(made, [NAMES[0]], 0, brand="o'a <b>", stock=3, price=1.5)
    commit(made, [NAMES[1], NAMES[2]], 1, brand="b", stock=4, price=2)
    commit(made, [NAMES[3]], 2)
    return made


def hits_of(gallery: Gallery, k: int = 10, **options: str) -> Hits:
    (hits,) = gallery.search_vectors(unit_vectors(1, 0), k, **options)
    return hits


def test_hits_are_a_sequence_and_equal_to_a_list(gallery: Gallery) -> None:
    hits = hits_of(gallery)
    listed = [*hits]
    assert len(hits) == len(listed) == 4
    assert all(type(hit) is Hit for hit in listed)
    assert hits == listed == hits
    assert hits != listed[:3]
    assert [*reversed(hits)] == listed[::-1]
    assert (hits[0], hits[-1]) == (listed[0], listed[-1])
    assert isinstance(hits[1:3], Hits)
    assert hits[1:3] == listed[1:3]
    assert listed[2] in hits
    assert not hits[4:]
    with pytest.raises(IndexError):
        hits[4]
    assert pickle.loads(pickle.dumps(hits)) == listed


def test_text_of_hits_has_a_line_for_each_and_is_bounded(gallery: Gallery) -> None:
    lines = repr(hits_of(gallery)).splitlines()
    assert lines[0] == "4 hits"
    assert lines[1].split() == ["score", "label", "path"]
    assert lines[2].split() == ["1.0000", "a", "/pictures/apple.jpg"]
    many = Hits([Hit(n, f"{n}.jpg\x1b[2J", None) for n in range(5000)])
    assert repr(many).splitlines()[-1] == "... 4,980 more"
    assert "\x1b" not in repr(many)
    assert repr(Hits([])) == "0 hits"


def test_text_of_a_gallery_tells_what_it_holds_also_if_it_is_gone(gallery: Gallery) -> None:
    assert repr(gallery) == f"<FileGallery {gallery.folder}: 4 images, 48 dimensions, index flat>"
    assert repr(gallery.embeddings()) == "<StoredEmbeddings: 4 vectors of 48 dimensions, of 4>"


def test_hits_are_a_table_of_every_library(gallery: Gallery) -> None:
    hits = hits_of(gallery)
    expected = {
        "id": [hit.id for hit in hits],
        "label": [hit.label for hit in hits],
        "score": [np.float32(hit.score) for hit in hits],
        "probability": [None] * 4,
        "price": [hit.metadata.get("price") for hit in hits],
        "brand": [hit.metadata.get("brand") for hit in hits],
    }
    table = pa.table(hits)
    score = {"score": pa.float32(), "probability": pa.float32()}
    assert table.schema == pa.schema({**COLUMNS, **score, **METADATA})
    frames = (
        pd.DataFrame.from_arrow(hits),
        pl.DataFrame(hits),
        duckdb.sql("from hits").pl(),
        pl.from_arrow(table),
    )
    for frame in frames:
        found = {name: [None if pd.isna(v) else v for v in frame[name].to_list()] for name in expected}
        assert found == expected
    dear = duckdb.sql("select label from hits where brand = 'o''a <b>' and price > 1")
    assert dear.fetchall() == [("a",)]


@pytest.mark.parametrize("condition", ["label = 'nothing'", "label = 'd'"])
def test_types_are_those_of_the_gallery_whatever_the_hits_are(gallery: Gallery, condition: str) -> None:
    some = pa.table(hits_of(gallery, where=condition))
    assert some.schema == pa.table(hits_of(gallery)).schema
    assert pa.concat_tables([some, pa.table(hits_of(gallery))]).num_rows == len(some) + 4
    assert pa.table(pickle.loads(pickle.dumps(hits_of(gallery)))).schema == pa.table(hits_of(gallery)).schema


def test_gallery_is_a_table_of_all_its_items(gallery: Gallery) -> None:
    gallery.remove(
        ["/pictures/banana.jpg"] if "/pictures/banana.jpg" in pl.DataFrame(gallery)["key"] else [2]
    )
    frame = pl.DataFrame(gallery)
    assert pa.table(gallery).schema == pa.schema({**COLUMNS, **METADATA})
    for item in gallery.items(gallery.select(where="id > 0")).values():
        (row,) = frame.filter(pl.col("id") == item.id).to_dicts()
        assert row == {
            **{name: getattr(item, name) for name in COLUMNS},
            **{name: item.metadata.get(name) for name in METADATA},
        }
    assert len(frame) == len(gallery) == 3
    assert duckdb.sql("select sum(stock) from gallery").fetchall() == [(7,)]


def test_embeddings_are_a_table_with_vectors(gallery: Gallery) -> None:
    found = gallery.embeddings()
    table = pa.table(found)
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 48)
    flat = table["vector"].chunk(0).flatten().to_numpy(zero_copy_only=True)
    assert np.shares_memory(flat, found.vectors)
    np.testing.assert_array_equal(flat.reshape(-1, 48), found.vectors)
    assert table["id"].to_pylist() == found.ids.tolist()
    assert table["label"].to_pylist() == ["a", "b", "c", "d"]
    assert np.array(duckdb.sql("select vector from found").fetchall()).shape == (4, 1, 48)


def test_metadata_with_the_name_of_a_column_of_hits_keeps_its_values(tmp_path: Path) -> None:
    made = bare_gallery(tmp_path / "g")
    commit(made, ["a"], Probability=7)
    assert pl.DataFrame(hits_of(made))["metadata.Probability"].to_list() == [7]
    assert pl.DataFrame(made)["Probability"].to_list() == [7]


def test_empty_gallery_is_an_empty_table(tmp_path: Path) -> None:
    assert pa.table(bare_gallery(tmp_path / "g")).schema == pa.schema(COLUMNS)
    assert pl.DataFrame(bare_gallery(tmp_path / "h")).shape == (0, len(COLUMNS))


def test_without_pyarrow_the_error_names_the_extra(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for table in (gallery, hits_of(gallery), gallery.embeddings()):
        with pytest.raises(InputError, match=r"needs pyarrow: .*install 'lookalike\[parquet\]'"):
            table.__arrow_c_stream__()


@pytest.mark.slow
def test_memory_of_a_stream_does_not_grow_with_the_gallery(tmp_path: Path) -> None:
    """Of 100,000 items, two batches are in memory: one being made, and one that is read."""
    made = bare_gallery(tmp_path / "g")
    with made.store.writing():
        names = [f"n{number}" for number in range(100_000)]
        made.store.commit(np.ones((len(names), 48), np.float32), new_items(names, price=1.5, brand="b"))
    made.refresh()
    before, rows, sizes = pa.total_allocated_bytes(), 0, []
    for batch in pa.RecordBatchReader.from_stream(made):
        rows += batch.num_rows
        assert sum(type(thing) is Item for thing in gc.get_objects()) <= 2 * AT_ONCE
        sizes.append(pa.total_allocated_bytes() - before)
    assert rows == 100_000
    assert len(sizes) == -(-rows // AT_ONCE)
    assert max(sizes) < 1.5 * max(sizes[:2])
