"""`lookalike search`: query a gallery by images, by its own items or by text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import runtime_options
from retrieval.commands.options import sheet_option
from retrieval.commands.search_options import combine_options, search_option
from retrieval.errors import ImageError, InputError
from retrieval.galleries.items import Hit, Hits, PartHit, View
from retrieval.galleries.objects import OBJECT_SCORES, load_tiles, refuse_options, search_objects
from retrieval.galleries.searchable import SearchableGallery
from retrieval.gallery import Gallery
from retrieval.images.decode import embed_files
from retrieval.images.location import locate
from retrieval.model.runtime import Runtime
from retrieval.progress import Progress
from retrieval.reports.sheet import SheetImage, SheetRow, check_sheet_path, write_sheet
from retrieval.search.composition import compose
from retrieval.search.detector import Detector
from retrieval.search.options import RERANKS, SearchOptions, search_options
from retrieval.text import align_columns, pluralize


@dataclass(frozen=True)
class _Query:
    """One query.

    Attributes:
        name: Name in the output.
        images: Paths of the query images.
        vectors: Vectors of its views, float32 [m, D].
        items: Ids of the gallery items that the query consists of; they are not hits.
    """

    name: str
    images: tuple[str, ...]
    vectors: np.ndarray
    items: tuple[int, ...] = ()


_search_options = combine_options(*(search_option(one) for one in search_options()))


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.argument("images", type=click.Path(path_type=Path), nargs=-1, metavar="[IMAGE]...")
@click.option(
    "--id", "items", multiple=True, metavar="ID", help="Search with an item of the gallery. Repeatable."
)
@click.option(
    "--text", "texts", multiple=True, metavar="TEXT", help="Search for what a text says. Repeatable."
)
@click.option(
    "--without",
    "unwanted",
    multiple=True,
    metavar="TEXT",
    help="Move away from what a text says. Repeatable.",
)
@click.option(
    "--like",
    "likes",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="IMAGE",
    help="Further image of one query, described below. Repeatable.",
)
@click.option(
    "--unlike",
    "unlikes",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="IMAGE",
    help="Move away from an image. Repeatable.",
)
@click.option(
    "--unlike-id",
    "unlike_items",
    multiple=True,
    metavar="ID",
    help="Move away from an item of the gallery, such as a wrong hit. Repeatable.",
)
@_search_options
@click.option(
    "--together", is_flag=True, help="Take all images and items as views of one thing, in one query."
)
@click.option(
    "--objects",
    "for_objects",
    is_flag=True,
    help="Search for what stands in each IMAGE, part by part; each hit says which part it looks like.",
)
@click.option(
    "--detector",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --objects: ONNX model of a detector, whose boxes are searched for.  [default: that of the "
    "gallery, if it divides pictures by one] See docs/objects.md.",
)
@sheet_option
@runtime_options
@json_option
@click.pass_context
def search(
    ctx: click.Context,
    /,
    gallery: Path,
    images: tuple[Path, ...],
    items: tuple[str, ...],
    texts: tuple[str, ...],
    unwanted: tuple[str, ...],
    likes: tuple[Path, ...],
    unlikes: tuple[Path, ...],
    unlike_items: tuple[str, ...],
    together: bool,
    for_objects: bool,
    detector: Path | None,
    sheet: Path | None,
    runtime: Runtime,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the images of a gallery that look like yours, or that a text describes: the K most similar to each
    IMAGE.

    The score is the cosine similarity, 1 for the same image. ID is the number or the key of an item.

    \b
      lookalike search shop.gallery query.jpg -k 5
      lookalike search shop.gallery front.jpg side.jpg --together
      lookalike search shop.gallery --id 17 --sheet found.html
      lookalike search shop.gallery query.jpg --where "brand = 'acme' and price < 30"
      lookalike search shop.gallery query.jpg --min-probability 0.8
      lookalike search shop.gallery room.jpg --objects -k 50
      lookalike search shop.gallery query.jpg --like other.jpg --unlike bad.jpg
      lookalike search shop.gallery --id 17 --id 23 --unlike-id 5
      lookalike search shop.gallery --text "red kettle" --without handle --like photo.jpg

    --like, --unlike, --unlike-id, --text and --without make one query, with all images and items: twice the
    mean of the vectors that are wanted minus the mean of those that are not (docs/feedback.md). Items of the
    query are not among its hits. Repeat a part to give it more weight. Texts need a model with a text
    encoder, such as one of `lookalike export --from open-clip:`. Their cosines with images are much lower
    than those of two images, and have no probability.

    After `lookalike calibrate`, the probability that a hit shows the same thing is printed beside its score,
    or "same" if it is the picture of the query itself; --min-probability answers that there is nothing like
    the query in the gallery if no hit reaches it.
    Hits of re-ranking have no probability.

    CONDITION compares columns with = != < <= > >=, in (...), like, between, is null and is not null, and
    combines comparisons with and, or, not and parentheses. Columns are those of your metadata, and id, key,
    label, path (relative to the indexed folder), width and height. Text is in 'single quotes', dates are
    written as date '2024-05-01', and a column name with spaces is in "double quotes". The wildcards of like
    are % and _, and case does not matter. As in SQL, a comparison with a missing value is never true. The
    documentation has the details in docs/filters.md.

    In a gallery of products (`lookalike index build --product sku`), each hit is a product: its best view,
    with the number of its views. --together compares each of your images with each view, which finds more
    than the mean of your images; --group-by id finds single images. See docs/products.md.

    \b
      lookalike search shop.gallery front.jpg side.jpg --together --group-size 3
      lookalike search shop.gallery query.jpg --group-score soft

    `--rerank query-expansion` searches a second time with the query moved towards the first hits;
    `k-reciprocal` orders the first few hundred hits by the neighbours that they share with the query, and
    their score is 1 minus that distance. Both improve the result if most of the first hits are correct and
    make it worse otherwise.

    --objects searches with a dozen overlapping parts of each IMAGE, in which the embedding map gives every
    hit its box: left, top, right and bottom as fractions of the picture. The score is the mean of the cosines
    with both (docs/objects.md). With --detector, its boxes take the place of the parts.

    Exit code 3: some images could not be read; the output covers the others.
    """
    if not (images or items or texts or likes):
        raise click.UsageError("Missing argument '[IMAGE]...' or option '--id', '--text' or '--like'.")
    if detector is not None and not for_objects:
        raise click.UsageError("--detector goes with --objects.")
    if for_objects and (
        not images or items or texts or unwanted or likes or unlikes or unlike_items or together
    ):
        raise click.UsageError("--objects takes IMAGEs alone: a text or a mean of images has no parts.")
    has_text = bool(texts or unwanted)
    if sheet is not None:
        check_sheet_path(sheet)
    options = SearchOptions(**given, calibrated=not has_text)
    target = Gallery.open(gallery, runtime=runtime)
    if not len(target):
        raise InputError(
            f"{gallery}: the gallery is empty; add images with `lookalike index add {gallery} IMAGES`"
        )
    answers: list[tuple[_Query, Hits]]
    if for_objects:
        finder = target.detector if detector is None else Detector(detector, runtime)
        answers, bad, embed_ms, search_ms = _object_answers(target, images, options, finder)
    else:
        queries, bad, embed_ms = _queries(target, (*images, *likes), items)
        if has_text or likes or unlikes or unlike_items:
            away, bad_away, away_ms = _queries(target, unlikes, unlike_items)
            if unusable := [*bad, *bad_away]:
                raise unusable[0]
            start = time.perf_counter()
            wanted = [*queries, *_text_queries(target, texts)]
            queries = [_composed(wanted, [*away, *_text_queries(target, unwanted)])]
            embed_ms += away_ms + 1000 * (time.perf_counter() - start)
        elif together:
            queries = [_together(queries)]
        start = time.perf_counter()
        vectors = [query.vectors for query in queries]
        hits_of_each = target.find(vectors, options, [query.items for query in queries])
        answers = list(zip(queries, hits_of_each, strict=True))
        search_ms = 1000 * (time.perf_counter() - start)

    scores = OBJECT_SCORES if for_objects else RERANKS[options.rerank]
    times = {"embed_ms": round(embed_ms, 3), "search_ms": round(search_ms, 3)}
    found: list[dict[str, Any]] = [
        {
            "query": query.name,
            "scores": scores,
            **times,
            "nothing_like_it": options.is_nothing_like_it(hits),
            "hits": [asdict(hit) | ({"part": hit.part} if hit.part else {}) for hit in hits],
        }
        for query, hits in answers
    ]
    found += [{"query": e.source, "error": {"reason": e.reason, "detail": e.detail}} for e in bad]
    print_result(found, as_json, list(_text(target, answers, options)))
    for query, hits in answers:
        if len(hits) < options.k and not options.is_nothing_like_it(hits):
            why = _why_fewer(options, target.manifest.product)
            print_status(f"{query.name}: found {len(hits)} of {options.k}: {why}")
    print_status(
        f"embedded in {embed_ms:.1f} ms, opened and searched {len(target):,} images in {search_ms:.1f} ms"
    )
    _warn_of_age(target)
    if sheet is not None:
        note = f"Below each image: {scores}, label and metadata."
        write_sheet(sheet, f"{gallery.name}: search results", note, [_row(*answer) for answer in answers])
        print_status(f"{sheet}: written")
    if bad:
        for error in bad:
            print_status(f"unreadable: {error}")
        ctx.exit(3)


def _queries(
    gallery: SearchableGallery, images: Sequence[Path], items: Sequence[str]
) -> tuple[list[_Query], list[ImageError], float]:
    """Return the queries, the unreadable images and the time for embedding in milliseconds."""
    queries, bad, milliseconds = [], [], 0.0
    if images:
        embedder, places = gallery.embedder, [locate(image) for image in images]
        start = time.perf_counter()
        with Progress("embedding", len(images), show=False) as progress:
            embedded = embed_files(
                places,
                embedder.preprocess,
                embedder.embed_pixels,
                progress,
                batch_size=embedder.batch_size,
            )
        milliseconds = 1000 * (time.perf_counter() - start)
        bad = embedded.bad
        if len(bad) == len(images) and not items:
            raise bad[0]
        names = [str(places[position]) for position in embedded.positions]
        queries += [_Query(n, (n,), vector[None]) for n, vector in zip(names, embedded.vectors, strict=True)]
    for number in gallery.ids_of(items):
        item = gallery.item(number)
        queries.append(_Query(item.path or item.key, (item.path,), gallery.vector(number)[None], (number,)))
    return queries, bad, milliseconds


def _object_answers(
    gallery: SearchableGallery, images: Sequence[Path], options: SearchOptions, detector: Detector | None
) -> tuple[list[tuple[_Query, Hits]], list[ImageError], float, float]:
    """Search with the parts of images; return the answers, the unreadable images, and milliseconds: for
    reading, and for embedding and searching."""
    answers, bad, milliseconds = [], [], [0.0, 0.0]
    refuse_options(options)
    for place in map(locate, images):
        start = time.perf_counter()
        try:
            parts = load_tiles(str(place), gallery.embedder.preprocess, detector)
        except ImageError as error:
            bad.append(error)
            continue
        read = time.perf_counter()
        found: list[Hit] = [*search_objects(gallery, parts, options).hits]
        milliseconds[0] += 1000 * (read - start)
        milliseconds[1] += 1000 * (time.perf_counter() - read)
        answers.append((_Query(str(place), (str(place),), np.empty(0, np.float32)), Hits(found)))
    if bad and not answers:
        raise bad[0]
    return answers, bad, milliseconds[0], milliseconds[1]


def _text_queries(gallery: SearchableGallery, texts: Sequence[str]) -> list[_Query]:
    """Return a query for each text."""
    vectors = gallery.embedder.embed_texts(texts) if texts else ()
    return [_Query(f'"{text}"', (), vector[None]) for text, vector in zip(texts, vectors, strict=True)]


def _together(views: Sequence[_Query]) -> _Query:
    """Return several queries as the views of one."""
    return replace(_composed(views), vectors=_vectors(views))


def _composed(wanted: Sequence[_Query], unwanted: Sequence[_Query] = ()) -> _Query:
    """Compose several queries into one."""
    names = " + ".join(query.name for query in wanted)
    return _Query(
        names + "".join(f" - {query.name}" for query in unwanted),
        tuple(path for query in wanted for path in query.images),
        compose(_vectors(wanted), _vectors(unwanted) if unwanted else None)[None],
        tuple(item for query in (*wanted, *unwanted) for item in query.items),
    )


def _vectors(queries: Sequence[_Query]) -> np.ndarray:
    return np.concatenate([query.vectors for query in queries])


def _text(
    gallery: SearchableGallery, answers: Sequence[tuple[_Query, Hits]], options: SearchOptions
) -> Iterator[str]:
    """Yield the lines of all answers."""
    for query, hits in answers:
        yield query.name
        yield from _lines(hits)
        if options.is_nothing_like_it(hits):
            yield f"  nothing like it here{_best_of(gallery, query, options)}"


def _lines(hits: Hits) -> list[str]:
    rows = [
        [
            str(rank),
            f"{hit.score:.4f}",
            *([] if hit.probability is None else [_percent(hit.probability)]),
            str(hit.id),
            *([_part(hit)] if isinstance(hit, PartHit) else []),
            hit.label or "-",
            hit.path or hit.key,
            *([_count(hit)] if hit.view_count else []),
            _facts(hit),
        ]
        for rank, hit in enumerate(hits, 1)
    ]
    numbers = {0, 1, 2} if not hits or hits[0].probability is None else {0, 1, 2, 3}
    return [f"  {line}" for line in align_columns(rows, right=numbers)] if rows else []


def _count(hit: Hit) -> str:
    """Return the number of views of a product, and its variants: those known with their scores."""
    views = pluralize(hit.view_count, "view")
    if not hit.variant_count:
        return views
    shown = [f"{'-' if one.variant is None else one.variant} {one.score:.3f}" for one in hit.views]
    variants = pluralize(hit.variant_count, "variant")
    return f"{views}, {variants}{': ' if shown else ''}{', '.join(shown)}"


def _part(hit: PartHit) -> str:
    """Return the part of the query that a hit looks like: left, top, right and bottom in percent."""
    return ",".join(f"{100 * value:.0f}%" for value in hit.box)


def _best_of(gallery: SearchableGallery, query: _Query, options: SearchOptions) -> str:
    """Return the probability of the best hit that a lowest probability has left out, as part of a message."""
    without = replace(options, k=1, min_probability=None)
    (best,) = gallery.find([query.vectors], without, [query.items])
    return f": the best hit has a probability of {best[0].probability:.0%}" if best else ""


def _warn_of_age(gallery: SearchableGallery) -> None:
    """Warn if the calibration of a gallery is of one of another size, or of an earlier version."""
    found = gallery.calibration
    if found is None:
        return
    what = []
    if found.is_stale(len(gallery)):
        what.append(f"calibrated with {found.images:,} images, and has {len(gallery):,} now")
    if not found.knows_copies:
        what.append("calibrated by an earlier version, whose probabilities are too high for copies")
    for one in what:
        print_status(f"{gallery.folder}: {one}; run `lookalike calibrate {gallery.folder}` again")


def _facts(hit: Hit) -> str:
    return ", ".join(f"{name}={value}" for name, value in hit.metadata.items() if value is not None)


def _score(hit: Hit) -> str:
    """Return the score of a hit with three digits, and its probability, for a sheet."""
    if hit.probability is None:
        return f"{hit.score:.3f}"
    what = "same picture" if hit.probability == 1 else f"probability {hit.probability:.0%}"
    return f"{hit.score:.3f}, {what};"


def _at(hit: Hit) -> str:
    return f"at {_part(hit)}" if isinstance(hit, PartHit) else ""


def _percent(probability: float) -> str:
    """Return a probability in percent; of the picture of the query, whose probability is 1, what it is."""
    return "same" if probability == 1 else f"{probability:.0%}"


def _row(query: _Query, hits: Hits) -> SheetRow:
    shown = [SheetImage(Path(path), "query") for path in query.images]
    for hit in hits:
        views = pluralize(hit.view_count, "view") if hit.view_count > 1 else None
        shown.append(
            SheetImage(
                Path(hit.path), " ".join(filter(None, [_score(hit), _at(hit), hit.label, views, _facts(hit)]))
            )
        )
        shown += [SheetImage(Path(one.path), f"{one.score:.3f}, {_name(one)}") for one in hit.views[1:]]
    return SheetRow(query.name, shown)


def _name(view: View) -> str:
    """Return what a view is called below its picture on a sheet."""
    return "view" if view.variant is None else str(view.variant)


def _why_fewer(options: SearchOptions, product: str | None) -> str:
    """Return the reason for fewer hits than requested.

    Args:
        options: Search options.
        product: Column of the products of the gallery.
    """
    limits = []
    if options.where is not None:
        limits.append("match the condition")
    if options.min_score is not None:
        limits.append(f"score at least {options.min_score:g}")
    if options.min_probability is not None:
        limits.append(f"have a probability of at least {options.min_probability:g}")
    if (column := options.group_by or product) and column.lower() != "id":
        limits.append(f"have a different {column}")
    if options.rerank == "k-reciprocal":
        limits.append("are among the candidates for re-ranking")
    return f"no more images {' and '.join(limits)}" if limits else "the gallery has no more images"
