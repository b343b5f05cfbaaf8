"""The parts of the page that are HTML: plain functions from facts to text, every name escaped."""

from __future__ import annotations

from html import escape
from pathlib import Path

from retrieval.gallery import Hit
from serve.service import Answer, Facts


def header(facts: Facts) -> str:
    """Whose pictures these are."""
    model = escape(facts.fingerprint)
    return (
        f"<h1>Lookalike</h1><p><b>{escape(facts.name)}</b><span>{_count(facts.images, 'image')}</span>"
        f"<span title='SHA-256 of the model file: {model}'>model <code>{model[:12]}</code></span></p>"
    )


def note(text: str) -> str:
    """A line of status."""
    return f"<p>{escape(text)}</p>"


def trouble(text: str) -> str:
    """A line of status that says what went wrong and what to do."""
    return f"<p class='trouble'>{escape(text)}</p>"


def status(answer: Answer) -> str:
    """How many were found, how long it took and what was searched with."""
    item = answer.query.item
    if item is None:
        how = f"<span>embedding {answer.query.embed_ms:.1f} ms</span>"
    else:
        how = f"<span>like item {item.id}, itself left out</span><span>stored embedding</span>"
    found = _count(len(answer.hits), "result")
    return f"<p><b>{found}</b>{how}<span>search {answer.search_ms:.1f} ms</span></p>"


def results(answer: Answer, version: str) -> str:
    """The hits as a grid of buttons, and as a table with their full paths."""
    if not answer.hits:
        return ""
    cards = "".join(_card(rank, hit, version) for rank, hit in enumerate(answer.hits, 1))
    rows = "".join(_row(rank, hit) for rank, hit in enumerate(answer.hits, 1))
    head = "".join(f"<th scope='col'>{name}</th>" for name in ("Rank", "Score", "Label", "Item", "Path"))
    return (
        f"<ol class='grid'>{cards}</ol>"
        f"<details><summary>Scores and paths</summary><div class='scroll'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _card(rank: int, hit: Hit, version: str) -> str:
    label = escape(hit.label or "no label")
    # The version keeps a browser from showing another gallery's picture of the same number.
    source = f"/v1/images/{hit.id}/thumbnail?v={escape(version[:8])}"
    return (
        f"<li><button type='button' data-item='{hit.id}' title='{escape(hit.path)}'>"
        f"<img src='{source}' alt='{rank} · {hit.score:.4f} · {label}' loading='lazy' decoding='async'>"
        f"<span class='score' aria-hidden='true'><span>#{rank}</span><b>{hit.score:.4f}</b></span>"
        f"<span aria-hidden='true'>{label}</span>"
        f"<span class='quiet'>{escape(Path(hit.path).name)}</span></button></li>"
    )


def _row(rank: int, hit: Hit) -> str:
    return (
        f"<tr><td>{rank}</td><td>{hit.score:.4f}</td><td>{escape(hit.label or '')}</td>"
        f"<td>{hit.id}</td><td><code>{escape(hit.path)}</code></td></tr>"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
