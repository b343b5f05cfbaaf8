"""What a gallery contains, as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from markupsafe import Markup

from retrieval.galleries.searchable import SearchableGallery
from retrieval.text import pluralize
from serve.page.assets import render, template_filter

_BAD_FILES = 100  # files that are listed


def summary(gallery: SearchableGallery, license: str | None) -> Markup:
    """Return counts, model, index, columns, files that could not be read, and the last runs.

    Args:
        gallery: The gallery.
        license: Licence of the weights of its model, if it is known.
    """
    info = gallery.info()
    return render(
        "gallery",
        info=info,
        license=license,
        index=info["engine"]["index"] if "engine" in info else _index(info["index"], info["outside_index"]),
        bad_files=gallery.contents.bad_files() if info.get("bad_files") else [],
        listed=_BAD_FILES,
    )


def _index(index: Mapping[str, Any], outside: int) -> str:
    if index["kind"] == "flat":
        return "flat: compares all vectors, recall is exact"
    text = f"{index['kind']}, measured recall {index['recall']:.4f}"
    return f"{text}; {pluralize(outside, 'vector')} not indexed yet, compared one by one" if outside else text


@template_filter
def minute(time: str) -> str:
    """Return an ISO time without seconds."""
    return time[:16].replace("T", " ")


@template_filter
def duration(run: Mapping[str, Any]) -> str:
    """Return how long a run took."""
    if not run["ended"]:
        return "not finished"
    seconds = (datetime.fromisoformat(run["ended"]) - datetime.fromisoformat(run["started"])).total_seconds()
    return f"{seconds:,.0f} s"
