"""Options that several gallery commands share."""

from __future__ import annotations

import re
from pathlib import Path

import click

from retrieval.commands.search_options import combine_options
from retrieval.ingest.indexing import MAX_BAD
from retrieval.ingest.sync import RemovalLimit
from retrieval.search.index import KINDS
from retrieval.storage.manifest import DTYPES

_SIZE = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Parse a number of bytes, such as 2GB, 500MB, 1.5GiB or 1000000.

    Raises:
        click.BadParameter: It is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise click.BadParameter(f"{text!r} is not a size such as 2GB")
    number, prefix, binary = match.groups()
    power = " kmgt".index(prefix.lower() or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


def size_text(count: float) -> str:
    """Return a number of bytes with three digits and a decimal unit, such as 1.5 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


# --kind, --recall and --memory: the index to build.
index_options = combine_options(
    click.option(
        "--kind",
        type=click.Choice(KINDS),
        help="Index kind. auto: exact up to 50,000 images, above that the fastest kind that reaches "
        "--recall. ivf-disk stays on disk; auto takes it if no other kind fits into --memory.  "
        "[default: unchanged, at first auto]",
    ),
    click.option(
        "--recall",
        type=click.FloatRange(0, 1, min_open=True),
        help="Share of the 10 nearest neighbours that the index must find.  "
        "[default: unchanged, at first 0.99, or 0.95 in a database]",
    ),
    click.option(
        "--memory",
        type=parse_size,
        metavar="SIZE",
        help="Memory limit of the index, for example 2GB.  [default: unchanged, at first no limit]",
    ),
    click.option(
        "--index-dim",
        type=click.IntRange(min=0),
        metavar="N",
        help="Index the first N dimensions only; candidates get their exact scores from the whole vectors. "
        "For embeddings whose first dimensions matter most. 0 for all.  [default: unchanged, at first 0]",
    ),
)
storage_option = click.option(
    "--storage",
    type=click.Choice(DTYPES),
    help="Type of the stored numbers of a new gallery. float16 takes half the disk space; scores change by "
    "less than 0.0005, and search without an index takes several times as long.  [default: float32]",
)
sheet_option = click.option(
    "--sheet",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Also write the images to an HTML page.",
)


def parse_limit(text: str) -> RemovalLimit:
    """Parse the most images that may be removed: a share such as 10%, or a number.

    Raises:
        click.BadParameter: It is neither.
    """
    share = text.strip().removesuffix("%")
    try:
        if share == text.strip():
            return RemovalLimit(0.0, click.IntRange(0)(share))
        return RemovalLimit(click.FloatRange(0, 100)(share) / 100, 0)
    except click.BadParameter as error:
        raise click.BadParameter(f"{text!r} is not a share such as 10% or a number of images") from error


max_removed_option = click.option(
    "--max-removed",
    "limit",
    type=parse_limit,
    metavar="SHARE",
    help="Refuse to remove more images than this: a share such as 25% of the images concerned, or a number. "
    "100% removes any number.  [default: 10%, or 10 images if that is more]",
)
checksum_option = click.option(
    "--checksum",
    is_flag=True,
    help="Read all files and compare the SHA-256 of their contents. Without it, a file of the same size and "
    "modification time counts as unchanged.",
)
retry_option = click.option("--retry", is_flag=True, help="Retry files that were unusable before.")
max_bad_option = click.option(
    "--max-bad",
    type=click.FloatRange(0, 1),
    default=MAX_BAD,
    show_default=True,
    metavar="SHARE",
    help="Stop if a larger share of the files, counted over at least 100, is unusable; 0 allows none.",
)
