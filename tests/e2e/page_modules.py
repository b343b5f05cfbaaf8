"""Modules of the page, each imported alone, in a page without content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Route

from serve import page as package
from serve.page.assets import page_options

MODULES = Path(package.__file__).parent / "static" / "modules"
HOME = "http://page.test"
_EMPTY_PAGE = (
    "<!doctype html><meta charset=utf-8><title>Modules</title>"
    f"<script type=application/json id=search-options>{json.dumps(page_options())}</script>"
)


def serve_module(route: Route) -> None:
    """Answer with a module, or with an empty page."""
    file = MODULES / route.request.url.rpartition("/")[2]
    if file.is_file():
        route.fulfill(body=file.read_text(), content_type="text/javascript")
    else:
        route.fulfill(body=_EMPTY_PAGE, content_type="text/html")


def run(tab: Page, module: str, body: str, *arguments: Any) -> Any:
    """Return what a function body returns, in which `m` is the module and `a` are the arguments."""
    imported = f"const m = await import('{HOME}/{module}.js');"
    return tab.evaluate(f"async a => {{ {imported} {body} }}", list(arguments))
