"""What a gallery contains, as HTML: its summary, and its images in pages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from retrieval.searchable import Item, SearchableGallery
from retrieval.storage.records import UPLOAD_NAME
from retrieval.text import pluralize
from serve.core.analyses import hide_paths
from serve.core.service import GallerySummary, SearchService, check_condition
from serve.page.assets import render, template_filter
from serve.page.messages import html_or_error
from serve.page.tab import fresh

PAGE_SIZE = 60
_BAD_FILES = 100  # files that are listed


@dataclass(frozen=True)
class ImagePage:
    """One page of the gallery's images.

    Attributes:
        items: The images of this page.
        where: The filter; empty for none.
        number: Number of the page, from 0.
        total: Number of images on all pages.
    """

    items: list[Item]
    where: str
    number: int
    total: int


def image_page(gallery: SearchableGallery, where: str, number: int) -> ImagePage:
    """Return a page of the images that fulfil a filter, oldest first; the last page if there are fewer.

    Raises:
        InputError: The filter is not valid, or names a column that does not exist.
    """
    check_condition(where)
    listed = gallery.page(where or None, number, PAGE_SIZE)
    items = gallery.items(listed.ids)
    return ImagePage([items[i] for i in listed.ids if i in items], where, listed.number, listed.total)


def images(gallery: GallerySummary, columns: Sequence[str], page: ImagePage) -> Markup:
    """Return a page of images as buttons, with buttons for the pages before and after it."""
    return render(
        "images",
        gallery=gallery,
        page=page,
        items=page.items,
        size=PAGE_SIZE,
        example=filter_example(columns),
    )


def filter_example(columns: Sequence[str]) -> str:
    """Return a hint at what filter conditions can use, given the metadata columns."""
    return ", ".join(["label = '…'", *columns, "path", "width"])


@template_filter
def display_name(item: Item) -> str:
    """Return the file name of an item; its key if it has no file, or one that the gallery named."""
    name = os.path.basename(item.path)  # much faster than a Path
    return item.key if not name or UPLOAD_NAME.fullmatch(name) else name


@template_filter
def public_key(item: Item) -> str:
    """Return the key of an item: the path below the indexed folder, not where that folder is."""
    return os.path.basename(item.key) if item.key == item.path else item.key


def images_or_error(service: SearchService, where: str, page: int) -> Markup:
    """Return a page of images as HTML, or the error."""

    def build() -> Markup:
        with hide_paths(service):
            gallery = service.gallery
            return images(service.summary(), gallery.columns(), image_page(gallery, where, page))

    return fresh(html_or_error(build))


def summary(gallery: SearchableGallery) -> Markup:
    """Return counts, model, index, columns, files that could not be read, and the last runs."""
    info = gallery.info()
    return render(
        "gallery",
        info=info,
        index=info["engine"]["index"] if "engine" in info else _index(info["index"], info["outside_index"]),
        bad_files=gallery.bad_files() if info.get("bad_files") else [],
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
