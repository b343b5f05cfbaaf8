"""`lookalike search`: query a gallery by images or by its own items."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import runtime_options
from retrieval.commands.options import sheet_option, where_option
from retrieval.errors import ImageError, InputError
from retrieval.gallery import Gallery, Hit
from retrieval.images.decode import embed_files
from retrieval.inference.runtime import Runtime
from retrieval.progress import Progress
from retrieval.reports.sheet import SheetImage, SheetRow, check_sheet_path, write_sheet
from retrieval.search.query import RERANKS, SearchOptions
from retrieval.search.rerank import mean_query
from retrieval.text import align_columns


@dataclass(frozen=True)
class _Query:
    """One query.

    Attributes:
        name: Name in the output.
        images: Paths of the query images.
        vector: Query vector, float32 [D].
        items: Ids of the gallery items that the query consists of; they are not hits.
    """

    name: str
    images: tuple[str, ...]
    vector: np.ndarray
    items: tuple[int, ...] = ()


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.argument("images", type=click.Path(path_type=Path), nargs=-1, metavar="[IMAGE]...")
@click.option(
    "--id", "items", multiple=True, metavar="ID", help="Search with an item of the gallery. Repeatable."
)
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="Number of hits.")
@where_option("Filter by metadata, as described above")
@click.option("--min-score", type=float, metavar="S", help="Minimum score of a hit, from -1 to 1.")
@click.option("--group-by", metavar="COLUMN", help="Only the best hit for each value of COLUMN.")
@click.option("--exclude", multiple=True, metavar="ID", help="Exclude an item. Repeatable.")
@click.option(
    "--rerank",
    type=click.Choice(list(RERANKS)),
    default="none",
    show_default=True,
    help="Re-ranking method, described above.",
)
@click.option("--together", is_flag=True, help="Combine all images and items into one query, their mean.")
@sheet_option
@runtime_options
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
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Find the images of a gallery that look like yours: the K most similar to each IMAGE.

    The score is the cosine similarity, 1 for the same image. ID is the number or the key of an item.

    \b
      lookalike search shop.gallery query.jpg -k 5
      lookalike search shop.gallery front.jpg side.jpg --together
      lookalike search shop.gallery --id 17 --sheet found.html
      lookalike search shop.gallery query.jpg --where "brand = 'acme' and price < 30"

    CONDITION compares columns with = != < <= > >=, in (...), like, between, is null and is not null, and
    combines comparisons with and, or, not and parentheses. Columns are those of your metadata, and id, key,
    label, path (relative to the indexed folder), width and height. Text is in 'single quotes', dates are
    written as date '2024-05-01', and a column name with spaces is in "double quotes". The wildcards of like
    are % and _, and case does not matter. As in SQL, a comparison with a missing value is never true. The
    documentation has the details in docs/filters.md.

    `--rerank query-expansion` searches a second time with the query moved towards the first hits;
    `k-reciprocal` orders the first few hundred hits by the neighbours that they share with the query, and
    their score is 1 minus that distance. Both improve the result if most of the first hits are correct and
    make it worse otherwise.

    Exit code 3: some images could not be read; the output covers the others.
    """
    if not images and not items:
        raise click.UsageError("Missing argument '[IMAGE]...' or option '--id'.")
    if sheet is not None:
        check_sheet_path(sheet)
    options = SearchOptions(k, where, exclude, min_score, group_by, rerank)
    target = Gallery(gallery, runtime=runtime)
    if not len(target):
        raise InputError(
            f"{gallery}: the gallery is empty; add images with `lookalike index add {gallery} IMAGES`"
        )
    queries, bad, embed_ms = _queries(target, images, items)
    if together:
        queries = [_combined(queries)]
    start = time.perf_counter()
    vectors = np.stack([query.vector for query in queries])
    hits_of_each = target.find(vectors, options, [query.items for query in queries])
    answers = list(zip(queries, hits_of_each, strict=True))
    search_ms = 1000 * (time.perf_counter() - start)

    times = {"embed_ms": round(embed_ms, 3), "search_ms": round(search_ms, 3)}
    found: list[dict[str, Any]] = [
        {"query": query.name, "scores": RERANKS[rerank], **times, "hits": [asdict(hit) for hit in hits]}
        for query, hits in answers
    ]
    found += [{"query": e.source, "error": {"reason": e.reason, "detail": e.detail}} for e in bad]
    print_result(found, as_json, [line for query, hits in answers for line in (query.name, *_lines(hits))])
    for query, hits in answers:
        if len(hits) < k:
            print_status(f"{query.name}: found {len(hits)} of {k}: {_why_fewer(options)}")
    print_status(f"embedded in {embed_ms:.1f} ms, searched {len(target)} images in {search_ms:.1f} ms")
    if sheet is not None:
        note = f"Below each image: {RERANKS[rerank]}, label and metadata."
        write_sheet(sheet, f"{gallery.name}: search results", note, [_row(*answer) for answer in answers])
        print_status(f"{sheet}: written")
    if bad:
        for error in bad:
            print_status(f"unreadable: {error}")
        ctx.exit(3)


def _queries(
    gallery: Gallery, images: Sequence[Path], items: Sequence[str]
) -> tuple[list[_Query], list[ImageError], float]:
    """Return the queries, the unreadable images and the time for embedding in milliseconds."""
    queries, bad, milliseconds = [], [], 0.0
    if images:
        embedder = gallery.embedder
        start = time.perf_counter()
        with Progress("embedding", len(images), show=False) as progress:
            embedded = embed_files(
                images,
                embedder.preprocess,
                embedder.embed_pixels,
                progress,
                batch_size=embedder.batch_size,
            )
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


def _combined(queries: list[_Query]) -> _Query:
    """Combine several queries into one, with the mean of their vectors."""
    return _Query(
        " + ".join(query.name for query in queries),
        tuple(path for query in queries for path in query.images),
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


def _row(query: _Query, hits: Sequence[Hit]) -> SheetRow:
    shown = [SheetImage(Path(path), "query") for path in query.images]
    shown += [
        SheetImage(Path(hit.path), f"{hit.score:.3f} {hit.label or ''} {_facts(hit)}".strip()) for hit in hits
    ]
    return SheetRow(query.name, shown)


def _why_fewer(options: SearchOptions) -> str:
    """Return the reason for fewer hits than requested."""
    limits = []
    if options.where is not None:
        limits.append("match the condition")
    if options.min_score is not None:
        limits.append(f"score at least {options.min_score:g}")
    if options.group_by is not None:
        limits.append(f"have a different {options.group_by}")
    if options.rerank == "k-reciprocal":
        limits.append("are among the candidates for re-ranking")
    return f"no more images {' and '.join(limits)}" if limits else "the gallery has no more images"
