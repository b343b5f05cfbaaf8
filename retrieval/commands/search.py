"""`lookalike search`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from retrieval.cli import emit, json_option
from retrieval.errors import InputError
from retrieval.gallery import Gallery


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.argument("images", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="IMAGE...")
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="How many to find.")
@json_option
def search(gallery: Path, images: tuple[Path, ...], k: int, as_json: bool) -> None:
    """Find the images of a gallery that look like yours: the K most similar to each IMAGE.

    The score is the cosine similarity, 1 for the same picture.

    \b
      lookalike search shop.gallery query.jpg -k 5
    """
    target = Gallery(gallery)
    if not len(target):
        raise InputError(f"{gallery}: the gallery is empty; `lookalike index add {gallery} IMAGES` fills it")
    vectors = target.embedder.embed(images)
    answers = target.search_vectors(vectors, k)
    found = [
        {"query": str(image), "hits": [asdict(hit) for hit in hits]}
        for image, hits in zip(images, answers, strict=True)
    ]
    lines = []
    for image, hits in zip(images, answers, strict=True):
        lines.append(f"{image}")
        lines += [f"{n:>4}  {h.score:.4f}  {h.label or '-':<20}  {h.path}" for n, h in enumerate(hits, 1)]
    emit(found, as_json, "\n".join(lines))
