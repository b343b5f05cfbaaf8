"""Parser of filter conditions, such as `brand = 'acme' and price < 30`: a small part of SQL.

    condition  = conjunction {"or" conjunction}
    conjunction = factor {"and" factor}
    factor     = "not" factor | "(" condition ")" | column test
    test       = ("=" | "!=" | "<" | "<=" | ">" | ">=") value
               | ["not"] "in" "(" value {"," value} ")"
               | ["not"] "like" text ["escape" character]
               | ["not"] "between" value "and" value | "is" ["not"] "null"
    column     = a bare word, or any name in "double quotes"
    value      = 12 | -0.5 | 1e3 | 'text, with '' for a quote' | date '2024-05-01' | true | false

docs/filters.md describes the meaning. The operators are those of `retrieval.storage.operators`;
`retrieval.storage.condition_sql` writes a condition as SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple, NoReturn

from retrieval.errors import ConditionError
from retrieval.storage.conditions import (
    ColumnName,
    Condition,
    ConditionValue,
    Instant,
    Joined,
    Not,
    Test,
    type_of,
)
from retrieval.storage.functions import fold_pattern, instant
from retrieval.storage.operators import OPERATORS, Operator

MAX_DEPTH = 32  # of parentheses and "not"
MAX_TESTS = 700  # a list of values counts as one; SQLite takes expressions of depth 1,000

_TOKEN = re.compile(
    r"""(?P<number>-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<text>'(?:[^']|'')*+')
    |(?P<quoted>"(?:[^"]|"")++")
    |(?P<word>[^\W\d]\w*)
    |(?P<symbol><=|>=|!=|<>|==|[=<>(),])""",
    re.VERBOSE,
)
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # SQLite ends text at NUL, UTF-8 cannot encode surrogates
# The words and symbols that write each operator.
_WRITTEN = {tuple(text.split()): row for row in OPERATORS.values() for text in row.written}
_WORDS = {words: row for words, row in _WRITTEN.items() if words[0].isalpha()}
_KEYWORDS = frozenset(["and", "or", "not", "true", "false", *(word for words in _WORDS for word in words)])
_TESTS = [row.written[0] for row in OPERATORS.values() if "not" not in row.written[0]]
_TEST = f"{', '.join(_TESTS[:-1])} or {_TESTS[-1]}"


class _Token(NamedTuple):
    kind: str  # number, text, quoted, word, keyword, symbol or end
    text: str
    position: int


def parse_condition(text: str) -> Condition:
    """Parse a condition.

    Raises:
        ConditionError: A syntax error, with its position and what was expected there; or a condition that is
            too deeply nested or has too many tests.
    """
    if not is_text(text):
        raise ConditionError("where: the condition has characters that the database cannot store")
    return _Parser(text).parse()


def is_text(text: str) -> bool:
    """Return whether the database can store a text."""
    return _NO_TEXT.search(text) is None


class _Parser:
    """Recursive descent over the tokens of one condition."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._next = 0
        self._tests = 0

    def parse(self) -> Condition:
        condition = self._condition(0)
        if self._peek.kind != "end":
            self._fail("'and', 'or' or the end")
        return condition

    # ---- grammar, one method per rule

    def _condition(self, depth: int) -> Condition:
        return self._joined("or", lambda: self._conjunction(depth))

    def _conjunction(self, depth: int) -> Condition:
        return self._joined("and", lambda: self._factor(depth))

    def _joined(self, word: Literal["and", "or"], part: Callable[[], Condition]) -> Condition:
        terms = [part()]
        while self._take(word):
            terms.append(part())
        return terms[0] if len(terms) == 1 else Joined(word, tuple(terms))

    def _factor(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            self._refuse(f"more than {MAX_DEPTH} levels of parentheses and 'not'")
        if self._take("not"):
            return Not(self._factor(depth + 1))
        if self._take("("):
            condition = self._condition(depth + 1)
            self._need(")", "'and', 'or' or ')'")
            return condition
        return self._test()

    def _test(self) -> Condition:
        column = self._column()
        self._tests += 1
        if self._tests > MAX_TESTS:
            self._refuse(f"more than {MAX_TESTS} tests")
        row = self._operator()
        if row.operands == "pattern":
            values: tuple[ConditionValue, ...] = self._pattern()
        elif row.operands == "list":
            values = self._list()
        elif row.operands == "ends":
            values = self._ends()
        else:
            values = (self._value(),) if row.operands == "value" else ()
        return Test(column, row.name, values)

    def _operator(self) -> Operator:
        if self._peek.kind == "symbol" and (row := _WRITTEN.get((self._peek.text,))):
            self._advance()
            return row
        taken: tuple[str, ...] = ()
        while taken not in _WORDS:
            left = [words[len(taken) :] for words in _WORDS if words[: len(taken)] == taken]
            if not any(self._take(word) for word in dict.fromkeys(words[0] for words in left)):
                blanks = ' (a name with blanks goes in "double quotes")' if self._peek.kind == "word" else ""
                shown = [f"'{' '.join(words)}'" for words in left]
                self._fail(f"{', '.join(shown[:-1])} or {shown[-1]}" if taken else _TEST + blanks)
            taken += (self._tokens[self._next - 1].text,)
        return _WORDS[taken]

    def _list(self) -> tuple[ConditionValue, ...]:
        self._need("(", "'('")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._need(")", "',' or ')'")
        return tuple(values)

    def _ends(self) -> tuple[ConditionValue, ...]:
        low = self._value()
        self._need("and", "'and' and the upper end")
        high = self._value()
        if type_of(low) != type_of(high):
            self._refuse("the two ends of 'between' have different types")
        return low, high

    def _column(self) -> ColumnName:
        token = self._peek
        if token.kind == "quoted":
            name = token.text[1:-1].replace('""', '"')
        elif token.kind == "word":
            name = token.text
        else:
            self._fail('the name of a column (in "double quotes" unless it is a plain word)')
        self._advance()
        return ColumnName(name, token.position)

    def _pattern(self) -> tuple[str, ...]:
        """Consume the pattern of "like", and the escape character if one follows."""
        position = self._peek.position
        values = [self._quoted_text("a pattern in single quotes, as in 'red%'")]
        if self._take_word("escape"):
            values.append(self._quoted_text("the escape character in single quotes"))
            if len(values[1]) != 1 or values[1] in "%_":
                self._refuse("the escape character must be one character, neither % nor _")
        try:
            fold_pattern(*values)
        except ValueError as error:
            raise ConditionError(f"where: pattern at character {position + 1}: {error}") from None
        return tuple(values)

    def _value(self) -> ConditionValue:
        token = self._peek
        if self._take_word("date"):
            text = self._quoted_text("the date in single quotes, as in date '2024-05-01'")
            found = instant(text)
            if found is None:
                what = f"{text!r} is no date or time of ISO 8601, such as 2024-05-01 or 2024-05-01T12:30:00Z"
                raise ConditionError(f"where: at character {token.position + 1}, {what}")
            return Instant(found)
        if token.kind == "text":
            return self._quoted_text("text")
        value: ConditionValue
        if token.kind == "number":
            value = _number(token.text)
            if abs(value) == float("inf"):
                self._refuse("a number that is too large")
        elif token.kind == "keyword" and token.text in ("true", "false"):
            value = int(token.text == "true")
        elif token.kind == "keyword" and token.text == "null":
            self._fail("a value (use `is null` for missing values)")
        else:
            self._fail("a value: a number, true, false, date '...', or text in single quotes")
        self._advance()
        return value

    def _quoted_text(self, expected: str) -> str:
        if self._peek.kind != "text":
            self._fail(expected)
        return self._advance().text[1:-1].replace("''", "'")

    # ---- tokens

    def _split(self) -> list[_Token]:
        tokens, position, text = [], 0, self._text
        while position < len(text):
            if text[position].isspace():
                position += 1
                continue
            found = _TOKEN.match(text, position)
            if found is None:
                unfinished = {"'": "text is not closed by '", '"': 'a name is not closed by "'}
                what = unfinished.get(text[position], f"the character {text[position]!r} is not allowed")
                raise ConditionError(f"where: {what}, at character {position + 1} of the condition")
            kind, word = str(found.lastgroup), found[0]
            if kind == "word" and word.lower() in _KEYWORDS:
                kind, word = "keyword", word.lower()
            tokens.append(_Token(kind, word, position))
            position = found.end()
        return [*tokens, _Token("end", "", len(text))]

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _advance(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _take(self, word: str) -> bool:
        """Consume a keyword or symbol if it comes next."""
        if self._peek.kind in ("keyword", "symbol") and self._peek.text == word:
            self._next += 1
            return True
        return False

    def _take_word(self, word: str) -> bool:
        """Consume a word that is no keyword, since columns may have that name, if it comes next."""
        if self._peek.kind == "word" and self._peek.text.lower() == word:
            self._next += 1
            return True
        return False

    def _need(self, word: str, expected: str) -> None:
        if not self._take(word):
            self._fail(expected)

    def _fail(self, expected: str) -> NoReturn:
        token = self._peek
        found = "the end" if token.kind == "end" else repr(token.text[:40])
        raise ConditionError(f"where: at character {token.position + 1}, expected {expected}; got {found}")

    def _refuse(self, what: str) -> NoReturn:
        raise ConditionError(f"where: {what}, at character {self._peek.position + 1} of the condition")


def _number(text: str) -> int | float:
    """Return an integer if it is written as one and fits SQLite, else a float."""
    try:
        whole = int(text)
    except ValueError:
        return float(text)
    return whole if -(2**63) <= whole < 2**63 else float(text)
