"""Cleaning of texts before they are split into tokens, as normalizers of the library tokenizers.

open_clip cleans each text in Python, with ftfy, html.unescape and functions of its own. The same steps as
normalizers become part of `tokenizer.json`. Two repairs of ftfy and html are left out, of damage that typed
text does not have: text decoded by a wrong encoding, and HTML entities such as "&amp;".
"""

from __future__ import annotations

import re
import string
import unicodedata
from typing import Any

from tokenizers import Regex
from tokenizers.normalizers import NFC, Lowercase, Replace, Strip

_LIGATURES = {
    **{"Ĳ": "IJ", "ĳ": "ij", "ŉ": "ʼn", "Ǳ": "DZ", "ǲ": "Dz", "ǳ": "dz", "Ǆ": "DŽ", "ǅ": "Dž", "ǆ": "dž"},
    **{"Ǉ": "LJ", "ǈ": "Lj", "ǉ": "lj", "Ǌ": "NJ", "ǋ": "Nj", "ǌ": "nj"},
    **{"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "ſt", "ﬆ": "st"},
}
_SINGLE_QUOTES, _DOUBLE_QUOTES = "[\u02bc\u2018-\u201b]", "[\u201c-\u201f]"
_CONTROLS = "[\\x00-\\x08\\x0b\\x0e-\\x1f\\x7f\u206a-\u206f\ufeff\ufff9-\ufffc]"
_PUNCTUATION = f"[{re.escape(string.punctuation)}]"


def fix_characters() -> list[Any]:
    """Return the steps of `ftfy.fix_text` on single characters.

    Ligatures, full-width and half-width forms and curly quotes are replaced, control characters removed, and
    the result is in Unicode's normal form C.
    """
    forms = {"\u3000": " "}
    for code in range(0xFF01, 0xFFF0):
        usual = unicodedata.normalize("NFKC", chr(code))
        if usual != chr(code):
            forms[chr(code)] = usual
    return [
        *(Replace(letter, usual) for letter, usual in (_LIGATURES | forms).items()),
        Replace(Regex(_SINGLE_QUOTES), "'"),
        Replace(Regex(_DOUBLE_QUOTES), '"'),
        Replace(Regex(_CONTROLS), ""),
        NFC(),
    ]


def collapse_spaces() -> list[Any]:
    """Return the steps of `" ".join(text.split())`."""
    return [Replace(Regex(r"\s+"), " "), Strip()]


def lower_case() -> list[Any]:
    """Return the steps of `text.lower()`, which has another letter for a sigma at the end of a word."""
    return [Replace(Regex(r"(?<=\p{L})Σ(?!\p{L})"), "ς"), Lowercase()]


def remove_punctuation() -> list[Any]:
    """Return the step that removes ASCII punctuation."""
    return [Replace(Regex(_PUNCTUATION), "")]


def open_clip_cleaning(kind: str) -> list[Any]:
    """Return the steps of a cleaning of open_clip: "lower", "whitespace" or "canonicalize"."""
    if kind == "canonicalize":
        return [
            *fix_characters(),
            Replace("_", " "),
            *remove_punctuation(),
            *lower_case(),
            *collapse_spaces(),
        ]
    return [*fix_characters(), *collapse_spaces(), *(lower_case() if kind == "lower" else ())]
