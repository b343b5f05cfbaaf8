"""A gallery in each database beside one in files, with the same images: everything that both can do."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from retrieval import Gallery
from retrieval.curation.duplicates import find_duplicates
from retrieval.curation.store_duplicates import find_in_store
from retrieval.errors import InputError
from retrieval.galleries.database import StoreGallery
from retrieval.galleries.searchable import Hit, SearchableGallery
from retrieval.ingest.indexing import add_images
from retrieval.ingest.sources import Sources
from retrieval.ingest.store_indexing import add_to_store
from retrieval.model.embedder import Embedder
from retrieval.search.calibration import NAME, Calibration, write_calibration
from retrieval.search.query import SearchOptions
from retrieval.stores.address import Address
from retrieval.stores.engine import Amendment
from retrieval.stores.opening import parse_address
from retrieval.upkeep.store_verify import verify_store
from tests.conftest import draw
from tests.retrieval.stores.conftest import Database
from tests.serve.model import write_model

COUNT = 40
BRANDS = ["acme", "Äcme", "b'b", "zoo", ""]


class Pair(NamedTuple):
    """The same images in a gallery in files and in one in a database."""

    files: Gallery
    store: StoreGallery
    sources: Sources
    address: Address
    refuses: frozenset[str]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folder of images of three classes, two of them the same, and a table with their metadata."""
    folder = tmp_path_factory.mktemp("images")
    rows = []
    for n in range(COUNT):
        path = folder / "rgb"[n % 3] / f"{n}.png"
        path.parent.mkdir(exist_ok=True)
        draw(0 if n == 3 else n, hue=n % 3).save(path)
        price = "" if n % 7 == 0 else f"{(n - 10) * (0.5 if n % 2 else 1):g}"
        added = "" if n % 5 == 0 else f"2024-05-{1 + n % 28:02}T0{n % 9}:00:00+02:00"
        row = {
            "path": f"{path.parent.name}/{path.name}",
            "price": price,
            "Brand": BRANDS[n % 5],
            "added": added,
        }
        rows.append(row | ({"id": f"item {n}"} if n % 4 == 0 else {"id": row["path"]}))
    table = folder / "table.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return folder, table


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(write_model(tmp_path_factory.mktemp("model") / "model.onnx"))


def new_pair(database: Database, model: Embedder, images: tuple[Path, Path], folder: Path) -> Pair:
    sources = Sources([images[0]], metadata=images[1])
    files = Gallery.create(folder / "files", model)
    add_images(files, sources)
    files.refresh()
    address = parse_address(database.new_collection())
    store = StoreGallery.create(folder / "store", model, address)
    added = add_to_store(store, sources, recall=0.95)
    assert (added.added, added.bad) == (COUNT, [])
    return Pair(files, store, sources, address, database.refuses)


@pytest.fixture(scope="module")
def pair(
    database: Database, model: Embedder, images: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Galleries that tests only read."""
    found = new_pair(database, model, images, tmp_path_factory.mktemp("pair"))
    yield found
    found.store.engine.close()


@pytest.fixture
def changing(
    database: Database, model: Embedder, images: tuple[Path, Path], tmp_path: Path
) -> Iterator[Pair]:
    """Galleries of a test's own."""
    found = new_pair(database, model, images, tmp_path)
    yield found
    found.store.engine.close()


def check_hits(files: list[Hit], store: list[Hit], atol: float = 1e-5) -> None:
    """Check that hits have the same scores, and the same images except where scores are equal."""
    np.testing.assert_allclose([hit.score for hit in store], [hit.score for hit in files], atol=atol)
    for a, b in zip(files, store, strict=True):
        equals = {hit.key for hit in files if abs(hit.score - a.score) < 2 * atol}
        assert b.key in equals
        if len(equals) == 1:
            assert (a.path, a.label, a.metadata) == (b.path, b.label, b.metadata)


def contents(gallery: SearchableGallery) -> dict[str, tuple[object, ...]]:
    """Everything about all items except ids, by key."""
    items = gallery.items(gallery.select(where="id > 0"))
    vectors = gallery.vectors([*items])
    return {
        item.key: (item.path, item.label, item.metadata, vectors[number].round(5).tobytes())
        for number, item in items.items()
    }


def test_same_contents(pair: Pair) -> None:
    files, store, *_ = pair
    assert len(store) == len(files) == COUNT
    assert contents(store).keys() == contents(files).keys()
    for key, expected in contents(files).items():
        assert contents(store)[key][:3] == expected[:3]
    assert set(store.columns()) == set(files.columns())
    assert dict(store.label_counts()) == dict(files.label_counts())
    for column in ("price", "Brand", "added"):
        counted = sorted(map(repr, store.value_counts(column)))
        assert counted == sorted(repr(pair) for pair in files.value_counts(column) if pair[0] is not None)
    assert sorted(map(tuple, store.image_sizes())) == sorted(map(tuple, files.image_sizes()))
    path = Path(next(iter(files.items(files.select(where="width > 0")).values())).path)
    number = store.item_at(path)
    assert number is not None
    assert store.item(number).path == str(path)


# ---- searches

number = st.integers(-12, 30).map(str) | st.sampled_from(["0.5", "-4.5", "1e300"])
text = st.sampled_from(["'acme'", "'ÄCME'", "'b''b'", "''", "'r'", "'m'", "'r/12.png'"])
date = st.sampled_from(["date '2024-05-10'", "date '2024-05-07T05:00:00+02:00'", "date '1999-01-01'"])
order = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
text_column = st.sampled_from(["Brand", "label", "key", "path"])
conditions = st.recursive(
    st.one_of(
        st.builds("{} {} {}".format, st.sampled_from(["price", "width", "PRICE"]), order, number),
        st.builds("price {}between {} and {}".format, st.sampled_from(["", "not "]), number, number),
        st.builds("{} {} {}".format, text_column, st.sampled_from(["=", "!="]), text),
        st.builds("{} {}in ({}, {})".format, text_column, st.sampled_from(["", "not "]), text, text),
        st.builds("added {} {}".format, order, date),
        st.builds("{} is {}null".format, st.sampled_from(["price", "added"]), st.sampled_from(["", "not "])),
    ),
    lambda inner: st.one_of(
        st.builds("not ({})".format, inner),
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or"]), inner),
    ),
    max_leaves=4,
)
few = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@few
@given(conditions, st.integers(0, COUNT - 1), st.sampled_from([1, 5, 100]))
def test_same_hits_with_conditions(pair: Pair, where: str, query: int, k: int) -> None:
    vectors = pair.files.vector(pair.files.select(where="id > 0")[query])[None]
    expected = pair.files.search_vectors(vectors, k, where=where)[0]
    check_hits(expected, pair.store.search_vectors(vectors, k, where=where)[0])
    keys = {item.key for item in pair.files.items(pair.files.select(where=where)).values()}
    assert {item.key for item in pair.store.items(pair.store.select(where=where)).values()} == keys


def test_same_probabilities(pair: Pair) -> None:
    """Of any calibration; a gallery in a database keeps it in its folder as well."""
    vectors = pair.files.embeddings().vectors[:3]
    vectors[2] = -vectors[2]  # its picture is not in the gallery
    curve = Calibration(
        pair.files.fingerprint, COUNT, (4.0, -1.0, -0.5, 1.0, -1.0, 0.3), -1.0, 0.9, 0.5, "", {}
    )
    lowest = 1.0
    for options in (
        SearchOptions(5),
        SearchOptions(3, where="price > 2"),
        SearchOptions(3, group_by="Brand"),
    ):
        hits = []
        for gallery in pair[:2]:
            write_calibration(gallery.folder, curve)
            hits.append([hit.probability for found in gallery.find(vectors, options) for hit in found])
            (gallery.folder / NAME).unlink()
        np.testing.assert_allclose(np.array(hits[0], float), np.array(hits[1], float), atol=1e-5)
        lowest = min(lowest, *hits[0])
    assert 0 < lowest < 0.8


@pytest.mark.parametrize(
    "where", ["Brand like 'ÄC%'", "path like '_/1%'", "Brand not like '%!_%' escape '!'", "Brand < 'b'"]
)
def test_patterns_and_order_of_text(pair: Pair, where: str) -> None:
    """A database that does not have them refuses them; it does not answer something else."""
    if ("like" in where and "like" in pair.refuses) or ("<" in where and "text order" in pair.refuses):
        with pytest.raises(InputError):
            pair.store.select(where=where)
        return
    keys = {item.key for item in pair.files.items(pair.files.select(where=where)).values()}
    assert keys
    assert {item.key for item in pair.store.items(pair.store.select(where=where)).values()} == keys


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3, "group_by": "label"},
        {"k": 30, "group_by": "brand"},
        {"k": 4, "group_by": "price", "where": "price > 0"},
        {"exclude": ("item 4", "item 8", "r/9.png")},
        {"min_score": 0.9, "k": 40},
        {"rerank": "query-expansion"},
        {"rerank": "k-reciprocal"},
        {"rerank": "k-reciprocal", "group_by": "label", "k": 2},
    ],
    ids=str,
)
def test_same_hits_with_options(pair: Pair, images: tuple[Path, Path], options: dict[str, object]) -> None:
    for key in ("item 12", "r/3.png"):
        expected = pair.files.search_id(key, **options)  # type: ignore[arg-type]
        found = pair.store.search_id(key, **options)  # type: ignore[arg-type]
        assert expected
        assert key not in {hit.key for hit in found}
        check_hits(expected, found, 1e-4 if "rerank" in options else 1e-5)
    query = images[0] / "g" / "1.png"
    check_hits(pair.files.search(query, **options), pair.store.search(query, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["price desc", "Brand"])
def test_same_order_of_hits(pair: Pair, order: str) -> None:
    vectors, options = pair.files.embeddings().vectors[:2], SearchOptions(30, order=order)
    column = order.split()[0].lower()
    first, second = (
        [[{n.lower(): v for n, v in hit.metadata.items()}.get(column) for hit in hits] for hits in found]
        for found in (gallery.find(vectors, options) for gallery in pair[:2])
    )
    assert first == second
    assert len({*first[0]}) > 2


def test_excluded_by_id(pair: Pair) -> None:
    first = pair.store.search_id("item 4", 3)
    found = pair.store.search_id("item 4", 3, exclude=[first[0].id, str(first[1].id)])
    assert [hit.id for hit in found][:1] == [first[2].id]
    with pytest.raises(InputError, match="no item 'absent'"):
        pair.store.search_id("item 4", exclude=["absent"])


@pytest.mark.parametrize(
    "options", [{"where": "pric > 3"}, {"group_by": "colour"}, {"where": "price = 'a'"}], ids=str
)
def test_same_refusals(pair: Pair, options: dict[str, object]) -> None:
    messages = []
    for gallery in (pair.files, pair.store):
        with pytest.raises(InputError) as error:
            gallery.search_id("item 4", **options)  # type: ignore[arg-type]
        messages.append(str(error.value).replace(str(gallery.folder), "G"))
    assert messages[0] == messages[1]


def test_duplicates_and_verification(pair: Pair) -> None:
    for min_score in (0.9999, 0.5):
        both = find_duplicates(pair.files, min_score), find_in_store(pair.store, min_score)
        expected, found = (
            {frozenset(item.key for item in group.members) for group in one.groups} for one in both
        )
        assert found == expected
        assert any({"item 0", "r/3.png"} <= group for group in found)
    done = verify_store(pair.store)
    assert (done.items, done.vectors, done.problems) == (COUNT, COUNT, [])


def test_embeddings(pair: Pair) -> None:
    ours, theirs = pair.store.embeddings(), pair.files.embeddings()
    assert sorted(ours.contents) == sorted(theirs.contents)
    order = [np.argsort(one.contents, kind="stable") for one in (ours, theirs)]
    unique = [n for n in range(COUNT) if theirs.contents.count(theirs.contents[order[1][n]]) == 1]
    np.testing.assert_allclose(ours.vectors[order[0]][unique], theirs.vectors[order[1]][unique], atol=1e-5)
    assert len(pair.store.embeddings(limit=7).ids) == 7


# ---- changes


def test_changes(changing: Pair, images: tuple[Path, Path], model: Embedder, database: Database) -> None:
    files, store, sources, address, _ = changing
    again = add_to_store(store, sources)
    assert (again.added, again.unchanged) == (0, COUNT)

    # A second process sees what this one changes.
    folder = store.folder.with_name("second")
    second = StoreGallery.connect(folder, model, address) if not database.server.embedded else store

    removed = ["item 4", "r/9.png"]
    assert store.remove(removed, where="Brand = 'zoo'") == files.remove(removed, where="Brand = 'zoo'")
    files.refresh()
    assert contents(second).keys() == contents(files).keys()
    (number,) = store.ids_of(["item 12"])
    price = store.item(number).metadata
    store.amend([Amendment(number, {"label": "new"}, {"price": 99.5, "added": None, "colour": "red"})])
    item = second.item(number)
    expected = {**price, "price": 99.5, "colour": "red"}
    expected.pop("added", None)
    assert (item.label, item.metadata) == ("new", expected)
    assert [hit.id for hit in second.search_id("item 16", 50, where="price = 99.5")] == [number]
    assert second.select(where="added > date '1990-01-01' and price = 99.5") == []
    with pytest.raises(InputError, match="price"):
        store.amend([Amendment(number, {}, {"price": "cheap"})])

    # A changed file keeps its id and replaces its vector; what was removed comes back.
    path = images[0] / "r" / "0.png"
    before = path.read_bytes()
    try:
        draw(77, hue=1).save(path)
        number = store.ids_of(["item 0"])[0]
        vector = store.vector(number)
        result = add_to_store(store, sources)
        assert (result.replaced, result.bad) == (1, [])
        assert result.added > 1
        assert store.ids_of(["item 0"]) == [number]
        with Image.open(path) as image:
            np.testing.assert_allclose(store.vector(number), model.embed([image.copy()])[0], atol=1e-5)
        assert not np.allclose(store.vector(number), vector, atol=1e-3)
        store.refresh()
        assert len(store) == COUNT
    finally:
        path.write_bytes(before)
    if second is not store:
        second.engine.close()


def test_another_model_is_refused(pair: Pair, tmp_path: Path, model: Embedder) -> None:
    other = Embedder(write_model(tmp_path / "other.onnx", "another"))
    assert other.fingerprint != model.fingerprint
    with pytest.raises(InputError, match="pass the model file that it was built with"):
        StoreGallery.connect(tmp_path / "g", other, pair.address)
    with pytest.raises(InputError):
        pair.store.check_model(other)
    with pytest.raises(InputError, match="the collection exists"):
        StoreGallery.create(tmp_path / "h", model, pair.address)
    assert not (tmp_path / "g").exists()
    assert not (tmp_path / "h").exists()
