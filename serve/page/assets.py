"""Templates, scripts and styles of the page: the files of `templates/` and `static/`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from retrieval.model.licenses import license_notice
from retrieval.reports.pages import environment
from retrieval.search.options import search_options
from retrieval.text import pluralize

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
FILES = "/page"  # path of the scripts and the style sheet
ENTRY = "main.js"
LATER = ("search.js", "dialog.js")  # the entry imports them when a visitor can begin
_IMPORTS = re.compile(r"^import [^;]*? from '\./([\w.-]+)';", re.MULTILINE)
_SCRIPT, _STYLE = "text/javascript", "text/css"
_ENVIRONMENT = environment(_HERE)
_ENVIRONMENT.filters |= {
    "license_notice": license_notice,
    "decimals": lambda number, digits: f"{number:.{digits}f}",
    "pluralize": pluralize,
}


def page_options() -> list[dict[str, Any]]:
    """Return what the page shows of the options of a search; those without a range are columns."""
    shown = [one for one in search_options() if one.label]
    names = ("name", "label", "low", "high")
    return [{name: getattr(one, name) for name in names} | {"isNumber": one.kind is not str} for one in shown]


def template_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function as a filter of all templates, under its own name."""
    _ENVIRONMENT.filters[function.__name__] = function
    return function


def render(template: str, **variables: object) -> Markup:
    """Return the HTML of a template, named without `.html`; all variables but `Markup` are escaped."""
    return Markup(_ENVIRONMENT.get_template(f"{template}.html").render(variables))


@cache
def files() -> Mapping[str, tuple[bytes, str]]:
    """Return all files that the page loads: name -> content and media type. The style sheet is `page.css`."""
    scripts = sorted([*STATIC.glob("*.js"), *(STATIC / "modules").glob("*.js")])
    found = {file.name: (file.read_bytes(), _SCRIPT) for file in scripts}
    return found | {"page.css": (stylesheet().encode(), _STYLE)}


@cache
def files_path() -> str:
    """Return the path of the files; it has a checksum of them, so that browsers keep them for ever."""
    content = b"".join(content for content, _ in files().values())
    return f"{FILES}/{hashlib.sha256(content).hexdigest()[:12]}"


@cache
def first_modules() -> list[str]:
    """Return the modules that the entry imports, and those that they import, so that all load at once."""
    return _imported(ENTRY)


@cache
def later_modules() -> list[str]:
    """Return the modules that a first search needs besides, and those of the image that it opens."""
    found = [name for entry in LATER for name in (entry, *_imported(entry))]
    return [name for name in dict.fromkeys(found) if name != ENTRY and name not in first_modules()]


def _imported(entry: str) -> list[str]:
    found: list[str] = []
    waiting = [entry]
    while waiting:
        text = files()[waiting.pop(0)][0].decode()
        new = [name for name in _IMPORTS.findall(text) if name not in found]
        found += new
        waiting += new
    return found


@cache
def icon() -> bytes:
    """Return the icon of the page, as SVG."""
    return (STATIC / "icon.svg").read_bytes()


@cache
def stylesheet() -> str:
    """Return the styles of the page: the shared ones, then those of each part."""
    parts = sorted(file.name for file in STATIC.glob("*.css") if file.name != "page.css")
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in ("page.css", *parts))
