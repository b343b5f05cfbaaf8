"""HTML pages: Jinja2 environment, page frame, inline figures and image tiles."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval.reports.text_tables import p_value, percent, points
from retrieval.reports.thumbnails import thumbnails

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_HERE = Path(__file__).parent

# Maps the path of an image to its item in a gallery; `None` if it is not in the gallery.
Pick = Callable[[Path], int | None]


@lru_cache
def environment(folder: Path = _HERE) -> Environment:
    """Return a Jinja2 environment with autoescaping.

    Templates have the function `static(name)`, the text of a static file, and the filters `breakable`,
    `p_value`, `percent`, `points` and `thousands`.

    Args:
        folder: Folder with `templates` and `static`; the templates of this package are found as well.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    found = Environment(
        loader=FileSystemLoader([folder / "templates", _HERE / "templates"]),
        autoescape=True,
        auto_reload=False,  # each template is compiled once
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    found.globals["static"] = lambda name: Markup((folder / "static" / name).read_text(encoding="utf-8"))
    found.filters |= {
        "breakable": breakable,
        "p_value": p_value,
        "percent": percent,
        "points": points,
        "thousands": lambda number: f"{number:,}",
    }
    return found


def render_template(name: str, **context: Any) -> str:
    """Render a template of this package."""
    return environment().get_template(name).render(context)


def document(title: str, fragment: str) -> str:
    """Return a self-contained HTML document around a fragment."""
    from markupsafe import Markup

    return render_template("document.html", title=title, body=Markup(fragment))


def figure_fragment(svg: str, label: str) -> str:
    """Return an HTML fragment with a single figure; arguments as for `inline_svg`."""
    return render_template("figure.html", figure=inline_svg(svg, label))


def inline_svg(svg: str, label: str) -> Markup:
    """Return an SVG document as an element of an HTML page.

    Args:
        svg: SVG document.
        label: Description for screen readers.
    """
    from markupsafe import Markup

    # Ids on a page must be unique, so that references of one figure are not resolved in another.
    unique = re.sub(r'(id="|"#|url\(#)', rf"\g<1>{_slug(label)}-", svg[svg.index("<svg") :])
    described = html.escape(label, quote=True)
    return Markup(unique.replace("<svg", f"<svg role='img' aria-label='{described}'", 1))


@dataclass(frozen=True)
class Tile:
    """An image with a caption, an entry of a list.

    Attributes:
        source: Data URI of the thumbnail.
        file: Name of the image file.
        name: Caption.
        facts: Further facts, shown above the caption.
        right: Whether the image is a right or a wrong result; `None` if it is neither.
        item: Item of the gallery that a click on the image searches with; `None` for no button.
    """

    source: str
    file: str
    name: str
    facts: str = ""
    right: bool | None = None
    item: int | None = None


class TileSet:
    """Builds the tiles of a page.

    Args:
        paths: Paths of all images of the page, whose thumbnails are encoded together.
        pick: Maps images to gallery items; those that have one become buttons.
    """

    def __init__(self, paths: Iterable[Path], pick: Pick | None = None) -> None:
        self._thumbnails = thumbnails(paths)
        self._pick = pick

    def tile(self, path: Path, name: str, facts: str = "", right: bool | None = None) -> Tile:
        """Return the tile of an image; see `Tile`."""
        item = None if self._pick is None else self._pick(path)
        return Tile(self._thumbnails[path], path.name, name, facts, right, item)


def breakable(text: str) -> Markup:
    """Escape a name, with line-break opportunities after separators."""
    from markupsafe import Markup

    return Markup(re.sub(r"([_/.-])(?=[^\s<&_/.-]{3})", r"\1<wbr>", html.escape(text)))


def _slug(label: str) -> str:
    return re.sub(r"\W+", "-", label).strip("-").lower()
