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
from retrieval.stores.engine import connection_ended, connection_lost, refused

_CONNECTIONS = 8  # at a time; PostgreSQL has a process for each, and 100 by default
_STARTING = 20.0  # seconds to wait for a server that is starting
_CUT_OFF = 4  # connections that break while they are opened, until the server counts as unreachable
_RETRIED = {"40001", "40P01"}  # serialization failure, deadlock
_LOST = re.compile(r"08\w\w\w|57P0[1-3]")  # classes of SQLSTATE
# What libpq says itself. It has no SQLSTATE then.
_CLOSED = re.compile(
    "server closed the connection|no connection to the server|connection not open|lost synchronization"
    "|could not (send|receive) data|SSL SYSCALL|SSL connection has been closed"
)
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
            except _RepeatableError as error:
                lost = error.lost
                self.close()
            try:
                return self._attempt(action)
            except _RepeatableError as error:
                raise error.cause from None
            except _UnreachableError as error:
                raise connection_lost(str(self._address), error.reason) if lost else error from None

    def _attempt(self, action: Callable[[Session], _T]) -> _T:
        try:
            session = self._idle.pop()
        except IndexError:
            session = self.connect()
        try:
            result = action(session)
        except adbc_driver_manager.Error as error:
            lost = _is_lost(error) or session.lost()
            session.close()
            cause = self._failed(error, lost=lost)
            repeatable = lost or error.sqlstate in _RETRIED
            raise (_RepeatableError(cause, lost=lost) if repeatable else cause) from None
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
        deadline, cut_off = time.monotonic() + _STARTING, 0
        while True:
            try:
                return Session(dbapi.connect(_uri(self._address), autocommit=True))
            except adbc_driver_manager.Error as error:
                text = str(error)
                starting = "is starting up" in text or "in recovery mode" in text or "not yet accept" in text
                # A server that ends all its processes after the crash of one.
                cut_off += _is_lost(error)
                if time.monotonic() > deadline or not (starting or 0 < cut_off < _CUT_OFF):
                    raise self._unconnected(error) from None
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
            raise self._failed(error, lost=_is_lost(error)) from None

    def _unconnected(self, error: adbc_driver_manager.Error) -> LookalikeError:
        """Return our error for a connection that cannot be opened."""
        if error.sqlstate:  # one of the statements with which ADBC opens it
            return self._failed(error, lost=False)
        reason = self._reason(error)
        for pattern, hint in _WRONG_ADDRESS:
            if re.search(pattern, reason):
                return InputError(f"{self._address}: {reason}; {hint}")
        crowded = re.search("too many clients|connection slots", reason) is not None
        hint = "raise max_connections, or run fewer servers" if crowded else _UNREACHABLE
        return _UnreachableError(f"{self._address}: {reason}; {hint}", reason)

    def _failed(self, error: adbc_driver_manager.Error, *, lost: bool) -> LookalikeError:
        """Return our error for a statement that failed, maybe since its connection was lost."""
        reason = self._reason(error)
        if lost:
            return connection_ended(str(self._address), reason)
        for pattern, kind, hint in _REFUSED:
            if re.search(pattern, f"{error.sqlstate} {reason}"):
                return kind(f"{self._address}: {reason}; {hint}")
        code = f", SQLSTATE {error.sqlstate}" if error.sqlstate else ""
        return refused(str(self._address), f"{reason}{code}")

    def _reason(self, error: adbc_driver_manager.Error) -> str:
        reason = _reason(str(error))
        return reason.replace(self._address.password, "***") if self._address.password else reason


class _RepeatableError(Exception):
    """An error after which the same statements can succeed."""

    def __init__(self, cause: LookalikeError, *, lost: bool) -> None:
        super().__init__(str(cause))
        self.cause, self.lost = cause, lost


class _UnreachableError(StoreError):
    """The server does not take a connection."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


# Pattern of a message, what to do.
_WRONG_ADDRESS = (
    ("password|authentication|no pg_hba", f"check user and ${PASSWORD}"),
    ('database "[^"]*" does not exist', "create it with `createdb`"),
    ("role .* does not exist", "check the user in the address"),
    ("invalid URI|invalid sslmode|invalid connection option", "check the address"),
)
_UNREACHABLE = "check that the server runs, and its address"
# Pattern of SQLSTATE and message, class of the error, what to do.
# COPY has no SQLSTATE in ADBC.
_REFUSED: tuple[tuple[str, type[LookalikeError], str], ...] = (
    ("^42501|permission denied", InputError, "grant the user the right, or use another one"),
    ("^25006|read-only transaction", StoreError, "use the address of a server that takes writes"),
    ("^42(703|P01)", StoreError, "another program changed the tables; restore them from a backup"),
    ("extension .vector. is not available", InputError, "install pgvector on the server"),
    ("^57014", StoreError, "add an index for the filter, or set statement_timeout in the address"),
    ("^55P03", StoreError, "an index may be being built; repeat the command later"),
    ("^53100|No space left", StoreError, "free space on the server"),
    ("^23505", StoreError, "another process wrote the same key meanwhile; repeat the command"),
)


def _is_lost(error: adbc_driver_manager.Error) -> bool:
    """Return whether SQLSTATE or, without one, libpq says that the connection is gone."""
    if error.sqlstate is not None:
        return _LOST.fullmatch(error.sqlstate) is not None
    return _CLOSED.search(str(error)) is not None


def _reason(text: str) -> str:
    """Return the cause in an error of ADBC: one line without the statement."""
    # ADBC quotes the statement before the cause or below it, where the server repeats the wrong line of it.
    text = re.sub(r"execute query '.*?': ", "", text, count=1, flags=re.DOTALL)
    # Two blanks follow the severity, which is in the server's language.
    found = re.search(r"\w:  (.*)", text) or re.search(r"(?:failed:|PGRES_FATAL_ERROR) (.*)", text)
    line = found[1] if found else re.sub(r"^(\w+: )?(\[libpq\] )?(Failed to )?", "", text).partition("\n")[0]
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
