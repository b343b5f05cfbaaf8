"""The evaluation tab as HTML: how an evaluation of the gallery stands, and what can be done with a report."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.text import pluralize
from serve.page.views import note

_BUTTON = "<button type='button' class='main' data-evaluate>Evaluate this gallery</button>"


def offered(failure: str = "") -> str:
    """The way to evaluate the gallery, below what went wrong the last time, as HTML."""
    what = "Searches with each of its labelled images among all the others, by their stored embeddings."
    return f"{failure}<p class='offer'>{_BUTTON}<span class='quiet'>{what}</span></p>"


def done() -> str:
    """That there is nothing new to measure."""
    return "<p tabindex='-1' role='status'>This gallery has been evaluated as it is now.</p>"


def on_pictures(items: Sequence[int | None]) -> str:
    """What can be done with the pictures of a report: `None` stands for those that the gallery lacks."""
    if not items:
        return ""
    strange = sum(item is None for item in items)
    if strange == len(items):
        return note("The pictures shown are not in this gallery, so they cannot be searched with.")
    rest = f" {pluralize(strange, 'picture')} shown {'is' if strange == 1 else 'are'} not in this gallery."
    return note(f"A click on a picture searches with it.{rest if strange else ''}")
