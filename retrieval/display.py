"""What notebooks show of an object in place of its text."""

from __future__ import annotations

from importlib import import_module


class Displayed:
    """Mixin of objects that notebooks show with their pictures.

    `retrieval.reports.notebook`, which is built on these objects, is named here as commands are in
    `retrieval.cli`, and loaded when a notebook first asks.
    """

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """Return HTML for Jupyter and its like; `None` if the object cannot be read, for its text instead."""
        shown: str | None = import_module("retrieval.reports.notebook").render(self)
        return shown
