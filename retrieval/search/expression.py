"""Arithmetic over the columns of hits, such as `score + 0.1 * in_stock + 0.02 * log1p(sales)`.

    sum      = product {("+" | "-") product}
    product  = factor {("*" | "/") factor}
    factor   = "-" factor | number | column | function "(" sum {"," sum} ")" | "(" sum ")"
    column   = score, probability, or the name of a column of numbers, in "double quotes" unless it is a word

As in SQL, what is computed from a missing value is missing, and `coalesce(sales, 0)` replaces it. A result
that is no finite number, such as that of a division by 0, is missing, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, NoReturn

import numpy as np

from retrieval.errors import InputError, did_you_mean

_MAX_DEPTH = 32  # of parentheses, signs and functions
_MAX_TERMS = 200
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<quoted>"(?:[^"]|"")++")
    |(?P<word>[^\W\d]\w*)
    |(?P<symbol>[-+*/(),]))""",
    re.VERBOSE,
)

# Values of a column for n hits, float64 [n]; NaN where they are missing.
Values = np.ndarray
Part = Callable[[Mapping[str, Values]], Values]


class _Function(NamedTuple):
    """A function: what computes it, and its smallest and largest number of arguments."""

    compute: Callable[..., Values]
    least: int
    most: int


def _coalesce(first: Values, *others: Values) -> Values:
    for other in others:
        first = np.where(np.isnan(first), other, first)
    return first


def _finite(values: Values) -> Values:
    return np.where(np.isfinite(values), values, np.nan)


_FUNCTIONS = {
    "abs": _Function(np.abs, 1, 1),
    "sqrt": _Function(np.sqrt, 1, 1),
    "exp": _Function(np.exp, 1, 1),
    "ln": _Function(np.log, 1, 1),
    "log1p": _Function(np.log1p, 1, 1),
    "least": _Function(lambda *values: np.min(np.broadcast_arrays(*values), axis=0), 2, 8),
    "greatest": _Function(lambda *values: np.max(np.broadcast_arrays(*values), axis=0), 2, 8),
    "coalesce": _Function(_coalesce, 2, 8),
}


class Expression:
    """An expression.

    Attributes:
        columns: Names of its columns as they are written, in order.

    Args:
        text: The expression.

    Raises:
        InputError: A syntax error, with its position and what was expected there; or an expression that is
            too deeply nested or too long.
    """

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        self._root = parser.parse()
        self.columns = tuple(dict.fromkeys(parser.columns))

    def of(self, columns: Mapping[str, Values], count: int) -> Values:
        """Return its value for each of n hits, float64 [n]; NaN where it is missing.

        Args:
            columns: Values of each of the columns, float64 [n].
            count: Number of hits n.
        """
        with np.errstate(all="ignore"):
            return np.broadcast_to(self._root(columns), count).astype(np.float64)


def is_expression(text: str) -> bool:
    """Return whether a text has an operator or a parenthesis: it is more than a column."""
    return bool(re.search(r"[-+*/()]", re.sub(r'"(?:[^"]|"")*"', "", text)))


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self.columns: list[str] = []
        self._tokens = [*self._split()]
        self._next = 0
        if len(self._tokens) > _MAX_TERMS:
            raise InputError(f"order: an expression of more than {_MAX_TERMS} parts")

    def parse(self) -> Part:
        root = self._sum(0)
        if self._next < len(self._tokens):
            self._fail("an operator or the end")
        return root

    def _sum(self, depth: int) -> Part:
        return self._chain({"+": np.add, "-": np.subtract}, lambda: self._product(depth))

    def _product(self, depth: int) -> Part:
        return self._chain({"*": np.multiply, "/": np.divide}, lambda: self._factor(depth))

    def _chain(self, operators: Mapping[str, Callable[..., Values]], part: Callable[[], Part]) -> Part:
        first = part()
        others: list[tuple[Callable[..., Values], Part]] = []
        while (symbol := self._taken(*operators)) is not None:
            others.append((operators[symbol], part()))

        def compute(values: Mapping[str, Values]) -> Values:
            found = first(values)
            for operator, term in others:
                found = _finite(operator(found, term(values)))
            return found

        return compute if others else first

    def _factor(self, depth: int) -> Part:
        if depth > _MAX_DEPTH:
            raise InputError(f"order: more than {_MAX_DEPTH} levels of parentheses")
        if self._taken("-"):
            part = self._factor(depth + 1)
            return lambda values: np.negative(part(values))
        if self._taken("("):
            part = self._sum(depth + 1)
            self._need(")")
            return part
        kind, text, _ = self._token
        if kind == "number":
            self._next += 1
            number = np.array(text, np.float64)
            return lambda values: number
        if kind == "word" and self._is_call():
            return self._call(text, depth)
        if kind not in ("word", "quoted"):
            self._fail("a number, a column or a function")
        self._next += 1
        name = text[1:-1].replace('""', '"') if kind == "quoted" else text
        self.columns.append(name)
        return lambda values: values[name]

    def _call(self, name: str, depth: int) -> Part:
        function = _FUNCTIONS.get(name.lower())
        if function is None:
            hint = did_you_mean(name.lower(), _FUNCTIONS, f"functions: {', '.join(_FUNCTIONS)}")
            raise InputError(f"order: no function {name!r} at character {self._token[2] + 1}; {hint}")
        self._next += 2
        arguments = [self._sum(depth + 1)]
        while self._taken(","):
            arguments.append(self._sum(depth + 1))
        self._need(")")
        if not function.least <= len(arguments) <= function.most:
            wanted = f"{function.least}" if function.least == function.most else f"{function.least} or more"
            raise InputError(f"order: {name.lower()} takes {wanted} arguments, not {len(arguments)}")
        return lambda values: _finite(function.compute(*(argument(values) for argument in arguments)))

    # ---- tokens

    def _split(self) -> Iterator[tuple[str, str, int]]:
        position = 0
        while position < len(self._text):
            found = _TOKEN.match(self._text, position)
            if found is None:
                at = position + len(self._text[position:]) - len(self._text[position:].lstrip())
                raise InputError(f"order: the character {self._text[at]!r} at {at + 1} is not allowed")
            kind = str(found.lastgroup)
            yield kind, found[kind], found.start(kind)
            position = found.end()

    @property
    def _token(self) -> tuple[str, str, int]:
        end = "end", "", len(self._text)
        return self._tokens[self._next] if self._next < len(self._tokens) else end

    def _is_call(self) -> bool:
        return self._tokens[self._next + 1 : self._next + 2] != [] and self._tokens[self._next + 1][1] == "("

    def _taken(self, *symbols: str) -> str | None:
        kind, text, _ = self._token
        if kind == "symbol" and text in symbols:
            self._next += 1
            return text
        return None

    def _need(self, symbol: str) -> None:
        if not self._taken(symbol):
            self._fail(f"{symbol!r}")

    def _fail(self, expected: str) -> NoReturn:
        kind, text, position = self._token
        found = "the end" if kind == "end" else repr(text[:40])
        raise InputError(f"order: at character {position + 1}, expected {expected}; got {found}")
