"""HTML that notebooks show of galleries, hits, models and reports: bounded and self-contained.

It takes its colours from the page around it, light or dark. Nothing is fetched: images in remote storage are
grey tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch
from pathlib import Path

from retrieval.errors import LookalikeError
from retrieval.evaluation.comparison import Comparison
from retrieval.evaluation.report import Report
from retrieval.galleries.items import Hit, Hits, Item
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.location import Location
from retrieval.model.embedder import Embedder
from retrieval.reports.comparison import render_comparison_summary
from retrieval.reports.pages import Tile, render_template
from retrieval.reports.report import render_report_summary
from retrieval.reports.thumbnails import MISSING, thumbnails

_MOST_TILES = 24
_SAMPLE = 12  # images of a gallery
_COLUMNS = 12  # names of columns
_LETTERS = 60  # of a label or name
_MOST_LETTERS = 1_000_000  # of all HTML


def render(thing: object) -> str | None:
    """Return HTML for an object; `None` if it cannot be read, or is too large, so that its text is shown."""
    try:
        shown = _html(thing)
    except LookalikeError:
        return None
    return shown if len(shown) <= _MOST_LETTERS else None


@singledispatch
def _html(thing: object) -> str:
    raise TypeError(f"no HTML for {type(thing).__name__}")


@_html.register
def _(hits: Hits) -> str:
    shown = hits[:_MOST_TILES]
    return _pictures(notes=() if hits else ["no hits"], tiles=_tiles(shown), more=len(hits) - len(shown))


@_html.register
def _(item: Item) -> str:
    return _pictures(tiles=_tiles([item]))


@_html.register
def _(gallery: SearchableGallery) -> str:
    columns = gallery.contents.columns()
    names = ", ".join(map(_short, columns[:_COLUMNS])) + (", ..." if len(columns) > _COLUMNS else "")
    sample = gallery.items(gallery.sample(_SAMPLE))
    return _pictures(
        title=gallery.folder.name,
        headline=[
            (f"{len(gallery):,}", "images"),
            (f"{gallery.manifest.dim:,}", "dimensions"),
            (gallery.index_kind, "index"),
        ],
        notes=[f"Columns: {names}."] if columns else [],
        tiles=_tiles([sample[number] for number in sorted(sample)]),
        more=len(gallery) - len(sample),
    )


@_html.register
def _(model: Embedder) -> str:
    side = model.preprocess.size
    abilities = [words for words, able in (("texts", model.has_text), ("heatmaps", model.has_map)) if able]
    return _pictures(
        title=model.path.name,
        headline=[
            (f"{model.dim:,}", "dimensions"),
            (f"{side} \N{MULTIPLICATION SIGN} {side}", "pixels"),
            (model.provider.removesuffix("ExecutionProvider"), "runs it"),
        ],
        notes=[" ".join([f"SHA-256 {model.fingerprint[:12]}.", *(f"Has {word}." for word in abilities)])],
    )


_html.register(Report, render_report_summary)
_html.register(Comparison, render_comparison_summary)


def _pictures(
    *,
    title: str = "",
    headline: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    tiles: Sequence[Tile] = (),
    more: int = 0,
) -> str:
    return render_template(
        "pictures.html", title=_short(title), headline=headline, notes=notes, tiles=tiles, more=more
    )


def _tiles(items: Iterable[Item]) -> list[Tile]:
    items = list(items)
    pictures = thumbnails(Path(item.path) for item in items if _is_local(item.path))
    return [
        Tile(
            pictures.get(Path(item.path), MISSING),
            _short(Path(item.path).name or item.key),
            _short(item.label or Path(item.path).name or item.key),
            _score(item) if isinstance(item, Hit) else "",
        )
        for item in items
    ]


def _score(hit: Hit) -> str:
    """Return the score of a hit with three digits, and its probability if there is one."""
    return f"{hit.score:.3f}" + ("" if hit.probability is None else f", {hit.probability:.0%}")


def _is_local(path: str) -> bool:
    return bool(path) and Location.parse(path).kind != "url"


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"
