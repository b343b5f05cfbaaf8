"""`lookalike serve`, and the same as `python app.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

import click

from retrieval.cli import main as lookalike


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="0 takes a free one."
)
@click.option(
    "--insecure", is_flag=True, help="Allow a --host that other machines can reach; nobody signs in."
)
def serve(gallery: Path, host: str, port: int, insecure: bool) -> None:
    """Open a gallery in the browser: drop a picture, see what looks like it.

    \b
      lookalike serve shop.gallery
    """
    from serve.server import run  # the web framework takes seconds to import

    run(gallery, host, port, insecure=insecure)


def app() -> None:
    """`python app.py --gallery GALLERY`: the gallery is an option, the rest is as for `lookalike serve`."""
    parser = argparse.ArgumentParser(
        description="Open a gallery in the browser.",
        epilog="The options of `lookalike serve` work here too: --host, --port, --insecure.",
    )
    parser.add_argument("--gallery", required=True, help="a folder made by `lookalike index build`")
    known, others = parser.parse_known_args()
    lookalike(["serve", known.gallery, *others])
