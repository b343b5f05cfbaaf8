"""What all tabs show alike, as HTML: plain functions from facts to text, every name escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from retrieval.gallery import Item
from retrieval.storage.records import KEPT
from retrieval.text import pluralize
from serve.core.service import Facts
from serve.page.browsing import last_page


def header(facts: Facts) -> str:
    """Whose pictures these are."""
    counted = f"<b>{escape(facts.name)}</b><span>{pluralize(facts.images, 'image')}</span>"
    return f"<h1>Lookalike</h1><p>{counted}<span>model {model(facts.fingerprint)}</span></p>"


def model(fingerprint: str) -> str:
    """What made the vectors: the beginning of the model file's SHA-256, or the name that they came with."""
    name = escape(fingerprint)
    if ":" in name:
        return name.partition(":")[2]
    return f"<code title='SHA-256 of the model file: {name}'>{name[:12]}</code>"


def galleries(names: Sequence[str], shown: str) -> str:
    """The way to the pages of all galleries of the server; the first one's is at the root."""
    root = "./" if shown == names[0] else "../../"
    links = ((name, root if name == names[0] else f"{root}galleries/{name}/") for name in names)
    current = " aria-current='page'"
    return (
        "<nav aria-label='Galleries'>"
        + "".join(
            f"<a href='{escape(link)}'{current if name == shown else ''}>{escape(name)}</a>"
            for name, link in links
        )
        + "</nav>"
    )


def note(text: str) -> str:
    """A line of status."""
    return f"<p>{escape(text)}</p>"


def trouble(text: str) -> str:
    """A line of status that says what went wrong and what to do."""
    return f"<p class='trouble'>{escape(text)}</p>"


def picture(facts: Facts, item: int, alt: str) -> str:
    """A picture of the gallery."""
    return f"<img src='{escape(facts.thumbnail(item))}' alt='{escape(alt)}' loading='lazy' decoding='async'>"


def called(item: Item) -> str:
    """What a picture is called: by its file; by its key where there is none, or the gallery keeps it."""
    name = Path(item.path).name
    return item.key if not name or KEPT.fullmatch(name) else name


def known_as(item: Item) -> str:
    """Its key: where it lies below the folder that was indexed. The rest is the server's own business."""
    return Path(item.key).name if item.key == item.path else item.key


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table that scrolls sideways where it is too wide; the cells are HTML already."""
    names = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    # Arrow keys scroll it once it is reached with Tab.
    scroll = "class='scroll' role='group' aria-label='Table' tabindex='0'"
    return f"<div {scroll}><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"


def pages(what: str, name: str, page: int, size: int, total: int) -> str:
    """Which page is shown, from 0, of many things, and the way to those before and after it.

    Args:
        what: one of the things is.
        name: scripts find the buttons by `data-name`.
        size: of a page.
    """
    first, last = page * size + 1, last_page(total, size)
    turns = _turn("Previous", name, page - 1, last) + _turn("Next", name, page + 1, last) if last else ""
    shown = f"{first:,} to {min(first + size - 1, total):,} of {pluralize(total, what)}"
    return f"<nav aria-label='Pages of {what}s'>{turns}<span role='status'>{shown}</span></nav>"


def _turn(text: str, name: str, to: int, last: int) -> str:
    off = "" if 0 <= to <= last else " disabled"
    return f"<button type='button' data-{name}='{to}'{off}>{text}</button>"


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, one a line; the values are HTML already."""
    lines = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in rows)
    return f"<dl>{lines}</dl>"
