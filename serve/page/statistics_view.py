"""The statistics of a gallery as HTML."""

from __future__ import annotations

from html import escape

from retrieval.text import pluralize
from serve.page.statistics import SHOWN, Column, Labels, Sizes, Statistics
from serve.page.views import definitions, note, table

_LONGEST = 60  # characters of a value
NO_LABEL = "label is null or label = ''"


def statistics(found: Statistics) -> str:
    """Labels, sizes and columns; a label is a button that carries its filter."""
    if not found.images:
        return note("There are no pictures yet.")
    return _labels(found.labels) + _sizes(found.sizes) + _columns(found)


def condition(label: str) -> str:
    """The filter for pictures of one label."""
    return "label = '{}'".format(label.replace("'", "''"))


def _labels(labels: Labels) -> str:
    if not labels.count:
        return "<h2>Labels</h2>" + note("No picture has a label.")
    largest = labels.most[0][1]
    rows = [_bar(label, condition(label), n, largest) for label, n in labels.most]
    if labels.without:
        rows.append(_bar("no label", NO_LABEL, labels.without, largest, kind="quiet"))
    more = ""
    if labels.count > len(labels.most) and labels.least:
        name, n = labels.least
        rest = (
            f"and {labels.count - SHOWN:,} more; the smallest, {_short(name)}, has {pluralize(n, 'picture')}"
        )
        more = f"<p class='quiet'>{escape(rest)}</p>"
    title = f"<h2>{pluralize(labels.count, 'label')}</h2>"
    return f"{title}<ul class='bars'>{''.join(rows)}</ul>{more}"


def _bar(name: str, where: str, number: int, largest: int, kind: str = "") -> str:
    width = 100 * min(number / largest, 1)
    return (
        f"<li><button type='button' class='{kind}' data-filter='{escape(where)}' title='{escape(name)}'>"
        f"{escape(_short(name))}</button><span>{number:,}</span>"
        f"<i aria-hidden='true'><b style='width: {width:.2f}%'></b></i></li>"
    )


def _sizes(sizes: Sizes | None) -> str:
    if sizes is None:
        return ""
    rows = ((name, f"{width:,} × {height:,} pixels") for name, (width, height) in vars(sizes).items())
    return f"<h2>Sizes</h2>{definitions(rows)}"


def _columns(found: Statistics) -> str:
    if not found.columns:
        return ""
    head = (
        "Column",
        "Pictures with a value",
        "Different values",
        "Least",
        "Median",
        "Greatest",
        "Most frequent",
    )
    rows = [_row(column) for column in found.columns]
    more = note(f"and {found.left_out:,} more columns, which are not looked into") if found.left_out else ""
    return f"<h2>Columns</h2>{table(head, rows)}{more}"


def _row(column: Column) -> list[str]:
    numbers = [_number(number) for number in column.numbers] if column.numbers else ["", "", ""]
    most = ""
    if column.most:
        value, often = column.most
        most = f"{escape(_short(value))} <span class='quiet'>({often:,})</span>"
    return [escape(column.name), f"{column.filled:,}", f"{column.distinct:,}", *numbers, most]


def _number(number: float) -> str:
    return f"{number:,.6g}" if abs(number) >= 10_000 else f"{number:.6g}"  # a year has no comma


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
