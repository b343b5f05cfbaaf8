"""The gallery tab as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from retrieval.gallery import Gallery, Item
from retrieval.storage.records import BadFile
from retrieval.text import pluralize
from serve.core.service import Facts
from serve.page.browsing import SIZE, Page
from serve.page.views import called, definitions, known_as, model, note, pages, picture, table
from serve.page.wishes import example

_LISTED = 100  # files that could not be read


def stock(gallery: Gallery) -> str:
    """What a gallery holds: counts, model, index, columns, the last runs, and what could not be read."""
    info = gallery.info()
    return (
        definitions(
            [
                ("images", f"{info['images']:,}"),
                ("model", f"{model(info['fingerprint'])}, {info['dim']} numbers a picture"),
                ("index", escape(_index(info["index"], info["outside_index"]))),
                ("columns", escape(", ".join(info["columns"])) or "none beside the label"),
                ("on the disk", f"{info['bytes']['all'] / 1e6:,.1f} MB"),
                ("last changed", _changed(info["runs"])),
            ]
        )
        + _unreadable(gallery.bad_files() if info["bad_files"] else [])
        + _runs(info["runs"])
    )


def pictures(gallery: Facts, columns: Sequence[str], page: Page) -> str:
    """One page of pictures, as buttons, with the way to the others."""
    cards = "".join(card(item, gallery) for item in page.items)
    hint = example(columns)
    return (
        f"<div data-where='{escape(page.where)}' data-number='{page.number}' data-example='{escape(hint)}'>"
        f"{_pager(page)}<ol class='grid'>{cards}</ol></div>"
    )


def card(item: Item, gallery: Facts) -> str:
    """A picture as a button that shows it in large."""
    label = item.label or "no label"
    return (
        f"<li><button type='button' data-item='{item.id}' title='{escape(known_as(item))}'>"
        f"{picture(gallery, item.id, f'item {item.id} · {label}')}"
        f"<span aria-hidden='true'>{escape(label)}</span>"
        f"<span class='quiet'>{escape(called(item))}</span></button></li>"
    )


def _pager(page: Page) -> str:
    if not page.total:
        return note("No picture fulfils the filter." if page.where else "There are no pictures yet.")
    return pages("picture", "page", page.number, SIZE, page.total)


def _index(index: Mapping[str, Any], outside: int) -> str:
    if index["kind"] == "flat":
        return "flat: all vectors are compared, nothing is missed"
    text = f"{index['kind']}, measured recall {index['recall']:.4f}"
    return f"{text}; {pluralize(outside, 'vector')} not in it yet, compared one by one" if outside else text


def _changed(runs: list[dict[str, Any]]) -> str:
    return f"{_minute(runs[0]['ended'] or runs[0]['started'])} UTC" if runs else "never"


def _minute(when: str) -> str:
    return escape(when[:16].replace("T", " "))


def _unreadable(files: list[BadFile]) -> str:
    if not files:
        return ""
    rows = (
        (f"<code>{escape(str(file.stamp.path))}</code>", escape(file.reason), escape(file.detail))
        for file in files[:_LISTED]
    )
    more = note(f"The first {_LISTED} are listed.") if len(files) > _LISTED else ""
    title = f"{pluralize(len(files), 'file')} could not be read"
    return f"<details><summary>{title}</summary>{more}{table(('File', 'Reason', 'Details'), rows)}</details>"


def _runs(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return ""
    rows = (
        (
            escape(run["command"]),
            _minute(run["started"]),
            _duration(run["started"], run["ended"]),
            escape(", ".join(f"{name} {number:,}" for name, number in run["counts"].items() if number)),
        )
        for run in runs
    )
    head = ("Command", "Started (UTC)", "Took", "Files")
    return f"<details><summary>Last runs</summary>{table(head, rows)}</details>"


def _duration(started: str, ended: str | None) -> str:
    if not ended:
        return "not finished"
    seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()
    return f"{seconds:,.0f} s"
