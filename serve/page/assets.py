"""Templates, scripts and styles of the page, read from `templates/` and `static/` when first used."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_STATIC = Path(__file__).parent / "static"


@cache
def static(name: str) -> str:
    """Return the text of a file of `static/`."""
    return (_STATIC / name).read_text(encoding="utf-8")


def script(*names: str) -> str:
    """Return scripts of `static/` one after the other, in one scope: names without `.js`."""
    return "\n".join(static(f"{name}.js") for name in names)


def stylesheet() -> str:
    """Return the styles of the page."""
    return static("page.css")
