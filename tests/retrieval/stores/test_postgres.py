"""What is particular to PostgreSQL: wide and short vectors, an interrupted index, locks, foreign tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval.errors import InputError, LookalikeError, StoreError
from retrieval.search.options import SearchOptions
from retrieval.storage.conditions import FilterTest
from retrieval.storage.manifest import Manifest
from retrieval.stores.address import Address
from retrieval.stores.engine import Amendment
from retrieval.stores.opening import parse_address
from retrieval.stores.ranking import StoreSearcher
from tests.retrieval.stores.postgres_server import running
from tests.retrieval.stores.server import Server
from tests.retrieval.stores.test_engines import MANIFEST, brute_force, create, item, random_vectors

pytest.importorskip("adbc_driver_postgresql", reason="needs adbc-driver-postgresql")

from retrieval.stores.postgres import engine as postgres_engine
from retrieval.stores.postgres import index as postgres_index
from retrieval.stores.postgres import schema as postgres_schema
from retrieval.stores.postgres import sessions as postgres_sessions
from retrieval.stores.postgres.engine import PostgresEngine
from retrieval.stores.postgres.search import effort_of

IDS = np.arange(1, 301)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("postgres")) as found:
        yield found


@pytest.fixture
def address(server: Server, request: pytest.FixtureRequest) -> Address:
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)[:40]
    return parse_address(server.collection(name))


@pytest.fixture
def engine(address: Address) -> Iterator[PostgresEngine]:
    found = PostgresEngine(address)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def small_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build an index also for a few items."""
    monkeypatch.setattr(postgres_index, "_FEW", 100)


def run(address: Address, sql: str) -> list[tuple[object, ...]]:
    session = postgres_sessions.Sessions(address).connect()
    rows = session.rows(sql)
    session.close()
    return rows


@pytest.mark.parametrize(("dim", "dtype"), [(2100, "float32"), (2100, "float16"), (16, "float16")])
def test_halves_in_the_index(engine: PostgresEngine, dim: int, dtype: str) -> None:
    """The index compares float16, the scores are those of the stored vectors."""
    engine.create(Manifest("f" * 64, dim, dtype=dtype))
    vectors = random_vectors(len(IDS), dim)
    engine.put([item(int(n)) for n in IDS], vectors)
    engine.optimize(0.95)
    facts = engine.facts()
    assert (facts["index"], facts["recall"]) == ("hnsw", 0.95)
    assert facts["ef_search"] is not None
    stored = engine.vectors(IDS.tolist())
    rows = np.stack([stored[int(n)] for n in IDS])
    queries = random_vectors(20, dim, seed=1)
    expected = brute_force(rows, IDS, queries, 10)
    found = engine.nearest(queries, 10)
    assert np.mean([len({*a} & {*b.ids.tolist()}) for a, b in zip(expected, found, strict=True)]) >= 9.5
    for query, one in zip(queries, found, strict=True):
        np.testing.assert_allclose(one.scores, [stored[n] @ query for n in one.ids.tolist()], atol=1e-6)


@pytest.mark.parametrize("column", ["brand", "price", "label"])
def test_groups_of_one_statement(
    engine: PostgresEngine, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best item, its score and the number of items of each group, against a loop over all of them."""
    create(engine, {"brand": "text", "price": "number"})
    random, vectors = np.random.default_rng(4), random_vectors(len(IDS))
    brands, prices, labels = ("a", "A", "ä", "", None), (1, 1.0, 2, -0.5, None), ("x", "y", None)
    rows = [{"brand": brands[random.integers(5)], "price": prices[random.integers(5)]} for _ in IDS.tolist()]
    facts = [labels[random.integers(3)] for _ in IDS.tolist()]
    kept = [{name: value for name, value in row.items() if value is not None} for row in rows]
    engine.put(
        [item(n, fact, **row) for n, fact, row in zip(IDS.tolist(), facts, kept, strict=True)], vectors
    )
    searcher, query = StoreSearcher(engine), random_vectors(1, seed=9)[0]
    excluded = (3, 77, 150, 151)
    statements, plain = list[str](), postgres_sessions.Session.run

    def counted(self: postgres_sessions.Session, sql: str, *given: Any) -> Any:
        statements.append(sql)
        return plain(self, sql, *given)

    monkeypatch.setattr(postgres_sessions.Session, "run", counted)
    for k in (2, 50, 500):
        groups: dict[object, list[tuple[float, int]]] = {}
        for n, row, fact, cosine in zip(IDS.tolist(), rows, facts, vectors @ query, strict=True):
            value = fact if column == "label" else row[column]
            if n not in excluded and n <= 280:
                groups.setdefault(("alone", n) if value is None else value, []).append((-float(cosine), n))
        best = sorted((min(one), len(one)) for one in groups.values())[:k]
        condition = FilterTest("id", "<=", (280,))
        statements.clear()
        options = SearchOptions(k, group_by=column)
        (found,) = searcher.find(query[None], options, condition, column, [excluded])
        assert len(statements) == 1
        assert found.rows.tolist() == [n for (_, n), _ in best]
        np.testing.assert_allclose(found.scores, [-cosine for (cosine, _), _ in best], atol=1e-6)
        assert found.views
        assert found.views.counts.tolist() == [count for _, count in best]
    engine.optimize(0.9)
    assert engine.facts()["index"] == "hnsw"
    assert engine.nearest_groups(query, 2, None, column) is None  # all items are not to be read


def test_too_many_dimensions(engine: PostgresEngine) -> None:
    with pytest.raises(InputError, match="5000 dimensions, but pgvector indexes at most 4000"):
        engine.create(Manifest("f" * 64, 5000))
    assert engine.manifest() is None


def test_index_that_an_interrupted_build_has_left(engine: PostgresEngine, address: Address) -> None:
    create(engine, {})
    engine.put([item(int(n)) for n in IDS], random_vectors(len(IDS)))
    engine.optimize(0.95)
    index = f"'\"{address.collection}_hnsw\"'::regclass"
    before = run(address, f"SELECT {index}::oid")
    engine.optimize(0.95)
    assert run(address, f"SELECT {index}::oid") == before  # nothing to do
    run(address, f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = {index}")
    engine.optimize(0.95)
    assert run(address, f"SELECT {index}::oid") != before
    assert run(address, f"SELECT indisvalid FROM pg_index WHERE indexrelid = {index}") == [(True,)]


def test_creators_and_columns_at_the_same_time(address: Address) -> None:
    engines = [PostgresEngine(address) for _ in range(4)]
    columns = {f"c{n}": "number" for n in range(5)}
    start = threading.Barrier(4)

    def work(n: int) -> None:
        start.wait()
        engines[n].create(Manifest("f" * 64, 8, uuid=str(n)))
        start.wait()
        engines[n].add_columns({**columns, f"own {n}": "text"})
        engines[n].put([item(n + 1, **{f"own {n}": "x", "c3": n})], random_vectors(1))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert len({one.manifest() for one in engines}) == 1
    assert {*engines[0].columns()} == {*columns, *(f"own {n}" for n in range(4))}
    found = {one.id: one.metadata for one in engines[0].scan(None, 0, 9)}
    assert found == {n + 1: {f"own {n}": "x", "c3": n} for n in range(4)}
    for engine in engines:
        engine.close()


def test_a_column_of_two_types(engine: PostgresEngine) -> None:
    create(engine, {"size": "number"})
    engine.add_columns({"size": "text"})  # another process was first
    with pytest.raises(InputError, match="column 'size' has number, not 'big'"):
        engine.put([item(1, size="big")], random_vectors(1))
    assert engine.count() == 0


def test_columns_wait_a_few_seconds_for_a_lock(
    engine: PostgresEngine, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(engine, {})
    monkeypatch.setattr(postgres_engine, "_LOCK_TIMEOUT", 50)
    session = postgres_sessions.Sessions(address).connect()
    session.run("BEGIN")
    session.run(f'LOCK TABLE "{address.collection}" IN SHARE UPDATE EXCLUSIVE MODE')  # as an index build
    engine.put([item(1)], random_vectors(1))
    with pytest.raises(LookalikeError, match="lock timeout; an index may be being built"):
        engine.add_columns({"new": "text"})
    session.close()
    engine.add_columns({"new": "text"})
    assert engine.columns() == {"new": "text"}


def test_foreign_table(engine: PostgresEngine, address: Address) -> None:
    run(address, f'CREATE TABLE "{address.collection}" (id int)')
    for refused in (engine.manifest, lambda: engine.create(MANIFEST), engine.columns):
        with pytest.raises(InputError, match="the database has another table"):
            refused()
    assert run(address, f'SELECT count(*) FROM "{address.collection}"') == [(0,)]


def test_number_of_many_items_is_an_estimate(
    engine: PostgresEngine, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(engine, {})
    engine.put([item(int(n)) for n in IDS], random_vectors(len(IDS)))
    run(address, f'ANALYZE "{address.collection}"')
    monkeypatch.setattr(postgres_engine, "_ESTIMATED", 200)
    engine.remove(IDS[:50].tolist())
    assert engine.count() == 300
    assert engine.count(FilterTest("id", ">", (0,))) == 250


def test_time_limit_of_a_statement(address: Address, server: Server) -> None:
    slow = parse_address(f"{server.collection('slow')}&options=-c%20statement_timeout%3D1")
    engine = PostgresEngine(address)
    create(engine, {})
    engine.close()
    with pytest.raises(LookalikeError, match="statement timeout; add an index") as error:
        postgres_sessions.Sessions(slow).do(lambda session: session.run("SELECT pg_sleep(1)"))
    assert "\n" not in str(error.value)


def on_write(address: Address, body: str) -> None:
    """Let the server run some PL/pgSQL in the middle of each INSERT and UPDATE of the collection."""
    run(
        address,
        f"CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $x$ BEGIN {body} END $x$",
    )
    run(
        address,
        f'CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON "{address.collection}" EXECUTE FUNCTION fail()',
    )


def one_line(error: LookalikeError, address: Address) -> str:
    """Return what follows the address, and check that it is one line without the statement."""
    assert str(error).startswith(f"{address}: ")
    message = str(error).removeprefix(f"{address}: ")
    for part in ("\n", "$1", address.collection, "lookalike_put", "INSERT INTO", "UPDATE ", "libpq", "PGRES"):
        assert part not in message
    return message


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("PERFORM pg_terminate_backend(pg_backend_pid()); RETURN new;", "terminating connection due to adm"),
        # An instruction that the processor does not have. The server then ends all its processes.
        (
            "COPY (SELECT 1) TO PROGRAM 'kill -ILL $PPID'; PERFORM pg_sleep(5); RETURN new;",
            "server closed the connection unexpectedly",
        ),
    ],
    ids=["terminated", "crashed"],
)
def test_a_backend_that_dies_in_a_statement(
    engine: PostgresEngine, address: Address, body: str, reason: str
) -> None:
    create(engine, {})
    engine.put([item(1)], random_vectors(1))
    on_write(address, body)
    for write in (
        lambda: engine.put([item(2)], random_vectors(1)),
        lambda: engine.amend([Amendment(1, {"label": "new"})]),
    ):
        with pytest.raises(StoreError) as error:
            write()
        message = one_line(error.value, address)
        assert message.startswith("the database ended the connection in the middle of an operation")
        assert reason in message
        assert "; its log tells whether" in message
    run(address, f'DROP TRIGGER fail ON "{address.collection}"')
    engine.put([item(2)], random_vectors(1))
    assert engine.count() == 2


def test_a_backend_that_dies_once_is_not_noticed(engine: PostgresEngine, address: Address) -> None:
    create(engine, {})
    engine.put([item(int(n)) for n in IDS], random_vectors(len(IDS)))
    killer = postgres_sessions.Sessions(address).connect()

    def kill() -> int:
        """End the sessions of the engine that are in the middle of a statement."""
        time.sleep(0.3)
        sql = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND "
        )
        return int(killer.rows(f"{sql} pid <> pg_backend_pid()")[0][0])

    with ThreadPoolExecutor(1) as threads:
        killed = threads.submit(kill)
        sql = f'SELECT count(*), pg_sleep(1)::text FROM "{address.collection}"'
        assert engine._sessions.do(lambda session: session.rows(sql))[0][0] == len(IDS)
        assert killed.result() == 1
    killer.close()


def test_an_index_build_whose_backend_dies(engine: PostgresEngine, address: Address) -> None:
    """Without SQLSTATE, as after the kernel has ended it for lack of memory."""
    create(engine, {})
    engine.put([item(int(n)) for n in IDS], random_vectors(len(IDS)))
    blocker = postgres_sessions.Sessions(address).connect()
    blocker.run("BEGIN")  # an index build waits for the end of writes
    blocker.run(f'INSERT INTO "{address.collection}" SELECT * FROM "{address.collection}" WHERE false')
    with ThreadPoolExecutor(1) as threads:
        building = threads.submit(engine.optimize, 0.95)
        sql = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%'"
        while not (found := run(address, sql)):
            time.sleep(0.05)
        os.kill(int(str(found[0][0])), signal.SIGKILL)
        with pytest.raises(StoreError, match="ended the connection in the middle of an operation") as error:
            building.result()
    one_line(error.value, address)
    blocker.close()
    engine.optimize(0.95)
    assert engine.facts()["index"] == "hnsw"


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("53100", "free space on the server"),
        ("25006", "use the address of a server that takes writes"),
        ("42501", "grant the user the right"),
        ("XX000", "see its log"),
    ],
)
def test_refused_statements(engine: PostgresEngine, address: Address, code: str, hint: str) -> None:
    create(engine, {})
    on_write(
        address, f"RAISE EXCEPTION E'because\\nof this, closed' USING ERRCODE = '{code}', HINT = 'more';"
    )
    with pytest.raises(LookalikeError) as error:
        engine.put([item(1)], random_vectors(1))
    message = one_line(error.value, address)
    assert "because" in message
    assert hint in message.partition("; ")[2]
    assert "ended the connection" not in message
    assert (f"the database refused an operation (because, SQLSTATE {code})" in message) == (code == "XX000")


def test_tables_that_others_have_changed(engine: PostgresEngine, address: Address) -> None:
    create(engine, {})
    run(address, f'ALTER TABLE "{address.collection}" DROP COLUMN label')
    for action in (lambda: engine.put([item(1)], random_vectors(1)), lambda: engine.items([1])):
        with pytest.raises(StoreError) as error:
            action()
        assert str(error.value).startswith(f'{address}: column "label" ')
        assert str(error.value).endswith("; another program changed the tables; restore them from a backup")


def test_a_database_that_takes_no_writes(engine: PostgresEngine, address: Address, server: Server) -> None:
    create(engine, {})
    readonly = f"{server.collection(address.collection)}&options=-c%20default_transaction_read_only%3Don"
    other = PostgresEngine(parse_address(readonly))
    for write in (
        lambda: other.put([item(1)], random_vectors(1)),
        lambda: other.remove([1]),
        lambda: other.add_columns({"new": "text"}),
        lambda: other.optimize(0.95),
    ):
        with pytest.raises(StoreError) as error:
            write()
        message = str(error.value)
        assert message.startswith(f"{parse_address(readonly)}: cannot execute ")
        assert message.endswith("in a read-only transaction; use the address of a server that takes writes")
    assert other.count() == 0
    other.close()


def test_older_servers_compare_lower_case(engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `casefold`, which is new in PostgreSQL 18."""
    create(engine, {"a": "text"})
    engine.put([item(1, a="ABC%"), item(2, a="abc")], random_vectors(2))
    monkeypatch.setattr(postgres_engine, "_CASEFOLD", 99_00_00)
    other = PostgresEngine(parse_address(engine.address.replace("tester@", "tester:right@")))
    assert other.count(FilterTest("a", "like", ("aBc%",))) == 2
    assert other.count(FilterTest("a", "like", ("aBc!%", "!"))) == 1
    other.close()


@pytest.mark.parametrize(
    ("rows", "matching", "k", "effort"),
    [
        (0, 0, 10, None),  # everything was removed
        (50_000, 0, 10, None),
        (50_000, 50_000, 10, 40),
        (50_000, 25_000, 10, 80),
        (50_000, 500, 10, None),  # comparing 500 items is faster
        (50_000, 50_000, 200, 210),
        (50_000, 50_000, 5000, None),
        (10**8, 10**6, 10, 1000),
    ],
)
def test_effort_grows_as_filters_select_less(rows: int, matching: int, k: int, effort: int | None) -> None:
    assert effort_of(40, rows, matching, k) == effort


def test_searches_of_an_emptied_collection(engine: PostgresEngine, address: Address) -> None:
    create(engine, {})
    engine.put([item(int(n)) for n in IDS], random_vectors(len(IDS)))
    engine.optimize(0.95)
    engine.remove(IDS.tolist())
    run(address, f'VACUUM ANALYZE "{address.collection}"')
    other = PostgresEngine(parse_address(engine.address.replace("tester@", "tester:right@")))
    for condition in (None, FilterTest("id", ">", (0,))):
        assert [one.ids.tolist() for one in other.nearest(random_vectors(2), 3, condition)] == [[], []]
    other.close()


@pytest.mark.parametrize(
    ("pattern", "escaped"),
    [(("a%",), "a%"), (("a\\%",), "a\\\\%"), (("x!%!!", "!"), "x\\%\\!"), (("\\%", "\\"), "\\%")],
)
def test_escapes_of_patterns(pattern: tuple[str, ...], escaped: str) -> None:
    assert postgres_schema._pattern(*pattern) == escaped


# A process that is started in the background inherits an ignored SIGINT.
_BUILDER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from retrieval.stores.postgres import index as postgres_index
from retrieval.stores.opening import parse_address
from retrieval.stores.postgres.engine import PostgresEngine
from retrieval.stores.postgres.search import effort_of

postgres_index._FEW = 100
wait = postgres_index.wait
postgres_index.wait = lambda some, timeout: (print("building", flush=True), wait(some, timeout=timeout))[1]
PostgresEngine(parse_address(sys.argv[1])).optimize(0.95)
"""


def test_interrupt_of_a_build(engine: PostgresEngine, address: Address, server: Server) -> None:
    """Ctrl-C ends the statement in the server; the next build completes."""
    create(engine, {})
    engine.put([item(int(n)) for n in IDS], random_vectors(len(IDS)))
    session = postgres_sessions.Sessions(address).connect()
    session.run("BEGIN")  # an index build waits for the end of writes
    session.run(f'INSERT INTO "{address.collection}" SELECT * FROM "{address.collection}" WHERE false')
    command = [sys.executable, "-c", _BUILDER, server.collection(address.collection)]
    builder = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[3]
    )
    assert builder.stdout is not None
    assert builder.stdout.readline() == "building\n"
    builder.send_signal(signal.SIGINT)
    assert builder.wait(30) != 0
    builder.stdout.close()
    session.close()
    engine.optimize(0.95)
    assert engine.facts()["index"] == "hnsw"
