"""What pages of results share: the looks, figures, and pictures with a caption."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.reports.figures import svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A fragment takes its colours from the page around it, light or dark.
STYLE = """
.lookalike-report { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 0 auto; }
.lookalike-report :is(h2, h3, h4, .whole > div) { overflow-wrap: anywhere; }
.lookalike-report h3 { margin: 2rem 0 .25rem; font-size: 1.15rem; font-weight: 600; }
.lookalike-report h4 { margin: 1.25rem 0 .25rem; font-size: 1rem; font-weight: 600; }
.lookalike-report p { margin: .25rem 0 .75rem; }
.lookalike-report table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.lookalike-report th, .lookalike-report td { padding: .35rem .6rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid #8884; font-weight: 400; }
.lookalike-report thead th { font-weight: 600; vertical-align: bottom; min-width: 4.5rem; }
.lookalike-report th[scope=row], .lookalike-report .words { text-align: left; overflow-wrap: anywhere; }
.lookalike-report th[scope=row] { min-width: 9rem; }
.lookalike-report td small, .lookalike-report th small { display: block; line-height: 1.3; }
.lookalike-report td small { white-space: nowrap; font-weight: 400; }
.lookalike-report th:first-child { padding-left: 0; }
.lookalike-report .best { font-weight: 700; }
.lookalike-report figure { margin: 1rem 0; background: #fff; border-radius: .5rem; max-width: 38rem; }
.lookalike-report figure svg { display: block; width: 100%; height: auto; }
.lookalike-report .scroll { overflow-x: auto; }
.lookalike-report small { opacity: .75; overflow-wrap: anywhere; }
.lookalike-report .tiles { list-style: none; margin: .25rem 0 1.25rem; padding: 0; display: grid; gap: .5rem;
  grid-template-columns: repeat(auto-fill, minmax(6.75rem, 1fr)); }
.lookalike-report .pairs { grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr));
  gap: 1.25rem 1.5rem; }
.lookalike-report .pairs .tiles { grid-template-columns: 1fr 1fr; margin-bottom: .25rem; }
.lookalike-report .tiles li { margin: 0; min-width: 0; font-size: .8rem; line-height: 1.3;
  overflow-wrap: anywhere; }
.lookalike-report .tiles img { display: block; width: 100%; height: auto; aspect-ratio: 1;
  object-fit: contain; box-sizing: border-box; margin: 0 0 .2rem; padding: 2px; border: 3px solid #8888;
  border-radius: .35rem; }
.lookalike-report .right img { border: 3px solid #0072b2; }
.lookalike-report .wrong img { border: 3px dashed #d55e00; }
.lookalike-report .tiles button { display: block; width: 100%; margin: 0; padding: 0; border: 0;
  font: inherit; line-height: inherit; text-align: inherit; overflow-wrap: inherit; color: inherit;
  background: none; border-radius: .35rem; cursor: pointer; }
.lookalike-report .tiles button:hover { text-decoration: underline; }
@media (max-width: 30rem) {
  .lookalike-report .tiles { grid-template-columns: repeat(auto-fill, minmax(4.8rem, 1fr)); }
  .lookalike-report .pairs { grid-template-columns: 1fr; }
  .lookalike-report table { font-size: .9rem; }
  .lookalike-report th, .lookalike-report td { padding: .35rem .4rem; }
  .lookalike-report thead th { min-width: 3.5rem; }
  .lookalike-report th[scope=row] { min-width: 8rem; }
}
@media print {
  .lookalike-report { font-size: 10pt; max-width: none; }
  .lookalike-report figure { max-width: 12cm; }
  .lookalike-report .tiles { grid-template-columns: repeat(7, 1fr); }
  .lookalike-report .pairs { grid-template-columns: repeat(3, 1fr); }
  .lookalike-report .pairs .tiles { grid-template-columns: 1fr 1fr; }
  .lookalike-report .tiles li { font-size: 7.5pt; }
  .lookalike-report h3, .lookalike-report h4 { break-after: avoid; }
  .lookalike-report figure, .lookalike-report tr, .lookalike-report li, .lookalike-report .whole {
    break-inside: avoid; }
  .lookalike-report .scroll { overflow: visible; }
  .lookalike-report details::details-content { content-visibility: visible; height: auto; }
}
"""
_DOCUMENT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ margin: 1.5rem; color: #1b1f24; background: #fff; }}
h1 {{ max-width: 56rem; margin: 0 auto 1rem; font: 600 1rem/1.5 system-ui, sans-serif; }}
@media (max-width: 30rem) {{ body {{ margin: 1rem; }} }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ color-scheme: dark; }}
  body {{ color: #e6e8eb; background: #15181c; }}
  /* Figures are drawn on white: turned over, with their hues kept, they sit on a dark page. */
  figure {{ filter: invert(.91) hue-rotate(180deg); }}
}}
@page {{ margin: 15mm; }}
@media print {{ body {{ margin: 0; print-color-adjust: exact; }} }}
</style></head>
<body><main><h1>Lookalike</h1>{body}</main></body></html>
"""


def document(title: str, body: str) -> str:
    """A whole page around a fragment; it needs nothing from outside."""
    return _DOCUMENT.format(title=html.escape(title), body=body)


def fragment(body: str) -> str:
    """What goes into a page, with its looks."""
    return f"<style>{STYLE}</style><article class='lookalike-report'>{body}</article>"


def section(title: str, *parts: str) -> str:
    """A part of the page under a heading; nothing where there is nothing to show."""
    content = "".join(parts)
    return f"<section><h3>{html.escape(title)}</h3>{content}</section>" if content else ""


def paragraph(*sentences: str) -> str:
    """Plain sentences."""
    return f"<p>{html.escape(' '.join(sentences))}</p>"


def figure(draw: Callable[[Axes], object], label: str, height: float = 3.5) -> str:
    """A figure within the page; `label` says to those who do not see it what it shows."""
    return drawing(svg(draw, 5.2, height), label)


def drawing(document: str, label: str) -> str:
    """An SVG document as a figure within the page."""
    # Ids on a page must differ: what one figure refers to must not be found in another.
    own = re.sub(r'(id="|"#|url\(#)', rf"\g<1>{_slug(label)}-", document[document.index("<svg") :])
    words = html.escape(label, quote=True)
    named = own.replace("<svg", f"<svg role='img' aria-label='{words}'", 1)
    return f"<figure>{named}</figure>"


def table(head: Sequence[str], rows: Iterable[str], words: Container[int] = (0,)) -> str:
    """A table from the cells of its head, as text, and rows that are HTML already.

    Args:
        words: columns of text; the others are of numbers, and end together.
    """
    columns = "".join(
        f"<th scope='col'{' class=words' if number in words else ''}>{breakable(cell)}</th>"
        for number, cell in enumerate(head)
    )
    content = f"<thead><tr>{columns}</tr></thead><tbody>{''.join(rows)}</tbody>"
    # Arrow keys scroll it once it is reached with Tab.
    scroll = "class='scroll' role='group' aria-label='Table' tabindex='0'"
    return f"<div {scroll}><table>{content}</table></div>"


# The item of a gallery that a picture is; `None` where it is none of it.
Pick = Callable[[Path], int | None]


@dataclass(frozen=True)
class Tiles:
    """Pictures with a caption, each an entry of a list.

    Attributes:
        pictures: what stands for the picture of a file in a page.
        pick: makes buttons of those for which it knows an item, for a page that does something with it.
    """

    pictures: Mapping[Path, str]
    pick: Pick | None = None

    def tile(self, path: Path, name: str, facts: str = "", right: bool | None = None) -> str:
        """A picture, facts and a name below it, framed and marked as right or wrong: `None`, neither.

        Right and wrong differ in colour, in the line of the frame and in the mark.
        """
        kind, mark = {None: ("", ""), True: ("right", "\u2713 right"), False: ("wrong", "\u2717 wrong")}[
            right
        ]
        file = html.escape(path.name, quote=True)
        marked = f"<b>{mark}</b> " if mark else ""
        above = f"<span>{marked}{html.escape(facts)}</span><br>" if mark or facts else ""
        content = (
            f"<img src='{self.pictures[path]}' alt='{file}' title='{file}' width='112' height='112'>"
            f"{above}{breakable(name)}"
        )
        item = None if self.pick is None else self.pick(path)
        if item is not None:
            content = f"<button type='button' data-search='{item}'>{content}</button>"
        return f"<li class='{kind}'>{content}</li>"


def breakable(words: str) -> str:
    """Plain text as HTML; long names may go on in the next line behind what joins their parts."""
    return re.sub(r"([_/.-])(?=[^\s<&_/.-]{3})", r"\1<wbr>", html.escape(words))


def _slug(label: str) -> str:
    return re.sub(r"\W+", "-", label).strip("-").lower()
