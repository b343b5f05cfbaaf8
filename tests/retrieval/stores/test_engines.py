"""Conformance of every store with the interface `Engine`: against plain Python, brute force and kills."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from retrieval.errors import InputError, LookalikeError, StoreError
from retrieval.model.precision import Drift, Precision
from retrieval.storage.conditions import Filter, FilterGroup, FilterTest
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import StoredItem, Value
from retrieval.storage.schema import ColumnType
from retrieval.stores.engine import Amendment, Engine
from retrieval.stores.opening import open_engine, parse_address
from tests.retrieval.stores.databases import Database
from tests.retrieval.stores.server import free_port
from tests.retrieval.stores.test_conditions import COMPARE, holds

DIM = 8
MANIFEST = Manifest(
    "f" * 64,
    DIM,
    decode_policy=1,
    provider="CPUExecutionProvider",
    precision=Precision("tf32", Drift(0.9999, 0.99999, 0.995, 256), "CUDAExecutionProvider", "2026-11-26"),
    uuid="u-1",
)
COLUMNS: dict[str, ColumnType] = {
    "price": "number",
    "a b": "text",
    'quo"te': "number",
    "x'; drop table items; --": "text",
    "GRÖSSE": "text",
    "n" * 60: "number",
}
TEXTS = [
    "",
    "a",
    "A",
    "B",
    "b%",
    "it's",
    'say "x"',
    "back\\slash",
    "tab\t\n",
    "ärger",
    "Ärger",
    "🦜🦜",
    "null",
    "1",
]
NUMBERS = [0, 1, -1, 3, 3.5, -2.5, 0.1, 2**53 + 1, -(2**63), 2**63 - 1, 1e-300, -1e300, 5e-324]


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def random_vectors(count: int, dim: int = DIM, seed: int = 0) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(count, dim)))


def item(number: int, label: str | None = None, **metadata: Value) -> StoredItem:
    """An item whose facts all follow from its id."""
    digest = f"{number % 1000:064x}"
    return StoredItem(
        number, f"key {number}", "/data", f"{number}.jpg", number, number * 10**9 % 2**62, digest, 640, 480,
        label, None, metadata,
    )  # fmt: skip


def create(engine: Engine, columns: Mapping[str, ColumnType] = COLUMNS) -> None:
    engine.create(MANIFEST)
    engine.add_columns(columns)


def everything(engine: Engine) -> dict[int, StoredItem]:
    """All items, read in small pages."""
    found: dict[int, StoredItem] = {}
    last = 0
    while page := engine.scan(None, last, 5):
        assert [one.id for one in page] == sorted(one.id for one in page)
        assert page[0].id > last
        last = page[-1].id
        found |= {one.id: one for one in page}
    return found


def same(one: StoredItem, other: StoredItem) -> bool:
    """Whether two items are equal, also in the types of their numbers."""
    kinds = [{name: type(value) for name, value in some.metadata.items()} for some in (one, other)]
    return one == other and kinds[0] == kinds[1]


# ---- data made by hypothesis

texts = st.sampled_from(TEXTS) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8
)
numbers = (
    st.sampled_from(NUMBERS)
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
metadata = st.fixed_dictionaries(
    {}, optional={name: texts if type_ == "text" else numbers for name, type_ in COLUMNS.items()}
)
items = st.lists(
    st.builds(
        lambda number, label, values: item(number, label)._replace(metadata=values),
        st.integers(1, 30) | st.integers(2**53 - 30, 2**53 - 1),
        st.none() | texts,
        metadata,
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda one: one.id,
)
TYPES = {**COLUMNS, "label": "text", "key": "text", "path": "text", "id": "number", "width": "number"}


@st.composite
def filter_tests(draw: st.DrawFn) -> FilterTest:
    column = draw(st.sampled_from([*TYPES]))
    text = TYPES[column] == "text"
    values = (texts | st.sampled_from(["key 3", "5.jpg"])) if text else (numbers | st.integers(1, 30))
    operators = [*COMPARE, "in", "not in", "null", "not null", *(["like", "not like"] if text else [])]
    operator: Any = draw(st.sampled_from(operators))
    if operator in ("null", "not null"):
        return FilterTest(column, operator)
    if operator in ("in", "not in"):
        return FilterTest(column, operator, tuple(draw(st.lists(values, max_size=3))))
    if operator in ("like", "not like"):
        pattern = draw(
            st.sampled_from(["%", "a%", "%'%", "%R_er", "b!%", "%\\%", "%🦜_", "", "KEY%", "_", '%x"'])
        )
        return FilterTest(column, operator, (pattern, "!") if "!" in pattern else (pattern,))
    return FilterTest(column, operator, (draw(values),))


filters = st.recursive(
    filter_tests(),
    lambda inner: st.builds(
        lambda operator, terms: FilterGroup(operator, tuple(terms)),
        st.sampled_from(["and", "or"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=5,
)


def values_of(one: StoredItem) -> dict[str, Any]:
    return {**one._asdict(), **one.metadata}


def refused(filter_: Filter, refuses: frozenset[str]) -> bool:
    if isinstance(filter_, FilterGroup):
        return any(refused(term, refuses) for term in filter_.terms)
    order = TYPES[filter_.column] == "text" and filter_.operator in ("<", "<=", ">", ">=")
    return (order and "text order" in refuses) or ("like" in filter_.operator and "like" in refuses)


few = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


# ---- the collection


def test_create_and_reopen(engine: Engine, address: str) -> None:
    assert engine.manifest() is None
    with pytest.raises(InputError, match="there is no such collection"):
        engine.columns()
    create(engine)
    create(engine)  # no further effect
    other = open_engine(parse_address(address))
    assert other.manifest() == engine.manifest() == MANIFEST
    assert other.columns() == COLUMNS
    assert list(other.columns()) == list(COLUMNS)
    assert other.count() == 0
    assert other.scan(None, 0, 10) == []
    assert [one.ids.tolist() for one in other.nearest(random_vectors(2), 3)] == [[], []]
    engine.create(Manifest("e" * 64, DIM))  # another process was first
    assert engine.manifest() == MANIFEST
    assert isinstance(other.facts()["index"], str)
    other.close()


# ---- items against a dict


def test_items_against_a_dict(engine: Engine) -> None:
    create(engine)

    @few
    @given(items, items, st.data())
    def check(first: list[StoredItem], second: list[StoredItem], data: st.DataObject) -> None:
        engine.remove([*everything(engine)])
        expected: dict[int, StoredItem] = {}
        vectors: dict[int, np.ndarray] = {}
        for n, batch in enumerate((first, second, first[:1])):
            rows = random_vectors(len(batch), seed=n)
            engine.put(batch, rows)
            expected |= {one.id: one for one in batch}
            vectors |= {one.id: row for one, row in zip(batch, rows, strict=True)}
        changes = [
            Amendment(
                number,
                data.draw(
                    st.fixed_dictionaries({}, optional={"label": st.none() | texts, "size": st.just(7)})
                ),
                data.draw(st.dictionaries(st.just("a b"), st.none() | texts)),
            )
            for number in data.draw(st.lists(st.sampled_from([*expected]), max_size=3, unique=True))
        ]
        engine.amend([*changes, Amendment(31, {"label": "unknown"})])
        for change in changes:
            one = expected[change.id]._replace(**change.facts)
            values = {k: v for k, v in {**one.metadata, **change.metadata}.items() if v is not None}
            expected[change.id] = one._replace(metadata=values)
        some = data.draw(st.lists(st.sampled_from([*expected, 31]), max_size=3, unique=True))
        assert engine.remove(some) == len(expected.keys() & set(some))
        for number in some:
            expected.pop(number, None)

        found = everything(engine)
        assert found.keys() == expected.keys()
        for number, one in found.items():
            assert same(one, expected[number]), (one, expected[number])
        assert engine.count() == len(expected)
        wanted = [*expected, 31]
        assert {one.id: one for one in engine.items(wanted)} == expected
        stored = engine.vectors(wanted)
        assert stored.keys() == expected.keys()
        for number, vector in stored.items():
            np.testing.assert_allclose(vector, vectors[number], atol=1e-6)
        assert engine.ids_by("key", [f"key {number}" for number in wanted]) == {
            one.key: one.id for one in expected.values()
        }
        digests = {one.content_sha256 for one in expected.values()}
        lowest = {d: min(i for i, one in expected.items() if one.content_sha256 == d) for d in digests}
        assert engine.ids_by("content_sha256", [*digests, "0" * 64]) == lowest
        for column in ("label", "price", "a b"):
            values = [
                one.label if column == "label" else one.metadata.get(column) for one in expected.values()
            ]
            counts = {value: values.count(value) for value in values if value is not None}
            ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
            assert engine.value_counts(column, 3) == ranked[:3]

    check()


def test_filters_against_python(engine: Engine, database: Database) -> None:
    """Filters of every operator: the items that they select, their number, and the nearest among them."""
    create(engine)
    query = random_vectors(1, seed=5)

    @few
    @given(items, st.lists(filters, min_size=5, max_size=5))
    def check(some: list[StoredItem], conditions: list[Filter]) -> None:
        engine.remove([*everything(engine)])
        vectors = random_vectors(len(some))
        engine.put(some, vectors)
        scores = dict(zip([one.id for one in some], (vectors @ query[0]).tolist(), strict=True))
        for condition in conditions:
            if refused(condition, database.refuses):
                with pytest.raises(InputError):
                    engine.count(condition)
                continue
            expected = sorted(one.id for one in some if holds(condition, values_of(one)))
            assert [one.id for one in engine.scan(condition, 0, 100)] == expected, condition
            assert engine.count(condition) == len(expected)
            (near,) = engine.nearest(query, 4, condition)
            assert near.ids.tolist() == sorted(expected, key=lambda number: -scores[number])[:4]

    check()


def test_batches_of_any_length(engine: Engine) -> None:
    create(engine, {"part": "number"})
    count = 3000
    vectors = random_vectors(count)
    engine.put([item(n + 1, part=n % 7) for n in range(count)], vectors)
    ids = [*range(1, count + 1)]
    assert engine.count() == count
    assert len(engine.items(ids)) == len(engine.vectors(ids)) == count
    assert len(engine.ids_by("key", [f"key {n}" for n in ids])) == count
    assert engine.count(FilterTest("id", "not in", tuple(ids[:-5]))) == 5
    found = engine.nearest(vectors[:600], 1)
    assert [one.ids.tolist() for one in found] == [[n] for n in ids[:600]]
    engine.amend([Amendment(n, {"label": f"l{n}"}, {"part": None}) for n in ids])
    assert engine.count(FilterTest("part", "null")) == count
    assert engine.remove(ids) == count
    assert engine.count() == 0


# ---- nearest


def brute_force(vectors: np.ndarray, ids: np.ndarray, queries: np.ndarray, k: int) -> list[list[int]]:
    """Ids of the nearest, best first; equal scores by id."""
    scores = queries @ vectors.T
    return [ids[np.lexsort((ids, -row))][:k].tolist() for row in scores]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nearest_of_a_small_collection_is_exact(engine: Engine, dtype: str, database: Database) -> None:
    if dtype in database.refuses:
        with pytest.raises(LookalikeError):
            engine.create(Manifest("f" * 64, DIM, dtype=dtype))
        return
    engine.create(Manifest("f" * 64, DIM, dtype=dtype))
    vectors = random_vectors(40)
    vectors[20:30] = vectors[5]  # equal scores
    ids = np.random.default_rng(1).permutation(np.arange(1, 41))
    engine.put([item(int(n)) for n in ids], vectors)
    queries = np.concatenate([random_vectors(5, seed=2), vectors[5:6]])
    stored = vectors if dtype == "float32" else np.stack([engine.vectors([int(n)])[int(n)] for n in ids])
    found = engine.nearest(queries, 12)
    assert [one.ids.tolist() for one in found] == brute_force(stored, ids, queries, 12)
    position = {int(number): n for n, number in enumerate(ids)}
    for query, one in zip(queries, found, strict=True):
        assert one.ids.dtype == np.int64
        assert one.scores.dtype == np.float32
        rows = [position[number] for number in one.ids.tolist()]
        tolerance = 1e-6 if dtype == "float32" else 2e-3  # Qdrant rounds queries too
        np.testing.assert_allclose(one.scores, vectors[rows] @ query, atol=tolerance)
    assert len(engine.nearest(queries[:1], 100)[0].ids) == 40
    assert engine.nearest(queries[:0], 3) == []


def clustered(count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around 50 centers, and the cluster of each."""
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 50, count)
    return unit(rng.normal(size=(50, dim))[cluster] + 0.4 * rng.normal(size=(count, dim))), cluster


def test_recall_with_and_without_filters(engine: Engine) -> None:
    """Filters that select at random, and filters whose items are far from the query."""
    count, dim = 12_000, 32
    engine.create(Manifest("f" * 64, dim))
    engine.add_columns({"part": "number"})
    vectors, cluster = clustered(count, dim)
    for start in range(0, count, 3000):
        rows = range(start, start + 3000)
        engine.put(
            [item(n + 1, f"c{cluster[n]}", part=n * 7919 % 100) for n in rows], vectors[start : start + 3000]
        )
    engine.optimize(0.95)
    part = np.arange(count) * 7919 % 100
    queries = unit(vectors[::240] + 0.02 * np.random.default_rng(1).normal(size=(50, dim)))
    labels = [f"c{n}" for n in range(3)]
    ids = np.arange(1, count + 1)
    tests: list[tuple[Filter | None, np.ndarray]] = [
        (None, part >= 0),
        (FilterTest("part", "<", (50,)), part < 50),
        (FilterTest("part", "<", (5,)), part < 5),
        (FilterTest("part", "<", (1,)), part < 1),
        (FilterTest("label", "in", tuple(labels)), np.isin(cluster, [0, 1, 2])),
        (FilterTest("label", "not in", tuple(labels)), ~np.isin(cluster, [0, 1, 2])),
    ]
    for condition, selected in tests:
        expected = brute_force(vectors[selected], ids[selected], queries, 10)
        found = engine.nearest(queries, 10, condition)
        recall = np.mean([len({*a} & {*b.ids.tolist()}) / 10 for a, b in zip(expected, found, strict=True)])
        assert recall >= 0.95, condition
        assert all(np.all(np.diff(one.scores) <= 0) for one in found)
    engine.remove(ids[:6000].tolist())  # also from the index
    (near,) = engine.nearest(queries[:1], 10)
    assert near.ids.min() > 6000
    assert len(near.ids) == 10
    engine.optimize(1)
    expected = brute_force(vectors[6000:], ids[6000:], queries, 10)
    assert [one.ids.tolist() for one in engine.nearest(queries, 10)] == expected


# ---- several users


def test_two_connections_and_threads(engine: Engine, address: str, database: Database) -> None:
    create(engine, {"part": "number"})
    other = engine if database.server.embedded else open_engine(parse_address(address))
    vectors = random_vectors(400)
    with ThreadPoolExecutor(8) as threads:
        done = [
            threads.submit(writer.put, [item(n + 1, part=n) for n in range(a, a + 50)], vectors[a : a + 50])
            for a, writer in zip(range(0, 400, 50), [engine, other] * 4, strict=True)
        ]
        for one in done:
            one.result()
        assert other.count() == engine.count() == 400
        other.add_columns({"new": "text"})
        other.put([item(1, new="x")], vectors[:1])
        assert engine.items([1])[0].metadata == {"new": "x"}
        assert engine.count(FilterTest("new", "=", ("x",))) == 1
        found = threads.map(lambda n: engine.nearest(vectors[n : n + 1], 1)[0].ids.tolist(), range(40))
        assert [*found] == [[n + 1] for n in range(40)]
    other.close()


_WRITER = """
import sys
import numpy as np
from retrieval.stores.opening import parse_address
from retrieval.stores.opening import open_engine
from tests.retrieval.stores.test_engines import item, random_vectors

engine = open_engine(parse_address(sys.argv[1]))
for n in range(100_000):
    rows = range(20 * n + 1, 20 * n + 21)
    engine.put([item(row, part=row) for row in rows], random_vectors(20, seed=n))
    print(n, flush=True)
"""


def test_kill_in_the_middle_of_writing(engine: Engine, address: str, database: Database) -> None:
    """What was acknowledged is there with its vector and values; nothing is half there."""
    if "durability" in database.refuses:
        pytest.skip("it keeps nothing on disk")
    create(engine, {"part": "number"})
    server = database.server
    if server.embedded:
        engine.close()
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", _WRITER, address]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root)
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(10)][-1]
    if not server.embedded:
        server.kill()
    writer.kill()
    acknowledged = max([acknowledged, *map(int, writer.communicate()[0].split())])
    if not server.embedded:
        server.start()
        reopened = engine  # reconnects
    else:
        reopened = open_engine(parse_address(address))
    found = {}
    last = 0
    while page := reopened.scan(None, last, 500):
        last = page[-1].id
        found |= {one.id: one for one in page}
    ids = [*found]
    assert {*range(1, 20 * acknowledged + 21)} <= {*ids}
    assert reopened.count() == len(ids)
    vectors = reopened.vectors(ids)
    for n in range((len(ids) + 19) // 20):
        expected = random_vectors(20, seed=n)
        for row, vector in zip(range(20 * n + 1, 20 * n + 21), expected, strict=True):
            if row in found:
                assert found[row] == item(row, part=row)
                np.testing.assert_allclose(vectors[row], vector, atol=1e-6)
    queries = random_vectors(20, seed=acknowledged)
    nearest = [one.ids.tolist() for one in reopened.nearest(queries, 1)]
    assert nearest == [[20 * acknowledged + 1 + n] for n in range(20)]
    reopened.put([item(1, part=1)], random_vectors(1))
    reopened.close()


# ---- errors


def test_errors_are_one_line_without_the_password(database: Database) -> None:
    server = database.server
    if server.embedded:
        pytest.skip("an embedded store has no server")
    port = server.address.split(":")[-1].split("/")[0]
    absent = database.new_collection().replace(f":{port}", f":{free_port()}")
    wrong = server.password_address
    for address in [absent, *([server.collection("x", wrong)] if wrong else [])]:
        with pytest.raises(LookalikeError) as error:
            open_engine(parse_address(address)).count()
        message = str(error.value)
        assert "\n" not in message
        assert "very-wrong" not in message
        assert message.startswith(str(parse_address(address)))
        assert "; " in message


def test_a_database_that_is_killed_says_so(
    engine: Engine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an operation, while it was already in use."""
    server = database.server
    if server.embedded:
        pytest.skip("an embedded store has no server")
    if database.name == "milvus":  # other engines wait less for a restart
        monkeypatch.setattr("retrieval.stores.milvus.engine._WAITS", (0.1,))
    create(engine, {})
    items, vectors = [item(n + 1) for n in range(500)], random_vectors(500)
    engine.put(items, vectors)

    def work() -> None:
        while True:
            engine.put(items, vectors)
            engine.nearest(vectors[:50], 5, FilterTest("label", "=", ("secret",)))

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        time.sleep(0.5)
        server.kill()
        try:
            with pytest.raises(StoreError) as error:
                working.result()
        finally:
            server.start()
    message = str(error.value)
    assert message.startswith(f"{engine.address}: the database ended the connection and answers no more (")
    assert message.endswith("); its log tells why it ended, start it again")
    for part in ("\n", "secret", "INSERT", "SELECT", "upsert"):
        assert part not in message
    monkeypatch.undo()
    assert engine.count() == 500
