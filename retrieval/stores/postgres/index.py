"""HNSW index of a collection in PostgreSQL: building, progress, and the effort of its searches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from retrieval.progress import Progress
from retrieval.storage.schema import quoted
from retrieval.stores.engine import Neighbours
from retrieval.stores.postgres.schema import Collection
from retrieval.stores.postgres.search import effort_of, search
from retrieval.stores.postgres.sessions import Session, Sessions
from retrieval.text import print_notice

_WIDTHS = (40, 80, 160, 320, 640, 1000)  # of `hnsw.ef_search`; pgvector's limit is 1000
_FEW = 10_000  # items of a collection that needs no index
_K = 10
_QUERIES = 64  # stored vectors by which the recall is measured
_SHARES = (100, 50, 5, 1)  # percent of the items that the filters of the measurement select
_MEMORY = (64, 1024)  # megabytes of maintenance_work_mem that are asked for, at least and at most
_OVERHEAD = 400  # bytes of a vector in the graph besides its numbers
_TUPLES_DONE = "SELECT max(tuples_done) FROM pg_stat_progress_create_index WHERE pid = $1"
_GROWTH = 1.2  # of the collection, after which the recall is measured again


class PostgresIndex:
    """Index of one collection.

    Args:
        sessions: Sessions with the database.
        name: Name of the collection.
        collection: Its facts.
    """

    def __init__(self, sessions: Sessions, name: str, collection: Collection) -> None:
        self._sessions = sessions
        self._name = name
        self._table = quoted(name)
        self._index = quoted(f"{name}_hnsw")
        self._collection = collection

    def optimize(self, recall: float, *, show_progress: bool) -> None:
        """Build the index unless it is there, and choose its effort for a recall; see `Engine.optimize`."""
        with self._alone() as session:
            session.run(f"ANALYZE {self._table}")
            ((rows,),) = session.rows(f"SELECT count(*) FROM {self._table}")
            known = self._collection = replace(self._collection, rows=rows)
            width, share = None, 1.0
            if recall >= 1:
                session.run(f"DROP INDEX CONCURRENTLY IF EXISTS {self._index}")
            elif rows > _FEW:
                built = self._build(session, rows, show_progress)
                changed = max(rows, known.measured) > _GROWTH * min(rows, known.measured)
                if not built and not changed and known.recall == recall:
                    return
                width, share = self._choose(session, recall, show_progress)
            session.run(
                "UPDATE lookalike_collections SET recall = $2, width = $3::int, least_share = $4, "
                "measured = $5 WHERE name = $1",
                *(self._name, float(recall), None if width is None else str(width), share, rows),
            )

    @contextmanager
    def _alone(self) -> Iterator[Session]:
        """Open a session without a time limit; another one of this collection waits for its end."""
        session = self._sessions.connect()
        try:
            session.run("SET statement_timeout = 0")
            session.run("SELECT pg_advisory_lock(hashtext($1))", f"lookalike {self._name}")
            yield session
        finally:
            session.close()

    # ---- building

    def _build(self, session: Session, rows: int, show_progress: bool) -> bool:
        """Build the index while others read and write; `False` if it is there."""
        valid = session.rows(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)", self._index
        )
        if valid == [(True,)]:
            return False
        if valid:  # what an interrupted build has left
            session.run(f"DROP INDEX CONCURRENTLY {self._index}")
        wanted = rows * (4 * self._collection.manifest.dim + _OVERHEAD) >> 20
        ((memory,),) = session.rows(
            "SELECT setting::bigint / 1024 FROM pg_settings WHERE name = 'maintenance_work_mem'"
        )
        session.run(f"SET maintenance_work_mem = '{max(memory, min(max(wanted, _MEMORY[0]), _MEMORY[1]))}MB'")
        session.run("SET max_parallel_maintenance_workers = 8")  # as many as the server allows
        ((process,),) = session.rows("SELECT pg_backend_pid()")
        compared = self._collection.indexed("embedding", column=True)
        sql = (
            f"CREATE INDEX CONCURRENTLY {self._index} ON {self._table} USING hnsw "
            f"({compared} {self._collection.operators})"
        )
        with (
            ThreadPoolExecutor(2) as pool,
            Progress("building the index", rows, show=show_progress) as progress,
        ):
            # All statements run in threads: ADBC handles SIGINT in the main thread and may lose it.
            def ask(statement: str) -> Any:
                ((answer,),) = pool.submit(
                    self._sessions.do, lambda other: other.rows(statement, process)
                ).result()
                return answer

            future = pool.submit(session.run, sql)
            try:
                done = 0
                while wait([future], timeout=1.0).not_done:
                    if (now := ask(_TUPLES_DONE)) is not None and now > done:
                        progress.update(now - done)
                        done = now
            except BaseException:
                # Once more if the server had not begun with the statement.
                while wait([future], timeout=0.2).not_done:
                    ask("SELECT pg_cancel_backend($1::int)")
                raise
            future.result()
        return True

    # ---- effort

    def _choose(self, session: Session, recall: float, show_progress: bool) -> tuple[int | None, float]:
        """Return the smallest width with a recall, and the smallest share of a filter for which it suffices.

        Half of the allowed misses are left for the error of the measurement. Filters keep a random share of
        the items; the query itself, which every search finds, does not count.
        """
        wanted = (1 + recall) / 2
        queries = self._sample(session)
        exact: dict[int, list[Neighbours]] = {}
        best: tuple[int | None, float] = (None, 1.0)
        with Progress("measuring the recall", None, "searches", show=show_progress) as progress:
            for width in _WIDTHS:
                for share in _SHARES:
                    rows = self._collection.rows
                    effort = effort_of(width, rows, rows * share // 100, _K)
                    if effort is None:  # searches with this share are exact
                        return width, 0.0
                    if share not in exact:
                        exact[share] = self._search(session, queries, share, None)
                    found = self._search(session, queries, share, effort)
                    progress.update(len(queries))
                    if _recall(found, exact[share]) < wanted:
                        break
                    if best[0] is None or share / 100 < best[1]:
                        best = width, share / 100
                else:
                    return width, 0.0
        exactly = "all searches" if best[0] is None else f"filters of less than {best[1]:.0%}"
        print_notice(
            f"collection {self._name}: {exactly} compare all vectors, since the index misses too many"
        )
        return best

    def _sample(self, session: Session) -> np.ndarray:
        """Return some stored vectors, float32 [n, D]."""
        sql = f"SELECT embedding::real[] FROM {self._table} ORDER BY hashint8(id), id LIMIT {_QUERIES}"
        found = session.run(sql)
        flat = found.column(0).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return np.asarray(flat, np.float32).reshape(found.num_rows, -1)

    def _search(
        self, session: Session, queries: np.ndarray, share: int, effort: int | None
    ) -> list[Neighbours]:
        where = f"mod(hashint8(id)::bigint + 2147483648, 100) < {share}"
        return search(session, self._table, self._collection, queries, _K + 1, where, (), effort)


def _recall(found: Sequence[Neighbours], exact: Sequence[Neighbours]) -> float:
    """Return the share of the neighbours after the first that are as near as the exact ones."""
    hits = sum(
        np.count_nonzero(a.scores[1:] >= b.scores[-1] - 1e-6) for a, b in zip(found, exact, strict=True)
    )
    return float(hits / max(sum(len(one.ids) - 1 for one in exact), 1))
