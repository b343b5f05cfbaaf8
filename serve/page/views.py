"""What all tabs show alike, as HTML: plain functions from facts to text, every name escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from serve.service import Facts


def header(facts: Facts) -> str:
    """Whose pictures these are."""
    model = escape(facts.fingerprint)
    return (
        f"<h1>Lookalike</h1><p><b>{escape(facts.name)}</b><span>{count(facts.images, 'image')}</span>"
        f"<span title='SHA-256 of the model file: {model}'>model <code>{model[:12]}</code></span></p>"
    )


def note(text: str) -> str:
    """A line of status."""
    return f"<p>{escape(text)}</p>"


def trouble(text: str) -> str:
    """A line of status that says what went wrong and what to do."""
    return f"<p class='trouble'>{escape(text)}</p>"


def picture(facts: Facts, item: int, alt: str) -> str:
    """A picture of the gallery. The query keeps a browser from showing another gallery's of that number."""
    source = f"{facts.address}/images/{item}/thumbnail?v={escape(facts.uuid[:8])}"
    return f"<img src='{source}' alt='{escape(alt)}' loading='lazy' decoding='async'>"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table that scrolls sideways where it is too wide; the cells are HTML already."""
    names = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, one a line; the values are HTML already."""
    lines = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in rows)
    return f"<dl>{lines}</dl>"


def count(number: int, what: str) -> str:
    """A number with what it counts."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
