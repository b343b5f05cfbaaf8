"""Sessions with a PostgreSQL server: a pool of connections, statements with parameters, errors.

Values travel in PostgreSQL's binary format as Arrow arrays, by ADBC: vectors are never formatted as text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import BoundedSemaphore
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import adbc_driver_manager
import pyarrow as pa
from adbc_driver_postgresql import dbapi

from retrieval.errors import InputError, LookalikeError, StoreError
from retrieval.stores.address import PASSWORD, Address

_CONNECTIONS = 8  # at a time; PostgreSQL has a process for each, and 100 by default
_STARTING = 20.0  # seconds to wait for a server that is starting
_RETRIED = {"40001", "40P01"}  # serialization failure, deadlock
_LOST = re.compile(r"08\w\w\w|57P0[1-3]")  # classes of SQLSTATE
# Timeouts in milliseconds. A dead network is noticed after half a minute.
_NETWORK = {"connect_timeout": "10", "keepalives_idle": "10", "keepalives_interval": "5"} | {
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
READ_TIMEOUT = 300_000
_SETTINGS = {
    "client_min_messages": "error",  # libpq prints notices on stderr
    "jit": "off",  # costs more than it saves here
    "plan_cache_mode": "force_custom_plan",
    "statement_timeout": READ_TIMEOUT,
    # A scan of the index goes on until enough of the nearest vectors fulfil the filter.
    "hnsw.iterative_scan": "relaxed_order",
    "hnsw.scan_mem_multiplier": 8,
}
_T = TypeVar("_T")
Parameter = Any  # str, int, None, list of str or of int, or a pyarrow.Array with a value for each row


class Session:
    """One connection, used by one thread at a time. Each statement is a transaction unless one is begun.

    Args:
        connection: Connection of ADBC in autocommit mode.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._settings: dict[str, object] = {}

    def run(self, sql: str, *parameters: Parameter) -> pa.Table:
        """Run a statement with its parameters $1, $2, ..., and return the rows of its result."""
        with self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            cursor.execute(sql, _batch(parameters) if parameters else None)
            return cursor.fetch_arrow_table()

    def rows(self, sql: str, *parameters: Parameter) -> list[tuple[Any, ...]]:
        """Run a statement, and return the rows of its result as Python values."""
        return table_rows(self.run(sql, *parameters))

    def copy(self, table: str, rows: pa.Table) -> None:
        """Create a temporary table of rows by COPY."""
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(table, rows, mode="create", temporary=True)

    def set(self, name: str, value: object) -> None:
        """Set a parameter of the session, unless it has the value already."""
        if self._settings.get(name) != value:
            self.run(f"SET {name} = {value}")
            self._settings[name] = value

    def close(self) -> None:
        """Close the connection; an open transaction is rolled back."""
        with suppress(adbc_driver_manager.Error):  # it was lost
            self._connection.close()

    def lost(self) -> bool:
        """Return whether the connection does not work any more."""
        try:
            self.run("ROLLBACK")
        except adbc_driver_manager.Error:
            return True
        return False


class Sessions:
    """Pool of sessions with one database. Thread-safe.

    Args:
        address: Address of the database.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._slots = BoundedSemaphore(_CONNECTIONS)
        self._idle: list[Session] = []

    def do(self, action: Callable[[Session], _T]) -> _T:
        """Call a function with a session, and return its result.

        It is called once more after a lost connection and after a deadlock, so it must be repeatable.

        Raises:
            InputError: The address, user, password or rights are wrong.
            StoreError: The database cannot be reached or refuses a statement.
        """
        with self._slots:
            try:
                return self._attempt(action)
            except _RepeatableError:
                self.close()
            try:
                return self._attempt(action)
            except _RepeatableError as error:
                raise error.cause from None

    def _attempt(self, action: Callable[[Session], _T]) -> _T:
        try:
            session = self._idle.pop()
        except IndexError:
            session = self.connect()
        try:
            result = action(session)
        except adbc_driver_manager.Error as error:
            repeatable = error.sqlstate in _RETRIED or _is_lost(error) or session.lost()
            session.close()
            cause = self._explained(error)
            raise (_RepeatableError(cause) if repeatable else cause) from None
        except BaseException:
            session.close()
            raise
        self._idle.append(session)
        return result

    def connect(self) -> Session:
        """Open a session outside the pool, and wait for a server that is starting.

        Raises:
            InputError: The address, user or password is wrong.
            StoreError: The database cannot be reached.
        """
        deadline = time.monotonic() + _STARTING
        while True:
            try:
                return Session(dbapi.connect(_uri(self._address), autocommit=True))
            except adbc_driver_manager.Error as error:
                text = str(error)
                starting = "is starting up" in text or "in recovery mode" in text or "not yet accept" in text
                if not starting or time.monotonic() > deadline:
                    raise self._explained(error) from None
            time.sleep(0.1)

    def close(self) -> None:
        """Close all idle sessions."""
        while self._idle:
            self._idle.pop().close()

    def explain(self, action: Callable[[], _T]) -> _T:
        """Return the result of a function; its errors of the database become ours."""
        try:
            return action()
        except adbc_driver_manager.Error as error:
            raise self._explained(error) from None

    def _explained(self, error: adbc_driver_manager.Error) -> LookalikeError:
        problem = _problem(str(error))
        if self._address.password:
            problem = problem.replace(self._address.password, "***")
        kind: type[LookalikeError] = StoreError
        hint = "see the log of the server"
        for pattern, found, advice in _HINTS:
            if re.search(pattern, f"{error.sqlstate} {problem}"):
                kind, hint = found, advice
                break
        return kind(f"{self._address}: {problem}; {hint}")


class _RepeatableError(Exception):
    """An error after which the same statements can succeed."""

    def __init__(self, cause: LookalikeError) -> None:
        super().__init__(str(cause))
        self.cause = cause


# Pattern of SQLSTATE and message, class of the error, what to do.
_HINTS: tuple[tuple[str, type[LookalikeError], str], ...] = (
    ("password|authentication|no pg_hba", InputError, f"check user and ${PASSWORD}"),
    ('database "[^"]*" does not exist', InputError, "create it with `createdb`"),
    ("role .* does not exist", InputError, "check the user in the address"),
    ("invalid URI|invalid sslmode|invalid connection option", InputError, "check the address"),
    ("^42501", InputError, "grant the user the right, or use another one"),
    ("extension .vector. is not available", InputError, "install pgvector on the server"),
    ("^57014", StoreError, "add an index for the filter, or set statement_timeout in the address"),
    ("^55P03", StoreError, "an index may be being built; repeat the command later"),
    ("^53100", StoreError, "free space on the server"),
    ("too many clients|^53300", StoreError, "raise max_connections, or run fewer servers"),
    (
        "refused|translate host|timed? ?out|closed|unreachable|terminating",
        StoreError,
        "check that the server runs, and its address",
    ),
    ("^23505", StoreError, "another process wrote the same key meanwhile; repeat the command"),
)


def _is_lost(error: adbc_driver_manager.Error) -> bool:
    return error.sqlstate is not None and _LOST.fullmatch(error.sqlstate) is not None


def _problem(text: str) -> str:
    """Return the cause in an error of ADBC: one line without the statement."""
    # Two blanks follow the severity, which is in the server's language.
    found = re.search(r"\w:  (.*)", text) or re.search(r"failed: (.*)", text)
    line = found[1] if found else text.removeprefix("IO: [libpq] ").partition("\n")[0]
    return line.partition(". SQLSTATE")[0].strip().rstrip(".")


def _uri(address: Address) -> str:
    options = dict(address.options)
    given = [f"-c {name}={value}" for name, value in _SETTINGS.items()]
    options["options"] = " ".join([*given, options.get("options", "")]).strip()
    password = f":{quote(address.password, safe='')}" if address.password else ""
    user = f"{quote(address.user, safe='')}{password}"
    user += "@" if user else ""
    host = f"[{address.host}]" if ":" in address.host else address.host
    query = urlencode({"application_name": "lookalike", **_NETWORK, **options}, quote_via=quote)
    return f"postgresql://{user}{host}:{address.port}/{quote(address.database, safe='')}?{query}"


# ---- Arrow


def table_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of a table as Python values."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _batch(parameters: Sequence[Parameter]) -> pa.RecordBatch:
    """Return parameters as the columns of a batch: a row each time that the statement runs.

    An Arrow array has a value for each row; any other parameter has the same value in all of them.
    """
    count = next((len(one) for one in parameters if isinstance(one, pa.Array)), 1)
    arrays = [one if isinstance(one, pa.Array) else _repeated(one, count) for one in parameters]
    return pa.record_batch(arrays, names=[str(n) for n in range(len(arrays))])


def _repeated(value: Parameter, count: int) -> pa.Array:
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = bool(value) and isinstance(value[0], int)
        return pa.array([value] * count, pa.list_(pa.int64() if numbers else pa.string()))
    return pa.array([value] * count, pa.string() if value is None else None)
