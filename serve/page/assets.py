"""Templates, scripts and styles of the page: the files of `templates/` and `static/`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from retrieval.model.licenses import license_notice
from retrieval.reports.pages import environment
from retrieval.search.options import search_options
from retrieval.text import pluralize

_HERE = Path(__file__).parent
_NOT_LOADED = "This part of the page could not be loaded. Check your connection, then reload the page."
STATIC = _HERE / "static"
MODULES = "/page"  # path of the scripts that pages import
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
def static(name: str) -> str:
    """Return the text of a file of `static/`."""
    return (STATIC / name).read_text(encoding="utf-8")


def script(*names: str) -> str:
    """Return scripts of `static/` one after the other, in one scope; they are named without `.js`."""
    return "\n".join(static(f"{name}.js") for name in names)


@cache
def modules_version() -> str:
    """Return a checksum of all modules, which is part of their addresses: they can be cached for ever."""
    files = sorted((STATIC / "modules").iterdir())
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def module(name: str, *arguments: object) -> str:
    """Return a component's script that imports a module of `static/modules` and calls its `mount`.

    Args:
        name: The module, without `.js`.
        *arguments: JSON values; `mount` receives the component's element before them.
    """
    values = "".join(f", {json.dumps(value)}" for value in arguments)
    path = f"{MODULES}/{modules_version()}/{name}.js"
    return (
        f"import(new URL({json.dumps(path)}, location.origin)).then(one => one.mount(element{values}), "
        f"() => {{ element.role = 'alert'; element.textContent = {json.dumps(_NOT_LOADED)}; }});"
    )


@cache
def stylesheet() -> str:
    """Return the styles of the page: the shared ones, then those of each part."""
    parts = sorted(file.name for file in STATIC.glob("*.css") if file.name != "page.css")
    return "\n".join(static(name) for name in ("page.css", *parts))
