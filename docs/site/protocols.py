"""Pages of the data sets with their protocols, and of the papers' tables with their published values."""

from __future__ import annotations

from collections.abc import Iterator

import repository

from retrieval import text
from train.data import KNOWN
from train.recipes import PAPERS, RecipeTable, column_title, group_by_columns, load_table, table_names


def pages() -> dict[str, str]:
    """Return the page of the data sets and a page for each paper, by their places on the site."""
    return {"data_sets.md": "\n".join(_data_sets())} | {
        f"tables/{paper}.md": "\n".join(_paper(paper, title)) for paper, title in PAPERS.items()
    }


def _data_sets() -> Iterator[str]:
    yield from ("# Data sets and protocols", "")
    yield (
        "Data sets that `--data` knows by name, with their published divisions. Test classes are new to the "
        "network, unless the protocol says otherwise. `lookalike datasets fetch NAME --root DIR` gets those "
        "with a size; `lookalike datasets info NAME:ROOT` checks them."
    )
    yield from ("", "| name | contents | images | protocol | source |", "|---|---|---|---|---|")
    for name, known in KNOWN.items():
        words = (_cell(known.title), f"{known.images:,}", _cell(known.protocol), known.source)
        yield f"| `{name}` | {' | '.join(words)} |"
    by_hand = {name: known.by_hand for name, known in KNOWN.items() if known.by_hand}
    yield from ("", "## By hand", "")
    for name, how in by_hand.items():
        yield from (f"`{name}`", f":   {_cell(how)}", "")


def _paper(paper: str, title: str) -> Iterator[str]:
    tables = [load_table(name) for name in table_names()]
    yield from (f"# Tables: {title}", "")
    yield (
        "Published values in percent, each row a recipe: `lookalike train --recipe NAME`. What a row holds, "
        "and what `@paper` and `@code` are: [Recipes](../recipes.md)."
    )
    yield ""
    for table in tables:
        if table.paper == paper:
            yield from _table(table)


def _table(table: RecipeTable) -> Iterator[str]:
    rows = list(table.rows.values())
    yield from (f"## {table.source.partition(', ')[2]}: {_cell(table.title)}", "")
    if table.note:
        yield from (_cell(table.note), "")
    for columns, members in group_by_columns(rows).items():
        head = ["row", "data", "setting", *map(column_title, columns), "recipe"]
        yield from (f"| {' | '.join(head)} |", "|---" * len(head) + "|")
        for row in members:
            values = {key: text.printed(value) for key, value in row.published_values.items()}
            recipe = f"`{row.name}`" if row.reason is None else f"not run here: {_cell(row.reason)}"
            facts = (
                _cell(row.row),
                row.data,
                row.setting,
                *(values.get(key, "-") for key in columns),
                recipe,
            )
            yield f"| {' | '.join(facts)} |"
        yield ""
    ours = {(name, reason) for row in rows for name, reason in row.ours.items()}
    if ours:
        yield from ("The paper leaves these settings open, or says otherwise than its code:", "")
        for name, reason in sorted(ours):
            yield from (f"`{name}`", f":   {_cell(reason)}", "")


def _cell(words: str) -> str:
    return repository.prose(words, "../").replace("\n", " ")
