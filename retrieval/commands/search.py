"""`lookalike search`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.options import sheet_option
from retrieval.errors import ImageError, InputError
from retrieval.gallery import Gallery, Hit
from retrieval.images.decode import embed_files
from retrieval.progress import Progress
from retrieval.reports.sheet import Row, Tile, check_name, write_sheet
from retrieval.search.query import RERANKS, Options
from retrieval.search.rerank import mean_query
from retrieval.text import align_columns


@dataclass(frozen=True)
class _Query:
    """What is searched for: its name, the pictures to show of it, its vector and the items that it is."""

    name: str
    pictures: tuple[str, ...]
    vector: np.ndarray  # float32 [D]
    items: tuple[int, ...] = ()


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.argument("images", type=click.Path(path_type=Path), nargs=-1, metavar="[IMAGE]...")
@click.option(
    "--id", "items", multiple=True, metavar="ID", help="Search with a picture of the gallery itself."
)
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="How many to find.")
@click.option("--where", metavar="CONDITION", help="Find only what fulfils it; see above.")
@click.option("--min-score", type=float, metavar="S", help="Find only what scores at least S, from -1 to 1.")
@click.option("--group-by", metavar="COLUMN", help="The best hit alone of each value of a column.")
@click.option("--exclude", multiple=True, metavar="ID", help="Leave a picture of the gallery out.")
@click.option(
    "--rerank", type=click.Choice(list(RERANKS)), default="none", show_default=True, help="See above."
)
@click.option("--together", is_flag=True, help="Several views of one thing: one query, the mean of them all.")
@sheet_option
@json_option
@click.pass_context
def search(
    ctx: click.Context,
    gallery: Path,
    images: tuple[Path, ...],
    items: tuple[str, ...],
    k: int,
    where: str | None,
    min_score: float | None,
    group_by: str | None,
    exclude: tuple[str, ...],
    rerank: str,
    together: bool,
    sheet: Path | None,
    as_json: bool,
) -> None:
    """Find the images of a gallery that look like yours: the K most similar to each IMAGE.

    The score is the cosine similarity, 1 for the same picture. ID is a number, or the key of an item.

    \b
      lookalike search shop.gallery query.jpg -k 5
      lookalike search shop.gallery front.jpg side.jpg --together
      lookalike search shop.gallery --id 17 --sheet found.html
      lookalike search shop.gallery query.jpg --where "brand = 'acme' and price < 30"

    CONDITION compares columns by = != < <= > >= in (...) like between, is null and is not null, joined by
    and, or, not and parentheses. Columns are those of your table, and id, key, label, path (from the folder
    that was indexed), width and height. Text goes in 'single quotes', a column's name with blanks in "double
    quotes"; like knows % and _. As in SQL, nothing compares with a value that is missing.

    `--rerank query-expansion` searches again with the query moved towards what was found first;
    `k-reciprocal` orders the first few hundred by the neighbours that they share with the query, and the
    score is 1 minus that distance. Both trust what is found first: they help where most of that is right,
    and harm where it is not.

    Exit code 3: some images could not be read; the others are answered.
    """
    if not images and not items:
        raise click.UsageError("Missing argument '[IMAGE]...' or option '--id'.")
    if sheet is not None:
        check_name(sheet)
    options = Options(k, where, exclude, min_score, group_by, rerank)
    target = Gallery(gallery)
    if not len(target):
        raise InputError(f"{gallery}: the gallery is empty; `lookalike index add {gallery} IMAGES` fills it")
    queries, bad, embed_ms = _queries(target, images, items)
    if together:
        queries = [_joined(queries)]
    start = time.perf_counter()
    vectors = np.stack([query.vector for query in queries])
    hits_of_each = target.find(vectors, options, [query.items for query in queries])
    answers = list(zip(queries, hits_of_each, strict=True))
    search_ms = 1000 * (time.perf_counter() - start)

    took = {"embed_ms": round(embed_ms, 3), "search_ms": round(search_ms, 3)}
    found: list[dict[str, Any]] = [
        {"query": query.name, "scores": RERANKS[rerank], **took, "hits": [asdict(hit) for hit in hits]}
        for query, hits in answers
    ]
    found += [{"query": e.source, "error": {"reason": e.reason, "detail": e.detail}} for e in bad]
    print_result(
        found, as_json, "\n".join(line for query, hits in answers for line in (query.name, *_lines(hits)))
    )
    for query, hits in answers:
        if len(hits) < k:
            print_status(f"{query.name}: found {len(hits)} of {k}: {_why(options)}")
    print_status(f"embedded in {embed_ms:.1f} ms, searched {len(target)} images in {search_ms:.1f} ms")
    if sheet is not None:
        note = f"Below each picture: {RERANKS[rerank]}, label and what else is known."
        write_sheet(sheet, f"{gallery.name}: what looks like it", note, [_row(*answer) for answer in answers])
        print_status(f"{sheet}: written")
    if bad:
        for error in bad:
            print_status(f"could not be read: {error}")
        ctx.exit(3)


def _queries(
    gallery: Gallery, images: Sequence[Path], items: Sequence[str]
) -> tuple[list[_Query], list[ImageError], float]:
    """The queries, the images that could not be read, and the milliseconds that embedding took."""
    queries, bad, milliseconds = [], [], 0.0
    if images:
        embedder = gallery.embedder
        start = time.perf_counter()
        with Progress("embedding", len(images), show=False) as progress:
            embedded = embed_files(images, embedder.preprocess, embedder.embed_pixels, progress)
        milliseconds = 1000 * (time.perf_counter() - start)
        bad = embedded.bad
        if len(bad) == len(images) and not items:
            raise bad[0]
        names = [str(images[position]) for position in embedded.positions]
        queries += [_Query(n, (n,), vector) for n, vector in zip(names, embedded.vectors, strict=True)]
    for number in gallery.ids_of(items):
        item = gallery.item(number)
        queries.append(_Query(item.path or item.key, (item.path,), gallery.vector(number), (number,)))
    return queries, bad, milliseconds


def _joined(queries: list[_Query]) -> _Query:
    """Several queries as one."""
    return _Query(
        " + ".join(query.name for query in queries),
        tuple(path for query in queries for path in query.pictures),
        mean_query(np.stack([query.vector for query in queries])),
        tuple(item for query in queries for item in query.items),
    )


def _lines(hits: Sequence[Hit]) -> list[str]:
    rows = [
        [str(rank), f"{hit.score:.4f}", str(hit.id), hit.label or "-", hit.path or hit.key, _facts(hit)]
        for rank, hit in enumerate(hits, 1)
    ]
    return [f"  {line}" for line in align_columns(rows, right={0, 1, 2})] if rows else []


def _facts(hit: Hit) -> str:
    return ", ".join(f"{name}={value}" for name, value in hit.metadata.items() if value is not None)


def _row(query: _Query, hits: Sequence[Hit]) -> Row:
    shown = [Tile(Path(path), "query") for path in query.pictures]
    shown += [
        Tile(Path(hit.path), f"{hit.score:.3f} {hit.label or ''} {_facts(hit)}".strip()) for hit in hits
    ]
    return Row(query.name, shown)


def _why(options: Options) -> str:
    """What keeps hits out, as a sentence."""
    limits = []
    if options.where is not None:
        limits.append("fulfil the condition")
    if options.min_score is not None:
        limits.append(f"score at least {options.min_score:g}")
    if options.group_by is not None:
        limits.append(f"have another {options.group_by}")
    if options.rerank == "k-reciprocal":
        limits.append("are among those that it orders")
    return f"no more pictures {' and '.join(limits)}" if limits else "the gallery holds no more pictures"
