"""A tab of the page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import gradio as gr

from serve.core.service import SearchService


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
    def lay_out(self, tab: gr.Tab) -> None:
        """Create the components; the tab is open."""

    @abstractmethod
    def connect(self) -> None:
        """Attach the event handlers, once all tabs are laid out."""


def events(show_progress: str = "hidden", **options: Any) -> dict[str, Any]:
    """Return the options of an event that only the page uses."""
    return {"api_visibility": "private", "show_progress": show_progress, **options}
