"""Tables of a collection in PostgreSQL: names, columns, numbers as NUMERIC, filters as conditions of SQL.

A collection is a table of its name with a row for each item. Its facts are a row of the table
`lookalike_collections`, its metadata columns rows of `lookalike_columns`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from retrieval.errors import InputError
from retrieval.storage.conditions import ConditionValue, Filter, FilterTest
from retrieval.storage.manifest import Manifest
from retrieval.storage.schema import ColumnType, quoted
from retrieval.stores.conditions import unsupported
from retrieval.stores.postgres.sessions import Parameter

REGISTRY = """
CREATE TABLE IF NOT EXISTS lookalike_collections (name text PRIMARY KEY, manifest jsonb NOT NULL,
    recall double precision NOT NULL DEFAULT 1, width integer, least_share double precision,
    measured bigint NOT NULL DEFAULT 0)"""
REGISTRY_OF_COLUMNS = """
CREATE TABLE IF NOT EXISTS lookalike_columns (collection text NOT NULL REFERENCES lookalike_collections
    ON DELETE CASCADE, number integer NOT NULL, name text NOT NULL, type text NOT NULL,
    identifier text NOT NULL, PRIMARY KEY (collection, number), UNIQUE (collection, name))"""
# Facts about an item, in the order of `StoredItem`, with their types.
FACTS = {
    "id": "bigint",
    "key": "text",
    "root": "text",
    "path": "text",
    "size": "bigint",
    "mtime_ns": "bigint",
    "content_sha256": "text",
    "width": "integer",
    "height": "integer",
    "label": "text",
}
SQL_TYPES: Mapping[ColumnType, str] = {"text": 'text COLLATE "C"', "number": "numeric"}
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_OPTIONAL = ("label",)
_MOST_INDEXED = 2000  # dimensions of an index of float32
_MOST_DIMENSIONS = 4000  # of an index of float16
_BIGINT = range(-(2**63), 2**63)


@dataclass(frozen=True)
class StoreColumn:
    """A metadata column: its type, and its name in the table."""

    type: ColumnType
    identifier: str


@dataclass(frozen=True)
class Collection:
    """A collection as registered, and its size.

    Attributes:
        manifest: Facts about the gallery.
        columns: Metadata columns by name, oldest first.
        width: `hnsw.ef_search` without a filter; `None` for exact search.
        least_share: Filters that select a smaller share of the items are searched exactly.
        recall: Recall of the index.
        measured: Number of items when the recall was measured.
        rows: Number of items as of the last ANALYZE.
        fold: SQL function call that ignores case, with {} for its argument.
    """

    manifest: Manifest
    columns: Mapping[str, StoreColumn]
    width: int | None
    least_share: float
    recall: float
    measured: int
    rows: int
    fold: str

    @property
    def storage(self) -> str:
        """Type of the vectors."""
        return vector_type(self.manifest)

    def indexed(self, vector: str, *, column: bool) -> str:
        """Return what the index compares: the column, or a query given as SQL of type real[]."""
        dim = self.manifest.dim
        half = self.manifest.dtype == "float16" or dim > _MOST_INDEXED
        if column and (self.manifest.dtype == "float16" or not half):
            return vector
        return f"({vector}::{'halfvec' if half else 'vector'}({dim}))"

    @property
    def operators(self) -> str:
        """Operator class of the index."""
        return "halfvec_ip_ops" if "halfvec" in self.indexed("x", column=False) else "vector_ip_ops"


def vector_type(manifest: Manifest) -> str:
    """Return the type of the column of vectors.

    Raises:
        InputError: The vectors have too many dimensions for an index.
    """
    if manifest.dim > _MOST_DIMENSIONS:
        what = f"vectors of {manifest.dim} dimensions, but pgvector indexes at most {_MOST_DIMENSIONS}"
        raise InputError(f"store: {what}; train a model with fewer dimensions")
    return f"{'halfvec' if manifest.dtype == 'float16' else 'vector'}({manifest.dim})"


def table_definition(table: str, manifest: Manifest) -> str:
    """Return the statement that creates the table of a collection."""
    texts = {"text": 'text COLLATE "C"'}
    facts = [
        f"{name} {texts.get(type_, type_)}{'' if name in _OPTIONAL else ' NOT NULL'}"
        for name, type_ in FACTS.items()
    ]
    columns = ", ".join([*facts, f"embedding {vector_type(manifest)} NOT NULL"])
    return f"CREATE TABLE {quoted(table)} ({columns}, PRIMARY KEY (id), UNIQUE (key))"


def column_identifier(number: int, name: str) -> str:
    """Return the name of a metadata column in the table: "m3_price" for the third one, "Price"."""
    return f"m{number}_{re.sub(r'[^a-z0-9]+', '_', name.lower())[:40]}"


# ---- numbers


def number_text(value: float) -> str:
    """Return a number as text of NUMERIC, which keeps every digit; a float has a decimal point."""
    if isinstance(value, int):
        return str(value)
    text = format(Decimal(repr(value)), "f")
    return text if "." in text else f"{text}.0"


def parse_number(text: str) -> int | float:
    """Return the number of a text of `number_text`."""
    return float(text) if "." in text else int(text)


# ---- filters


class FilterWriter:
    """Writes filters as conditions of SQL, and collects their parameters.

    Args:
        collection: Collection.
        parameters: Number of parameters before those of the filter.
    """

    def __init__(self, collection: Collection, parameters: int = 0) -> None:
        self._collection = collection
        self._before = parameters
        self.parameters: list[Parameter] = []

    def write(self, condition: Filter) -> str:
        """Return the condition of a filter."""
        if isinstance(condition, FilterTest):
            return self._test(condition)
        return f"({f' {condition.operator.upper()} '.join(map(self.write, condition.terms))})"

    def _parameter(self, value: Parameter) -> str:
        self.parameters.append(value)
        return f"${self._before + len(self.parameters)}"

    def _test(self, test: FilterTest) -> str:
        column, number, whole = self._column(test.column)
        operator, values = test.operator, test.values
        if operator in ("null", "not null"):
            return f"({column} IS {operator.upper()})"
        if operator in ("like", "not like"):
            return self._like(column, test)
        kind = "text"
        if number:
            bigint = whole and all(isinstance(v, int) and v in _BIGINT for v in values)
            kind = "bigint" if bigint else "numeric"
            column = f"{column}::numeric" if whole and not bigint else column
        if operator in ("in", "not in"):
            listed = f"{self._parameter([_text(v) for v in values])}::{kind}[]"
            if operator == "in":
                return f"({column} = ANY({listed}))"
            return f"({column} IS NOT NULL AND {column} <> ALL({listed}))"
        if operator not in _COMPARISONS:
            raise unsupported(test, f"PostgreSQL has no {operator}", "use another operator")
        return f"({column} {operator} {self._parameter(_text(values[0]))}::{kind})"

    def _like(self, column: str, test: FilterTest) -> str:
        fold = self._collection.fold
        given = self._parameter(_pattern(*map(str, test.values)))
        text, pattern = fold.format(f"{column}::text"), fold.format(f"{given}::text")
        return f"({text} {test.operator.upper()} {pattern})"

    def _column(self, name: str) -> tuple[str, bool, bool]:
        """Return the SQL of a column, whether it has numbers, and whether they are whole."""
        sql = column_sql(name, self._collection)
        if name in FACTS:
            number = FACTS[name] != "text"
            return sql, number, number
        return sql, self._collection.columns[name].type == "number", False


def column_sql(name: str, collection: Collection) -> str:
    """Return the SQL of a column of facts or metadata."""
    return name if name in FACTS else quoted(collection.columns[name].identifier)


def _pattern(pattern: str, escape: str | None = None) -> str:
    """Return a pattern of LIKE with a backslash as its escape character."""
    if escape == "\\":
        return pattern
    doubled = pattern.replace("\\", "\\\\")
    return doubled if escape is None else re.sub(f"{re.escape(escape)}(.)", r"\\\1", doubled, flags=re.DOTALL)


def _text(value: ConditionValue) -> str:
    return value if isinstance(value, str) else number_text(value)


def condition_sql(
    condition: Filter | None, collection: Collection, parameters: int = 0
) -> tuple[str, Sequence[Parameter]]:
    """Return the condition of a filter, "TRUE" for none, and its parameters."""
    if condition is None:
        return "TRUE", ()
    writer = FilterWriter(collection, parameters)
    return writer.write(condition), writer.parameters


def columns_of(condition: Filter) -> set[str]:
    """Return the columns that a filter names."""
    if isinstance(condition, FilterTest):
        return {condition.column}
    return set().union(*map(columns_of, condition.terms))
