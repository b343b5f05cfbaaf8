"""`lookalike serve`, and the same as `python app.py`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import click

from retrieval.cli import main as lookalike
from retrieval.cli import say
from retrieval.errors import did_you_mean

_PREFIX = "LOOKALIKE_SERVE"


def _from_file(context: click.Context, option: click.Parameter, file: Path | None) -> None:
    """Let a file say what neither the command line nor the environment does."""
    from serve.config import read_file

    options = {one.name: one for one in context.command.params if one.name and one is not option}
    for variable in os.environ:
        name = variable.removeprefix(f"{_PREFIX}_").lower()
        if variable.startswith(f"{_PREFIX}_") and name not in {*options, "config"}:
            hint = did_you_mean(name, options, "`lookalike serve --help` lists all settings")
            say(f"{variable}: no such setting, ignored; {hint}")
    if file is not None:
        found = read_file(file, options)
        several = {name for name, one in options.items() if one.multiple or one.nargs == -1}
        context.default_map = {
            name: [value] if name in several and not isinstance(value, list) else value
            for name, value in found.items()
        }


@click.command(context_settings={"auto_envvar_prefix": _PREFIX})
@click.argument(
    "gallery", nargs=-1, required=True, type=click.Path(), metavar="GALLERY...", envvar=f"{_PREFIX}_GALLERY"
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_from_file,
    help="Read settings from a TOML file.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="0 takes a free one."
)
@click.option("--page/--no-page", default=True, help="Serve the page, or the API alone.")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that answer; more than one serve the API alone.",
)
@click.option("--token-file", type=click.Path(path_type=Path), help="Tokens for programs, one a line.")
@click.option("--user", help="The name to sign in with, on the page too.")
@click.option("--password-file", type=click.Path(path_type=Path), help="The password that goes with it.")
@click.option(
    "--insecure", is_flag=True, help="Allow a --host that other machines can reach; nobody signs in."
)
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A name this server has, such as search.example.com."
)
@click.option(
    "--allow-origin", multiple=True, metavar="URL", help="A site whose pages may ask the API (CORS)."
)
@click.option(
    "--trusted-proxy",
    multiple=True,
    metavar="ADDRESS",
    help="A proxy or network of them, to be believed about its clients.",
)
@click.option("--allow-changes", is_flag=True, help="Let those who may come in add images and remove them.")
@click.option(
    "--allow-urls", is_flag=True, help="Fetch pictures to search with from addresses on the internet."
)
@click.option(
    "--rate",
    type=click.FloatRange(0),
    help="Requests a second from one client, ten times as many at once; 0: no limit.  "
    "[default: 50; 0 where only this machine can ask]",
)
@click.option(
    "--max-body",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    help="The largest request, in MB.",
)
@click.option(
    "--deadline",
    type=click.IntRange(1, 3600),
    default=30,
    show_default=True,
    help="Seconds that a request may take, waiting for its turn included.",
)
@click.option(
    "--log-level",
    type=click.Choice(["error", "warning", "info", "debug"]),
    default="warning",
    show_default=True,
    help="From info on, one line a request.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def serve(gallery: tuple[str, ...], **options: Any) -> None:
    """Open a gallery in the browser: drop a picture, see what looks like it. Programs ask under /v1.

    \b
      lookalike serve shop.gallery
      lookalike serve shop.gallery --host 0.0.0.0 --user ann --password-file password
      lookalike serve birds.gallery cars=/data/all-cars
      lookalike serve --config serve.toml

    Of several galleries, the first is at the root, and each under its name: the page of cars at
    /galleries/cars/, its API at /v1/galleries/cars/.

    Every setting can also come from the environment (LOOKALIKE_SERVE_PORT=8000) or from a TOML file
    (port = 8000); the command line comes before the environment, and that before the file. Secrets come from
    files or from LOOKALIKE_TOKEN and LOOKALIKE_PASSWORD, never from the command line, which others can see.
    """
    from serve.config import settings
    from serve.server import run  # the web framework takes seconds to import

    run(settings(gallery, **options))


def app() -> None:
    """`python app.py --gallery GALLERY`: the gallery is an option, the rest is as for `lookalike serve`."""
    parser = argparse.ArgumentParser(
        description="Open a gallery in the browser.",
        epilog="The options of `lookalike serve` work here too: --host, --port, --insecure and the others.",
    )
    parser.add_argument(
        "--gallery",
        required=True,
        action="append",
        help="a folder made by `lookalike index build`; repeatable",
    )
    known, others = parser.parse_known_args()
    lookalike(["serve", *known.gallery, *others])
