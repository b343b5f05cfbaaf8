"""A tab of the page, and the components that tabs share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import gradio as gr
from markupsafe import Markup

from serve.core.service import SearchService
from serve.page.assets import render


class Handler(NamedTuple):
    """An event handler with the components that it reads and answers."""

    function: Callable[..., Any]
    inputs: Sequence[Any]
    outputs: Sequence[Any]


@dataclass
class Shared:
    """Components and handlers of one tab that others use; each tab adds its own in `lay_out`.

    Attributes:
        blocks: The page.
        header: The name and size of the gallery.
        visit: The state of the visit, a `Visit`.
        dialog: The dialog that shows one image.
        pickers: Components whose `submit` names an item to search with.
        results: Components whose `select` opens an item beside the query.
        lists: Components whose `select` opens an item.
        search_again: Repeats the search, when items have been removed.
    """

    blocks: gr.Blocks
    header: gr.HTML
    visit: gr.State
    dialog: gr.HTML
    pickers: list[gr.HTML] = field(default_factory=list)
    results: list[gr.HTML] = field(default_factory=list)
    lists: list[gr.HTML] = field(default_factory=list)
    search_again: Handler | None = None


class Tab(ABC):
    """One tab: its components, and what happens in them.

    Attributes:
        label: The text on the tab.
        elem_id: The id of the tab's element.
        content: The id of the element with its content, to which the keyboard skips.
    """

    label: ClassVar[str]
    elem_id: ClassVar[str]
    content: ClassVar[str]

    def __init__(self, service: SearchService) -> None:
        self._service = service

    @abstractmethod
    def lay_out(self, shared: Shared, tab: gr.Tab) -> None:
        """Create the components; the tab is open."""

    @abstractmethod
    def connect(self, shared: Shared) -> None:
        """Attach the event handlers, once all tabs are laid out."""


def events(show_progress: str = "hidden", **options: Any) -> dict[str, Any]:
    """Return the options of an event that only the page uses."""
    return {"api_visibility": "private", "show_progress": show_progress, **options}


def fresh(html: Markup) -> Markup:
    """Return the same HTML as a value never used before: browsers are only sent values that changed."""
    return render("fresh", html=html, time=time.monotonic_ns())
